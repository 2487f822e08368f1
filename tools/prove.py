"""The long proofs: `make prove`, or `python -m tools.prove --quick`.

Runs every harness with large counts, shows how far it is, and writes docs/proof/report.md with its
plots after each of them. The harnesses are the tests of CI; environment variables make them longer.
What they count is read from what they print: lines of `tests.support.counts.emit`, and dicts of
integers. Exit codes: 0 every harness passed, 1 not every one, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trex_client.embedded import find_servers
from trex_client.simulate import Settings, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "proof"
_COLOURS = ("#3d6f8e", "#8a8f3c")
_SCALES = (0.0, 1_000.0)
"""Above the first, up to the second."""
_GRACE = 30.0
"""Seconds that an interrupted harness has for ending its servers."""
_UNSCALED = frozenset({"SEARCH_DEPTH", "ALL_VERSIONS", "PYTHON_MUTANTS", "PYTHON_REPORT"})
"""Sizes that aren't counts, and a sample that is large enough."""


@dataclass(frozen=True)
class Harness:
    """A proof.

    Args:
        name: in the report and for `--only`.
        what: one line of what it does.
        unit: the counter that its size is told in.
        tests: for pytest; none runs `direct`.
        full, quick: the environment variables that set its size.
        seed: the one that takes the seed of the run, so that each run tries others.
    """

    name: str
    what: str
    unit: str
    tests: tuple[str, ...] = ()
    full: Mapping[str, int] = field(default_factory=dict)
    quick: Mapping[str, int] = field(default_factory=dict)
    seed: str = ""


HARNESSES = (
    Harness(
        "simulate", "seeded histories of the model, every invariant after each step", "histories",
        full={"SIMULATE_HISTORIES": 20_000_000}, quick={"SIMULATE_HISTORIES": 2_000},
    ),
    Harness(
        "planted bugs", "faults planted in the model, each found by histories or by search", "bugs",
        ("tests/py/simulation/test_histories.py::test_a_planted_bug_is_found",
         "tests/py/simulation/test_search.py::test_a_planted_bug_is_found"),
    ),
    Harness(
        "search", "every state of small models up to a depth (cut off: up to so many states only):"
        " 2 messages, 3 workers", "states",
        ("tests/py/simulation/test_search.py::test_every_state_keeps_every_invariant",),
        {"SEARCH_DEPTH": 12, "SEARCH_STATES": 5_000_000}, {"SEARCH_DEPTH": 7},
    ),
    Harness(
        "parity", "the same random calls on the model and on every server, all tables compared",
        "steps", ("tests/py/parity",), {"PARITY_HISTORIES": 5_000}, {"PARITY_HISTORIES": 8},
        seed="PARITY_SEED",
    ),
    Harness(
        "interleavings", "orders of the steps of small programs on real servers", "schedules",
        ("tests/py/interleavings",), {"SCHEDULES": 34_650, "PROGRAMS": 2_000},
        {"SCHEDULES": 20, "PROGRAMS": 8},
    ),
    Harness(
        "crowds", "many sessions at once, batches in every order, no deadlock", "claimed",
        ("tests/py/concurrency/test_crowds.py",), {"DEADLOCK_ROUNDS": 200_000},
    ),
    Harness(
        "daemons", "daemons killed, stopped and cut off under load", "kills",
        ("tests/py/faults",), {"KILLS": 5_000, "ALL_VERSIONS": 1}, {"ALL_VERSIONS": 1},
    ),
    Harness(
        "lost servers", "failovers with and without loss, restored backups, crashes without"
        " synchronous commit", "failovers", ("tests/py/failover/test_lost_servers.py",),
        {"FAILOVER_ROUNDS": 100, "CRASH_ROUNDS": 50, "ALL_VERSIONS": 1},
        {"FAILOVER_ROUNDS": 1, "CRASH_ROUNDS": 2, "ALL_VERSIONS": 1},
    ),
    Harness(
        "wire cuts", "the connection cut at every wire message", "cuts",
        ("tests/py/failover/test_cuts.py",), {"CUT_ROUNDS": 8}, {"CUT_ROUNDS": 1},
    ),
    Harness(
        "full disks", "the disk of the tables or of the WAL is full", "fillings",
        ("tests/py/failover/test_full_disk.py",), {"DISK_ROUNDS": 20, "ALL_VERSIONS": 1},
        {"DISK_ROUNDS": 1, "ALL_VERSIONS": 1},
    ),
    Harness(
        "timeouts", "statement_timeout swept over calls; workers frozen in a transaction", "calls",
        ("tests/py/failover/test_timeouts.py",),
        {"TIMEOUT_ROUNDS": 5_000, "FROZEN_ROUNDS": 500, "ALL_VERSIONS": 1},
        {"TIMEOUT_ROUNDS": 40, "FROZEN_ROUNDS": 3, "ALL_VERSIONS": 1},
    ),
    Harness(
        "bloat", "messages that pass while an old snapshot keeps every dead row", "messages",
        ("tests/py/sql/test_bloat.py",), {"CHURN": 5_000_000}, {},
    ),
    Harness(
        "planner", "the plan of every look-up and claim, on tables small and large, with statistics"
        " that are right, wrong and missing", "plans",
        ("tests/py/sql/test_plans.py", "tests/py/sql/test_plans_business.py"),
    ),
    Harness(
        "mutants", "faults planted in the SQL, each found by a test", "mutants",
        ("tests/py/mutants/test_mutants.py",), {"ALL_VERSIONS": 1}, {"ALL_VERSIONS": 1},
    ),
    Harness(
        "python mutants", "small faults in the Python core, found by its tests", "mutants",
        ("tests/py/mutants/test_python_mutants.py",),
        {"PYTHON_MUTANTS": 500, "PYTHON_REPORT": 1}, {"PYTHON_MUTANTS": 60},
        seed="PYTHON_SEED",
    ),
)  # fmt: skip


