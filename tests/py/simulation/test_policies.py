"""A user's own adapter model and processor are simulated, and their faults are found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trex_client.cli import make_app
from trex_client.simulate import (
    Failure,
    Outcome,
    PolicyNotFound,
    Settings,
    load_policy,
    run,
    runner,
    search,
    shrink,
)

HERE = "tests.py.simulation.policies"
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", [f"{HERE}:Plain", f"{HERE}:made"])
def test_a_good_policy_keeps_every_invariant(name: str) -> None:
    outcome = run(Settings(histories=200, policy=name, jobs=1))
    assert outcome.failure is None
    assert outcome.counts["delivered"] > 500
    assert outcome.counts["pauses"] == 0


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("TimeoutIsFailure", "I14"),
        ("TimeoutIsSuccess", "I3"),
        ("Blind", "I14"),
        ("NewKey", "I3"),
        ("SecondKey", "I14"),
        ("OtherBody", "I14"),
        ("Sleeps", "policy"),
        ("AsksForEver", "policy"),
        ("Raises", "I19"),
        ("NoResult", "I19"),
        ("MadeTwice", "error"),
    ],
)
def test_a_bad_policy_is_found(name: str, invariant: str) -> None:
    outcome = run(Settings(histories=2000, policy=f"{HERE}:{name}", jobs=1))
    assert outcome.failure is not None
    assert outcome.failure.invariant == invariant
    assert outcome.failure.repeats


@pytest.mark.criterion("ac-0040")
def test_a_failure_that_does_not_come_again_is_told_all_the_same() -> None:
    settings = Settings(histories=200, policy=f"{HERE}:LiesOnce", jobs=1)
    failure = run(settings).failure
    assert failure is not None
    assert (failure.invariant, failure.repeats) == ("I3", False)
    assert failure.seed > 1
    assert "the policy is random or keeps state between histories" in failure.text
    assert shrink(settings, failure) is failure
    done = CliRunner().invoke(
        make_app(), ["simulate", "-j", "1", "-n", "200", "--policy", f"{HERE}:LiesOnce"]
    )
    assert done.exit_code == 12
    (row,) = [row for row in map(json.loads, done.stdout.splitlines()) if "invariant" in row]
    assert row["repeats"] is False


def test_a_run_that_played_less_than_asked_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "play_many", lambda _settings, _first, number: Outcome(number - 1))
    with pytest.raises(RuntimeError):
        run(Settings(histories=300, jobs=1))


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("Sleeps", "await asyncio.sleep(0)", "may await only sink.post(), sink.get() and"),
        ("AsksForEver", "            await self.sink.get", "asks without end"),
    ],
)
def test_a_wrong_await_is_named_by_its_place(name: str, line: str, says: str) -> None:
    failure = run(Settings(histories=20, policy=f"{HERE}:{name}", jobs=1)).failure
    assert failure is not None
    source = (ROOT / "tests/py/simulation/policies.py").read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, text in enumerate(source, 1) if line in text]
    assert f"tests/py/simulation/policies.py:{number}" in failure.text
    assert says in failure.text


@pytest.mark.parametrize(
    "name", ["nowhere.at.all:Policy", f"{HERE}:Missing", f"{HERE}:NOT_A_POLICY", HERE, "", ":"]
)
def test_what_is_no_policy_is_refused(name: str) -> None:
    with pytest.raises(PolicyNotFound):
        load_policy(name)


COMMAND = (sys.executable, "-c", "from trex_client.cli import main; main()", "simulate")
ENV = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}


def simulate(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, timeout=250, env=ENV
    )


@pytest.mark.criterion("ac-0040")
def test_the_command_prints_counts_and_a_result() -> None:
    done = simulate("--histories", "200", "--jobs", "1", "--seed", "9")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[-1]["record"] == "result"
    assert (rows[-1]["good"], rows[-1]["histories"], rows[-1]["steps"]) == (True, 200, 10000)
    counts = {row["name"]: row["count"] for row in rows if row["record"] == "count"}
    assert counts["claims"] > 500


@pytest.mark.criterion("ac-0040")
def test_the_command_shortens_and_says_how_to_play_it_again() -> None:
    bad = f"{HERE}:TimeoutIsFailure"
    done = simulate("--histories", "2000", "--jobs", "2", "--shrink", "--policy", bad)
    assert done.returncode == 12, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    (failure,) = [row for row in rows if row["record"] == "failure"]
    assert failure["invariant"] == "I14"
    assert len(failure["steps"]) < 12
    again = simulate(*failure["replay"].split()[2:])
    assert again.returncode == 12
    told = [json.loads(line) for line in again.stdout.splitlines()]
    assert [row["text"] for row in told if row["record"] == "step"] == failure["trace"]
    assert (told[-1]["record"], told[-1]["good"], told[-1]["replay"]) == ("result", False, True)
    assert told[-1]["broken"] == failure["text"]


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize(
    "arguments",
    [["--histories", "0"], ["--only", "x"], ["--only", "50"], ["--policy", "no:thing"],
     ["--steps", "0"], ["--exhaustive", "--policy", f"{HERE}:Plain"],
     ["--exhaustive", "--trace"], ["--exhaustive", "--depth", "0"], ["--depth", "3"]],
)  # fmt: skip
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(make_app(), ["simulate", *arguments]).exit_code == 2


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize(
    ("option", "unused"),
    [
        ("--exhaustive", ["--histories", "5000"]),
        ("--exhaustive", ["--steps", "50"]),
        ("--exhaustive", ["--seed", "1"]),
        ("--exhaustive", ["--jobs", "0"]),
        ("--trace", ["--shrink"]),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(option: str, unused: list[str]) -> None:
    done = CliRunner().invoke(make_app(), ["simulate", option, *unused])
    assert done.exit_code == 2
    assert option in done.output
    assert unused[0] in done.output


@pytest.mark.criterion("ac-0040")
def test_what_a_policy_prints_is_no_result() -> None:
    for jobs in ("1", "2"):
        done = simulate("-n", "100", "-j", jobs, "--policy", f"{HERE}:Prints")
        assert done.returncode == 0, done.stderr
        assert all(json.loads(line)["record"] for line in done.stdout.splitlines())
        assert "printed" in done.stderr


@pytest.mark.criterion("ac-0040")
def test_a_policy_that_ends_its_process_is_told() -> None:
    done = simulate("-n", "100", "-j", "2", "--policy", f"{HERE}:Leaves")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the policy ended it" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.criterion("ac-0040")
def test_the_example_of_the_docs_holds_and_its_fault_is_found(tmp_path: Path) -> None:
    page = (ROOT / "docs/delivery.md").read_text(encoding="utf-8")
    (code,) = [
        one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Policy" in one
    ]
    typed = re.findall(r"^trex (simulate --policy mymodel:.*)$", page, re.MULTILINE)
    (tmp_path / "mymodel.py").write_text(code, encoding="utf-8")
    good = simulate(*typed[0].split()[1:], "-n", "200", "-j", "1", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert code.count('Unknown("timeout")') == 1
    (tmp_path / "mymodel.py").write_text(code.replace('Unknown("timeout")', "Delivered()"))
    bad = simulate(*typed[0].split()[1:], "-n", "200", "-j", "1", cwd=tmp_path)
    assert bad.returncode == 12
    (failure,) = [row for row in map(json.loads, bad.stdout.splitlines()) if "invariant" in row]
    assert failure["invariant"] == "I3"


@pytest.mark.criterion("ac-0040")
def test_the_example_that_asks_holds_and_its_faults_are_found(tmp_path: Path) -> None:
    page = (ROOT / "docs/delivery.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    base, asking = (next(b for b in blocks if word in b) for word in ("Policy", "MyAskingModel"))
    code = f"""{base}
{asking}
class Asks(Policy):
    kinds = ("lookup",)
    def adapter(self, sink):
        return MyAskingModel(sink)
