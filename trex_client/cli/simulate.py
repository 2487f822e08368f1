"""Seeded histories of the model, for our proofs and for a user's own adapter and policy."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trex_client.cli._exit import ExitCode, leave, note
from trex_client.cli._output import line, wants_json
from trex_client.cli._run import help_text
from trex_client.cli._types import Json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trex_client.simulate import Failure, Outcome, Settings
    from trex_client.simulate.search import Found

SECONDS_BETWEEN_LINES = 10.0
_HELP = help_text(
    "Play random histories of the in-memory model: workers that crash, freeze and report late,"
    " clocks that jump, ledgers that lose, delay and misreport, operators, ordering keys, two"
    " instances. Every invariant is checked after each step; then the faults stop and everything"
    " must end. Needs no database.\n\n"
    "A history is its seed: a failure prints the command that plays it again. With --policy the"
    " adapter model and processor are your own: a subclass of trex_client.simulate.Policy. Exit"
    " code 12: an invariant broke, or the run has seen too little to prove anything, as any of less"
    " than 5,000 steps has. With --trace or --only it is a replay, and no proof.",
    """
    trex simulate
    trex simulate --histories 1000000 --seed 7
    trex simulate --seed 4711 --histories 1 --trace
    trex simulate --policy myservice.sim:Policy --shrink
    trex simulate --exhaustive
    """,
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(
        "simulate", help=_HELP, short_help="Prove the rules, or your own adapter's, by histories."
    )
    def simulate(
        ctx: typer.Context,
        histories: Annotated[
            int, typer.Option("--histories", "-n", min=1, help="How many to play.")
        ] = 5000,
        steps: Annotated[
            int, typer.Option("--steps", min=1, max=10_000, help="Steps of each, before the end.")
        ] = 50,
        seed: Annotated[
            int, typer.Option("--seed", min=0, help="Seed of the first; the others follow.")
        ] = 1,
        jobs: Annotated[
            int, typer.Option("--jobs", "-j", min=0, help="Processes; 0 is one for each core.")
        ] = 0,
        policy: Annotated[
            str | None,
            typer.Option("--policy", help="Your own, as module:object; the worker's by default."),
        ] = None,
        shrink: Annotated[
            bool, typer.Option("--shrink", help="Shorten a history that fails.")
        ] = False,
        only: Annotated[
            str | None,
            typer.Option(
                "--only", help="Play only these steps, such as 0,3,17; printed by --shrink."
            ),
        ] = None,
        trace: Annotated[
            bool, typer.Option("--trace", help="Tell the steps of the first history, and end.")
        ] = False,
        exhaustive: Annotated[
            bool,
            typer.Option("--exhaustive", help="Instead, visit every state of small models."),
        ] = False,
        depth: Annotated[
            int,
            typer.Option("--depth", min=1, help="Longest path of --exhaustive, in steps."),
        ] = 10,
        json: Json = False,
    ) -> None:
        from trex_client.simulate import PolicyNotFound, ProcessEnded, Settings, load_policy

        given = {
            f"--{name}"
            for name in ctx.params
            if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
        }
        if exhaustive:
            _refuse("--exhaustive", given - {"--exhaustive", "--depth", "--json"})
        elif "--depth" in given:
            raise typer.BadParameter("only with --exhaustive", param_hint="--depth")
        elif trace:
            _refuse("--trace", given & {"--shrink"})
        settings = Settings(
            histories=histories, steps=steps, seed=seed, jobs=jobs, policy=policy,
            only=_numbers(only, steps),
        )  # fmt: skip
        as_json = wants_json(asked=json)
        try:
            load_policy(policy)
            if exhaustive:
                code = _search(depth, as_json=as_json)
            elif trace:
                code = _trace(settings, as_json=as_json)
            else:
                code = _histories(settings, shorten=shrink, as_json=as_json)
        except PolicyNotFound as error:
            leave(ExitCode.USAGE, f"--policy: {error}")
        except ProcessEnded as error:
            leave(ExitCode.FAILED, str(error))
        except KeyboardInterrupt:
            leave(ExitCode.INTERRUPTED, "interrupted")
        raise typer.Exit(int(code))


def _refuse(option: str, unused: set[str]) -> None:
    if unused:
        raise typer.BadParameter(f"leave out {' and '.join(sorted(unused))}", param_hint=option)


def _numbers(text: str | None, steps: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) < steps for part in parts):
        raise typer.BadParameter("step numbers such as 0,3,17", param_hint="--only")
    return tuple(int(part) for part in parts)


def _trace(settings: Settings, *, as_json: bool) -> ExitCode:
    from trex_client.simulate.runner import follow

    broken, lines = follow(settings)
    for told in lines:
        if as_json:
            line({"record": "step", "text": told})
        else:
            typer.echo(told)
    if as_json:
        line({
            "record": "result", "good": broken is None, "replay": True, "seed": settings.seed,
            "broken": broken,
        })  # fmt: skip
    if broken is not None:
        note(f"trex: {broken}")
        return ExitCode.DIFFERENCES
    note("trex: every invariant held in this one; a replay is no proof")
    return ExitCode.OK


def _histories(settings: Settings, *, shorten: bool, as_json: bool) -> ExitCode:
    from trex_client.simulate import run, shrink

    with _progress("histories", settings.histories, as_json=as_json) as update:
        outcome = run(settings, lambda so_far: update(so_far.histories, _rate(so_far)))
    failure = outcome.failure
    if failure is not None and shorten:
        with _progress("steps", len(failure.steps), as_json=as_json) as update:
            failure = shrink(settings, failure, lambda left: update(left, "left"))
    missing: dict[str, tuple[int, float]] = {}
    if failure is None and settings.only is None:
        missing = outcome.missing() if settings.policy is None else outcome.missing_steps()
    if as_json:
        _print_json(settings, outcome, failure, missing)
    else:
        _print(outcome, good=not missing)
    for name, (seen, least) in missing.items():
        note(f"trex: too few to prove anything: {name}: {seen} of at least {least:.0f}")
    if failure is None and settings.only is not None:
        note("trex: every invariant held in these steps; a replay is no proof")
    if failure is not None:
        _print_failure(settings, failure)
    return ExitCode.DIFFERENCES if failure is not None or missing else ExitCode.OK


def _rate(outcome: Outcome) -> str:
    if not (outcome.seconds and outcome.cpu_seconds):
        return ""
    all_cores, one = outcome.histories / outcome.seconds, outcome.histories / outcome.cpu_seconds
    return f"{all_cores:,.0f} histories/s, {one:,.0f}/s a core"


def _print_json(
    settings: Settings,
    outcome: Outcome,
    failure: Failure | None,
    missing: dict[str, tuple[int, float]],
) -> None:
    for name, count in sorted(outcome.counts.items()):
        line({"record": "count", "name": name, "count": count})
    for name, (seen, least) in missing.items():
        line({"record": "too_few", "name": name, "count": seen, "least": round(least)})
    if failure is not None:
        line(
            {
                "record": "failure",
                "invariant": failure.invariant,
                "text": failure.text,
                "seed": failure.seed,
                "steps": list(failure.steps),
                "trace": list(failure.trace),
                "repeats": failure.repeats,
                "replay": _replay(settings, failure),
            }
        )
    line(
        {
            "record": "result",
            "good": failure is None and not missing,
            "replay": settings.only is not None,
            "histories": outcome.histories,
            "steps": outcome.steps,
            "seed": settings.seed,
            "seconds": round(outcome.seconds, 2),
            "cpu_seconds": round(outcome.cpu_seconds, 2),
        }
    )


def _print(outcome: Outcome, *, good: bool) -> None:
    from rich.columns import Columns
    from rich.console import Console
    from rich.text import Text

    console = Console()
    cells = [
        Text.assemble((f"{count:>9,} ", "bold"), name)
        for name, count in sorted(outcome.counts.items())
    ]
    console.print(Columns(cells, padding=(0, 2), column_first=True))
    words = (
        f"{outcome.histories:,} histories, {outcome.steps:,} steps in {outcome.seconds:.1f} s"
        f" ({_rate(outcome)})"
    )
    if outcome.failure is None and good:
        console.print(Text(words + ": every invariant held", "bold green"))
    elif outcome.failure is None:
        console.print(Text(words + ": every invariant held, but that proves nothing", "bold red"))
    else:
        console.print(Text(words + ": an invariant broke", "bold red"))


def _print_failure(settings: Settings, failure: Failure) -> None:
    for told in failure.trace:
        note(told)
    note(f"trex: {failure.text}")
    note(f"Again: {_replay(settings, failure)}")


def _replay(settings: Settings, failure: Failure) -> str:
    words = [f"trex simulate --seed {failure.seed} --histories 1 --steps {settings.steps} --trace"]
    if len(failure.steps) < settings.steps:
        words.append("--only " + ",".join(map(str, failure.steps)))
    if settings.policy is not None:
        words.append(f"--policy {settings.policy}")
    return " ".join(words)


def _search(depth: int, *, as_json: bool) -> ExitCode:
    from trex_client.simulate.search import MODELS, search

    good = True
    for model in MODELS:
        with _progress(model.name, None, as_json=as_json) as update:
            found = search(
                model,
                depth=depth,
                progress=lambda n, u=update: u(n, "states"),  # type: ignore[misc]
            )
        good = good and found.broken is None and not found.missing()
        _print_found(found, as_json=as_json)
    return ExitCode.OK if good else ExitCode.DIFFERENCES


def _print_found(found: Found, *, as_json: bool) -> None:
    if as_json:
        line(
            {
                "record": "model",
                "name": found.name,
                "good": found.broken is None and not found.missing(),
                "states": found.states,
                "transitions": found.transitions,
                "depth": found.depth,
                "complete": found.complete,
                "counts": dict(sorted(found.counts.items())),
                "broken": found.broken,
                "path": list(found.path),
            }
        )
    else:
        end = "all" if found.complete else f"to depth {found.depth}"
        typer.echo(f"{found.name}: {found.states:,} states, {found.transitions:,} steps, {end}")
    sys.stdout.flush()
    for name in found.missing():
        note(f"trex: {found.name}: never seen: {name}")
    if found.broken is not None:
        for number, step in enumerate(found.path):
            note(f"{number:3} {step}")
        note(f"trex: {found.broken}")


@contextmanager
def _progress(
    name: str, total: int | None, *, as_json: bool
) -> Iterator[Callable[[int, str], None]]:
    """A bar on stderr, if somebody looks there; otherwise a line of NDJSON now and then."""
    if not sys.stderr.isatty():
        told = time.monotonic()

        def tell(number: int, _text: str) -> None:
            nonlocal told
            if as_json and time.monotonic() - told >= SECONDS_BETWEEN_LINES:
                line({"record": "progress", "name": name, "number": number, "total": total})
                sys.stdout.flush()
                told = time.monotonic()

        yield tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[Any] = [
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[more]}"),
    ]  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total, more="")
        yield lambda number, text: bar.update(task, completed=number, more=text)