@dataclass
class Result:
    """What a harness has done.

    Args:
        well: it ended without a failure.
        tests, skipped: how many tests passed, and how many didn't run.
    """

    harness: Harness
    well: bool
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    tests: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    rate: str = ""

    @property
    def size(self) -> int:
        """How many of its unit."""
        return self.counts[self.harness.unit]

    @property
    def verdict(self) -> str:
        """`passed`, `skipped k of n` or `failed`; what has counted nothing has proved nothing."""
        if self.well and self.skipped:
            return f"skipped {self.skipped} of {self.tests + self.skipped}"
        return "passed" if self.well and self.size > 0 else "failed"

    @property
    def good(self) -> bool:
        """Whether it passed, all of it."""
        return self.verdict == "passed"


def simulate(settings: Settings, tell: Callable[[str], None]) -> Result:
    """Run the histories here, for the sake of the progress."""
    outcome = run(
        settings, lambda o: tell(f"{o.histories:,} histories, {o.histories / o.seconds:,.0f}/s")
    )
    counts = Counter({"histories": outcome.histories, "steps": outcome.steps})
    counts.update(outcome.counts)
    failures = []
    if outcome.failure is not None:
        failures.append(f"{outcome.failure.text}: trex simulate --seed {outcome.failure.seed} -n 1")
    failures += [f"too few: {name}" for name in outcome.missing()]
    rate = (
        f"{outcome.histories / outcome.seconds:,.0f} histories a second,"
        f" {outcome.histories / outcome.cpu_seconds:,.0f} a second and core"
    )
    return Result(HARNESSES[0], not failures, outcome.seconds, counts, failures=failures, rate=rate)


def pytest(
    harness: Harness, sizes: Mapping[str, int], jobs: int, tell: Callable[[str], None]
) -> Result:
    """Run a harness's tests, and read what they counted."""
    started = time.monotonic()
    missing = [t for t in harness.tests if not (ROOT / t.partition("::")[0]).exists()]
    if missing:
        return Result(harness, False, 0.0, failures=[f"no such tests: {name}" for name in missing])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        env = {**os.environ, **{f"TREX_{name}": str(size) for name, size in sizes.items()}}
        env["TREX_PROVE_LOG"] = str(log)
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]
        if jobs > 1:
            command += ["-n", str(jobs), "--dist=worksteal"]
        with subprocess.Popen(
            [*command, *harness.tests], cwd=ROOT, env=env, text=True, process_group=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            lines = _follow(process, log, harness, tell)
        counts = read_counts(lines, log.read_text(encoding="utf-8").splitlines())
    summary = Counter({
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)\b", lines[-1])
    })  # fmt: skip
    failures = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    if not counts[harness.unit] and not summary["skipped"]:
        failures.append(f"counted no {harness.unit}")
    return Result(
        harness, process.returncode == 0, time.monotonic() - started, counts, summary["passed"],
        summary["skipped"], failures,
    )  # fmt: skip