"""
    for old, new, invariant in (
        ("", "", None),
        ("if there else Absent()", "if there is not False else Absent()", None),
        ('return NotSure("timeout")', "return Absent()", "I14"),
        ("return Found() if there else Absent()", "return there", "policy"),
        ("(self, wire_key)", "(self, wire_key, context)", "policy"),
        ("in_flight = timedelta(seconds=5)", "in_flight = timedelta(seconds=1)", "I14"),
    ):
        assert old in code
        (tmp_path / "mymodel.py").write_text(code.replace(old, new) if old else code)
        done = simulate("--policy", "mymodel:Asks", "-n", "2500", "-j", "1", cwd=tmp_path)
        failures = [r["invariant"] for r in map(json.loads, done.stdout.splitlines())
                    if "invariant" in r]  # fmt: skip
        assert failures == ([invariant] if invariant else []), (new, done.stdout[-500:])
    wrong = code.replace("timedelta(seconds=5)", "5.0")
    (tmp_path / "mymodel.py").write_text(wrong)
    done = simulate("--policy", "mymodel:Asks", "-n", "10", "-j", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "in_flight" in done.stderr
    assert "must be a timedelta" in done.stderr


MODULE = """\
from trex_client.simulate import Policy, SimAdapter, SimSink

class Good(Policy):
    kinds = ("idempotent",)

class Wants(Policy):
    def __init__(self, url):
        self.url = url

class Empty(Policy):
    kinds = ()

class Unheard(Policy):
    kinds = ("magic",)

class Fails(Policy):
    def adapter(self, sink):
        raise ValueError("canary")

class NoSink(Policy):
    def sink(self, kind):
        return None

class Unsure(Policy):
    def adapter(self, sink):
        adapter = SimAdapter(sink)
        adapter.policy = "canary"
        return adapter

class Nothing(Policy):
    def adapter(self, sink):
        return object()

class Idle(Policy):
    def processor(self, instance_key, adapter, telemetry, runtime):
        return None

def boom():
    return {}["canary"]
"""
OTHERS = {
    "typo": "x = 1\ndef f(:\n",
    "boom": "import json\n\njson.loads('canary')\n",
    "needs": "import canary_that_is_not_there\n",
    "leaves": "raise SystemExit('canary')\n",
}


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine:Wants", ["Wants() fails: TypeError at mine.py:6;", "without arguments"]),
        ("mine:boom", ["boom() fails: KeyError at mine.py:39;"]),
        ("mine:Empty", ["kinds at mine.py:10 must be some of idempotent,", "at least one"]),
        ("mine:Unheard", ["kinds at mine.py:13 must be"]),
        ("mine:Fails", ["adapter() fails: ValueError at mine.py:18;"]),
        ("mine:NoSink", ["sink() at mine.py:21 must return a SimSink"]),
        ("mine:Unsure", ["policy at ", "must be one of idempotent, lookup, at_most_once"]),
        ("mine:Nothing", ["adapter() at mine.py:31 must return an adapter", "lacks deliver,"]),
        ("mine:Idle", ["processor() at mine.py:35 must return a processor"]),
        ("mine:Missing", ["mine has no Missing: name a Policy,"]),
        ("mine:SimSink.post", ["SimSink.post() fails: TypeError"]),
        ("json:loads", ["loads() fails: TypeError at ", "without arguments"]),
        ("json:__name__", ["json:__name__ isn't a trex_client.simulate.Policy: name a subclass"]),
        ("typo:X", ["typo fails on import: SyntaxError at typo.py:2; python -c 'import typo'"]),
        ("boom:X", ["boom fails on import: JSONDecodeError at boom.py:3;"]),
        ("needs:X", ["needs fails on import: ModuleNotFoundError at needs.py:1;"]),
        ("leaves:X", ["leaves fails on import: SystemExit at leaves.py:1;"]),
        ("nowhere:X", ["there is no module nowhere: check its name; it must be in the current"]),
        ("mine.sub:X", ["there is no module mine.sub"]),
        ("mine", ["name it as module:object, such as"]),
        (".mine:X", ["name it as module:object, such as"]),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(
    name: str, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    for module, text in OTHERS.items():
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("mine", *OTHERS):
        monkeypatch.delitem(sys.modules, module, raising=False)
    done = CliRunner().invoke(make_app(), ["simulate", "-n", "1", "--policy", name])
    assert done.exit_code == 2, done.output
    assert not [one for one in says if one not in done.output], done.output
    assert "canary" not in done.output
    assert "internal error" not in done.output


@pytest.mark.criterion("ac-0040")
def test_a_module_in_the_current_directory_is_found_by_all_processes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    done = simulate("-n", "150", "--jobs", "2", "--policy", "mine:Good", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_failure_says_what_the_adapter_raised() -> None:
    failure = run(Settings(histories=20, policy=f"{HERE}:Raises", jobs=1)).failure
    assert failure is not None
    assert "before that the adapter raised RuntimeError at tests/py/simulation/pol" in failure.text
    assert "canary" not in failure.text
    failure = run(Settings(histories=20, policy=f"{HERE}:NoResult", jobs=1)).failure
    assert failure is not None
    assert "before that the adapter answered with what is no result" in failure.text


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize("policy", [[], ["--policy", f"{HERE}:Plain"]])
def test_too_few_histories_are_no_proof(policy: list[str]) -> None:
    for number, good in (("1", False), ("99", False), ("100", True)):
        # Enough of everything is more than a hundred histories always have.
        if good and not policy:
            number = "200"
        done = CliRunner().invoke(make_app(), ["simulate", "-j", "1", "-n", number, *policy])
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.exit_code == (0 if good else 12)
        assert rows[-1]["good"] is good
        assert ("steps" in {row["name"] for row in rows if row["record"] == "too_few"}) is not good


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize("how", [["--trace"], ["--only", "0,1,2"]])
def test_a_replay_says_that_it_is_no_proof(how: list[str]) -> None:
    done = simulate("-n", "1", "-j", "1", *how)
    assert done.returncode == 0
    assert "a replay is no proof" in done.stderr


def test_of_several_failures_the_lowest_seed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    second_failed = threading.Event()

    def play_some(settings: Settings, first: int, number: int) -> Outcome:
        del settings
        if first == 101:
            second_failed.set()
        elif first == 1:
            assert second_failed.wait(60)
            time.sleep(0.2)  # its failure is told first
        failure = Failure(first + 7, (), "I1", "", ()) if first in (1, 101) else None
        return Outcome(number, failure=failure)

    monkeypatch.setattr(runner, "play_many", play_some)
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda jobs, *_: ThreadPoolExecutor(jobs))
    failure = run(Settings(histories=10_000, jobs=2)).failure
    assert failure is not None
    assert failure.seed == 8


def test_the_failure_is_the_same_with_any_number_of_jobs() -> None:
    policy = f"{HERE}:TimeoutIsFailure"
    alone = run(Settings(histories=400, policy=policy, jobs=1)).failure
    assert alone is not None
    assert run(Settings(histories=400, policy=policy, jobs=3)).failure == alone


def _parents() -> dict[int, int]:
    """Of every process that lives."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(stat.parent.name)] = int(parent)
    return found