def _follow(
    process: subprocess.Popen[str], log: Path, harness: Harness, tell: Callable[[str], None]
) -> list[str]:
    lines: list[str] = []
    assert process.stdout is not None

    def watch() -> None:
        while process.poll() is None:
            seen = read_counts([], log.read_text(encoding="utf-8").splitlines())
            tell(f"{seen[harness.unit]:,} {harness.unit}" if seen[harness.unit] else "")
            time.sleep(1.0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        lines.extend(line.rstrip("\n") for line in process.stdout)
        process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        watcher.join()
    return lines or [""]


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt a harness and all its processes; kill what is left of them after a while, or after
    another Ctrl-C."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.communicate(timeout=_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_counts(lines: Iterable[str], log: Iterable[str]) -> Counter[str]:
    """Add up counters: the JSON lines of a log, and dicts of integers in printed lines."""
    counts: Counter[str] = Counter()
    for line in log:
        counts.update(json.loads(line)["counts"])
    for line in lines:
        if '"harness"' in line:
            continue  # it is in the log as well
        for text in re.findall(r"\{[^{}]*\}", line):
            try:
                value = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                continue
            if isinstance(value, dict) and all(type(number) is int for number in value.values()):
                counts.update({str(name): number for name, number in value.items()})
        counts["kills"] += sum(map(int, re.findall(r"\bkills (\d+)", line)))
    return +counts


def bars(title: str, rows: list[tuple[str, float, str]]) -> str:
    """Draw horizontal bars on a logarithmic scale, as SVG: name, value, label."""
    from math import log10

    rows = [row for row in rows if row[1] > 0]
    most = max((log10(1 + value) for _, value, _ in rows), default=1.0)
    width, left, step = 760, 170, 24
    height = 44 + step * len(rows)
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
            ' font-family="sans-serif" font-size="12">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, value, label) in enumerate(rows):
        y = 36 + step * number
        length = max(2.0, (width - left - 130) * log10(1 + value) / most)
        colour = _COLOURS[number % 2]
        out += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="17" fill="{colour}"/>',
            f'<text x="{left + length + 6:.1f}" y="{y + 13}">{escape(label)}</text>',
        ]
    return "\n".join([*out, "</svg>", ""])