def _children(parent: int) -> set[int]:
    return {one for one, its in _parents().items() if its == parent}


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_no_child_outlives_the_command(number: int) -> None:
    running = subprocess.Popen(
        [*COMMAND, "-n", "10000000", "-j", "2"], cwd=ROOT, env=ENV,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        # Two that play, and Python's own that keeps count of semaphores.
        while len(_children(running.pid)) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1.0)
        children = _children(running.pid)
        assert len(children) == 3
    finally:
        running.send_signal(number)
        running.wait()
    end = time.monotonic() + 30
    while left := children & _parents().keys():
        assert time.monotonic() < end, left
        time.sleep(0.05)


# A shell that runs this in the background may have turned SIGINT off.
INTERRUPTIBLE = (
    sys.executable, "-c",
    ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
     " from trex_client.cli import main, simulate; simulate.SECONDS_BETWEEN_LINES = 0; main()"),
    "simulate",
)  # fmt: skip


def begin(*arguments: str, path: str = str(ROOT)) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*INTERRUPTIBLE, *arguments], cwd=ROOT, env={**ENV, "PYTHONPATH": path}, text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def interrupted(running: subprocess.Popen[str]) -> str:
    """Press Ctrl-C once; what was left to read on stderr."""
    children = _children(running.pid)
    os.killpg(running.pid, signal.SIGINT)
    try:
        _, err = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    end = time.monotonic() + 30
    while left := children & _parents().keys():
        assert time.monotonic() < end, left
        time.sleep(0.05)
    return err


@pytest.mark.criterion("ac-0040")
@pytest.mark.parametrize("how", [["-j", "1"], ["-j", "2"], ["--trace"]])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_ctrl_c_ends_a_policy_that_hangs(how: list[str]) -> None:
    running = begin("--policy", f"{HERE}:Hangs", *how)
    assert running.stderr is not None
    assert running.stderr.readline() == "hangs\n"
    assert interrupted(running).removeprefix("hangs\n") == "trex: interrupted\n"


@pytest.mark.criterion("ac-0040")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_ctrl_c_ends_processes_that_begin(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if '--multiprocessing-fork' in sys.orig_argv:\n"
        "    print('begins', file=sys.stderr, flush=True)\n"
        "    time.sleep(300)\n"
    )
    running = begin("-j", "2", path=f"{tmp_path}:{ROOT}")
    assert running.stderr is not None
    assert [running.stderr.readline() for _ in range(2)] == ["begins\n"] * 2
    assert interrupted(running) == "trex: interrupted\n"


@pytest.mark.criterion("ac-0040")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_long_search_tells_how_far_it_is() -> None:
    running = begin("--exhaustive", "--depth", "40")
    assert running.stdout is not None
    row = json.loads(running.stdout.readline())
    assert (row["record"], row["name"]) == ("progress", search.MODELS[0].name)
    assert row["number"] > 0
    assert interrupted(running) == "trex: interrupted\n"


@pytest.mark.criterion("ac-0040")
def test_a_search_ends_at_its_depth_and_counts_the_states_of_every_model() -> None:
    done = simulate("--exhaustive", "--depth", "6")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["name"] for row in rows] == [model.name for model in search.MODELS]
    found = search.search(search.MODELS[0], depth=6)
    assert (rows[0]["states"], rows[0]["transitions"]) == (found.states, found.transitions)
    assert all((row["depth"], row["good"], row["complete"]) == (6, True, False) for row in rows)