def report(
    results: list[Result], *, command: str, seconds: float, seed: int, commit: str, left: int = 0
) -> str:
    """Write the plots and return the text of the report; `left` harnesses haven't run yet."""
    OUT.mkdir(parents=True, exist_ok=True)
    counts = {result.harness.name: result.counts for result in results}
    plots = {
        "size": bars(
            "How much was tried (logarithmic)",
            [
                (r.harness.name, r.size or r.tests,
                 f"{r.size or r.tests:,} {r.harness.unit if r.size else 'tests'}")
                for r in results
            ],
        ),
        "time": bars(
            "Seconds (logarithmic)",
            [(r.harness.name, r.seconds, f"{r.seconds:,.0f} s") for r in results],
        ),
        "events": bars(
            "What the histories went through (logarithmic)",
            [(n, c, f"{c:,}") for n, c in sorted(counts.get("simulate", Counter()).items())],
        ),
    }  # fmt: skip
    for name, svg in plots.items():
        (OUT / f"{name}.svg").write_text(svg, encoding="utf-8")
    servers = ", ".join(found.full for found in find_servers()) or "none"
    headline = "Every harness passed."
    if left:
        headline = f"NOT complete: {left} of {left + len(results)} harnesses haven't run."
    if not all(result.good for result in results):
        headline = "NOT every harness passed." + (f" {headline}" if left else "")
    lines = [
        "# The latest proof",
        "",
        "<!-- Written by `python -m tools.prove`. What it means: ../proof.md -->",
        "",
        (
            f"`{command}`,"
            f" {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit},"
            f" PostgreSQL {servers}, Python {platform.python_version()},"
            f" {os.cpu_count()} cores, {seconds / 60:,.0f} minutes."
            f" **{headline}**"
        ),
        "",
        "| harness | what | tried | tests | seconds | |",
        "|---|---|---:|---:|---:|---|",
    ]
    for r in results:
        size = f"{r.size:,} {r.harness.unit}" if r.size else ""
        tests = f"{r.tests}" + (f", {r.skipped} skipped" if r.skipped else "")
        verdict = r.verdict if r.good else f"**{r.verdict}**"
        lines.append(
            f"| {r.harness.name} | {r.harness.what} | {size} | {tests if r.harness.tests else ''}"
            f" | {r.seconds:,.1f} | {verdict} |"
        )
    for r in results:
        lines += [f"\n{r.harness.name} failed:\n"] if r.failures else []
        lines += [f"- `{failure[:160]}`" for failure in r.failures[:20]]
    lines += [
        "",
        f"First seed: {seed}. [Faults found](../proof.md#faults-found) so far, and their cures.",
    ]
    lines += ["", "![how much](size.svg)", "", "![time](time.svg)", "", "![events](events.svg)"]
    lines += ["", "## What each has seen", ""]
    for r in results:
        if r.counts:
            seen = ", ".join(f"{name} {count:,}" for name, count in sorted(r.counts.items()))
            lines += [f"**{r.harness.name}**: {f'{r.rate}; ' if r.rate else ''}{seen}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _commit() -> str:
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return answer.stdout.strip() or "unknown"


def main(arguments: list[str]) -> int:
    """Run the harnesses; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts, for minutes")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these; no report")
    parser.add_argument("--scale", type=_scale, default=1.0, help="of the large counts")
    parser.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the histories")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    options = parser.parse_args(arguments)
    if options.list:
        for one in HARNESSES:
            print(f"{one.name:14} {one.what}; large: {dict(one.full) or 'as in CI'}")
        return 0
    chosen = [one for one in HARNESSES if not options.only or one.name in options.only]
    unknown = set(options.only or ()) - {one.name for one in HARNESSES}
    if unknown:
        parser.error(f"no such harness: {', '.join(sorted(unknown))}")
    results: list[Result] = []
    options.commit = _commit()  # a run takes hours
    try:
        for result in _run_all(chosen, options):
            results.append(result)
            if not options.only:
                _write(results, options, left=len(chosen) - len(results))
    except KeyboardInterrupt:
        kept = "" if options.only or not results else f"; {_target()} has what they did"
        print(f"interrupted: {len(results)} of {len(chosen)} harnesses ran{kept}", file=sys.stderr)
        return 130
    return 0 if all(result.good for result in results) else 1


def _scale(text: str) -> float:
    least, most = _SCALES
    with suppress(ValueError):
        if least < float(text) <= most:
            return float(text)
    raise argparse.ArgumentTypeError(f"a number above {least:g}, up to {most:g}")


def _jobs(text: str) -> int:
    with suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError("a whole number from 1")


def _run_all(chosen: list[Harness], options: Any) -> Iterator[Result]:
    """Run these, one after the other, and show how far they are."""
    console = Console()
    with Progress(
        TextColumn("{task.description:<14}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[more]}"), console=console,
    ) as progress:  # fmt: skip
        whole = progress.add_task("all", total=len(chosen), more="")
        for harness in chosen:
            task = progress.add_task(harness.name, total=None, more="")
            result = _run(harness, options, lambda text, t=task: progress.update(t, more=text))  # type: ignore[misc]
            progress.remove_task(task)
            progress.advance(whole)
            console.print(_line(result), highlight=False)
            yield result
    if not options.only:
        console.print(f"Written: {_target()}")


def _target() -> Path:
    path = OUT / "report.md"
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _write(results: list[Result], options: Any, *, left: int) -> None:
    """Write the report as far as it goes."""
    command = "make prove"
    if options.quick:
        command += " ARGS=--quick"
    elif options.scale != 1:
        command += f' ARGS="--scale {options.scale:g}"'
    seconds = sum(result.seconds for result in results)
    text = report(
        results, command=command, seconds=seconds, seed=options.seed, commit=options.commit,
        left=left,
    )  # fmt: skip
    (OUT / "report.md").write_text(text, encoding="utf-8")


def _run(harness: Harness, options: Any, tell: Callable[[str], None]) -> Result:
    sizes = dict(harness.quick if options.quick else harness.full)
    if not options.quick:
        sizes = {
            name: size if name in _UNSCALED else max(1, round(size * options.scale))
            for name, size in sizes.items()
        }
    if not harness.tests:
        histories = sizes["SIMULATE_HISTORIES"]
        return simulate(Settings(histories, seed=options.seed, jobs=options.jobs), tell)
    if harness.seed:
        sizes[harness.seed] = options.seed
    return pytest(harness, sizes, options.jobs, tell)


def _line(result: Result) -> str:
    size = f"{result.size:,} {result.harness.unit}" if result.size else f"{result.tests} tests"
    told = f"{result.harness.name:14} {size}, {result.seconds:,.1f} s"
    colour = "green" if result.good else "yellow" if result.well and result.skipped else "bold red"
    return "\n".join(
        [f"[{colour}]{result.verdict}[/] {told}", *(f"  {f}" for f in result.failures[:5])]
    )


if __name__ == "__main__":
    # The harnesses have process groups of their own: nobody else would end them.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
