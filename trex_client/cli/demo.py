"""See it work: movements through faults to a ledger."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trex_client.cli._exit import ExitCode, leave, note
from trex_client.cli._output import line, wants_json
from trex_client.cli._run import conninfo, help_text
from trex_client.cli._types import DsnFile, Json, Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from trex_client.demo.books import Books, Table
    from trex_client.demo.place import Place
    from trex_client.demo.play import Outcome
    from trex_client.demo.source import Entry

_HELP = help_text(
    "Write movements of a file, deliver them through seeded faults to a ledger, and compare the"
    " ledger with the file to the last digit. Exit code 0 means: all equal, each movement posted"
    " once, and every promised fault has happened.\n\n"
    "Runs on a PostgreSQL of its own, or on the server of --dsn, TREX_DSN or libpq's variables, in"
    " databases and with roles of its own. Nothing stays behind unless --keep is given.",
    """
    trex demo
    trex demo --seed 7 --keep
    trex demo --file movements.ndjson --json
    TREX_DSN='host=db.example user=me' trex demo
    """,
)
_EXAMPLE = "examples/movements.csv"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("demo", help=_HELP, short_help="See it work.", rich_help_panel="Start here")
    def demo(
        file: Annotated[
            Path | None,
            typer.Option("--file", "-f", help="CSV or NDJSON instead of the example's movements."),
        ] = None,
        seed: Annotated[int, typer.Option("--seed", help="Which movements meet a fault.")] = 1,
        keep: Annotated[
            bool, typer.Option("--keep", help="Leave the databases, and say how to look around.")
        ] = False,
        dsn: Annotated[
            str | None,
            typer.Option(
                "--dsn",
                help="Server to use; everybody on this machine can read it, so a password belongs"
                " in TREX_DSN or PGPASSFILE.",
            ),
        ] = None,
        dsn_file: DsnFile = None,
        service: Service = None,
        json: Json = False,
    ) -> None:
        if dsn is not None and (dsn_file is not None or service is not None):
            raise typer.BadParameter("give one of --dsn, --dsn-file and --service")
        if dsn is None and (dsn_file is not None or service is not None):
            dsn = conninfo(dsn_file, service)
        _demo(file, seed, dsn, keep=keep, as_json=wants_json(asked=json))


def _demo(file: Path | None, seed: int, dsn: str | None, *, keep: bool, as_json: bool) -> None:
    from trex_client.demo import books, faults, play
    from trex_client.demo.place import NoPlace, given_dsn, start_server, use_server
    from trex_client.demo.source import BadFile, read

    begin = time.monotonic()
    path = file or _example()
    try:
        entries = read(path)
    except BadFile as error:
        leave(ExitCode.USAGE, f"{path.name}: {error}")
    plan = faults.deal(entries, seed)
    place: Place | None = None
    kept = False
    with _interruptible():
        try:
            given = given_dsn(dsn)
            with _Stage(len(entries), as_json=as_json) as stage:
                stage.phase("starting PostgreSQL" if given is None else "connecting")
                place = start_server() if given is None else use_server(given)
                stage.phase("migrating")
                place.set_up()
                stage.say(
                    f"PostgreSQL {place.version}: {len(entries)} movements of {path.name},"
                    f" seed {seed}"
                )
                outcome = play.Play(place, entries, plan, stage).perform()
                stage.phase("comparing")
                found = books.audit(place, outcome, plan)
            _print(found, outcome, as_json=as_json, seconds=time.monotonic() - begin)
            if keep:
                kept = True
                _look_around(place, entries)
        except NoPlace as error:
            leave(ExitCode.UNREACHABLE, str(error))
        except play.Broken as error:
            leave(ExitCode.FAILED, str(error))
        except KeyboardInterrupt:
            leave(ExitCode.INTERRUPTED, "interrupted")
        finally:
            _uninterruptible()
            if place is not None:
                try:
                    place.close(keep=kept)
                except NoPlace as error:
                    note(f"trex: {error}")
    if not found.good:
        raise typer.Exit(int(ExitCode.DIFFERENCES))


def _example() -> Path:
    """The example's file, in a clone or beside the installed package."""
    here = Path(__file__).resolve()
    found = [folder / _EXAMPLE for folder in (here.parents[2], here.parents[1])]
    found = [path for path in found if path.is_file()]
    if not found:
        leave(ExitCode.USAGE, "the example's movements aren't installed: name a file with --file")
    return found[0]


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _uninterruptible() -> None:
    """While cleaning up, a second Ctrl-C waits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class _Stage:
    """Shows progress on a terminal, or some lines on stderr."""

    def __init__(self, movements: int, *, as_json: bool) -> None:
        self._movements = movements
        self._console: Console | None = None
        self._bar: Progress | None = None
        self._tasks: list[TaskID] = []
        if as_json and not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._console = Console(stderr=as_json)
        self._bar = Progress(
            TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[more]}"), console=self._console,
        )  # fmt: skip

    def __enter__(self) -> _Stage:
        if self._bar is not None:
            self._bar.start()
            self._tasks = [
                self._bar.add_task(name, total=self._movements, more="")
                for name in ("written", "delivered")
            ]
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def phase(self, text: str) -> None:
        """Tell what happens before and after the run."""
        if self._bar is not None:
            self._bar.update(self._tasks[1], more=text)

    def say(self, text: str) -> None:
        """Tell that something has happened."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            note(text)

    def progress(self, written: int, delivered: int, parked: int) -> None:
        """Move the bars."""
        if self._bar is not None:
            self._bar.update(self._tasks[0], completed=written)
            more = f"{parked} parked" if parked else ""
            self._bar.update(self._tasks[1], completed=delivered, more=more)


def _print(found: Books, outcome: Outcome, *, as_json: bool, seconds: float) -> None:
    failed = [(what, detail) for what, passed, detail in found.checks if not passed]
    if as_json:
        for table in found.tables:
            for row in table.rows:
                line({"table": table.name, **row})
        for what, passed, detail in found.checks:
            line({"table": "checks", "check": what, "passed": passed, "detail": detail})
        line(
            {
                "table": "result",
                "good": found.good,
                "movements": len(outcome.entries),
                "seconds": round(seconds, 1),
            }
        )
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    for table in found.tables:
        _print_table(console, table)
    promises = RichTable(title="Promises", title_justify="left", title_style="bold")
    for name in ("", "promise", "found"):
        promises.add_column(name)
    for what, passed, detail in found.checks:
        if not what.startswith("fault: ") or not passed:
            mark = Text("kept", "green") if passed else Text("BROKEN", "bold red")
            promises.add_row(mark, Text(what), Text(detail))
    console.print(promises)
    words = f"{len(outcome.entries)} movements in {seconds:.1f} s: "
    if failed:
        console.print(Text(words + f"{len(failed)} promises were not kept", "bold red"))
    else:
        console.print(
            Text(words + "all equal to the last digit, each movement posted once", "bold green")
        )


def _print_table(console: Console, table: Table) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    if table.rows:
        names = list(table.rows[0])
        drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
        for name in names:
            number = not any(isinstance(row[name], str) for row in table.rows)
            drawn.add_column(name.replace("_", " "), justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*(Text(_cell(row, name)) for name in names))
        console.print(drawn)
        if table.note:
            console.print(Text(table.note, "dim"))
        console.print()


def _cell(row: Mapping[str, Any], name: str) -> str:
    from decimal import Decimal

    value = row[name]
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def _look_around(place: Place, entries: Sequence[Entry]) -> None:
    trex = Path(sys.argv[0]).resolve()
    psql = f"{place.bindir}/psql" if place.bindir else "psql"
    main, ledger = (_quoted(place.dsn(ledger=ledger)) for ledger in (False, True))
    note(
        f"Kept. Look around:\n"
        f"  export TREX_DSN={_quoted(place.dsn('operator'))}\n"
        f"  export TREX_INSTANCE={entries[0].instance} TREX_ACTOR=me\n"
        f"  {trex} parked\n"
        f"  {trex} cash\n"
        f"  {psql} {main} -c 'table trex.receipt limit 5'\n"
        f"  {psql} {ledger} -c 'table ledger.account limit 5'\n"
        f"Remove it:\n  " + place.by_hand().replace("\n", "\n  ")
    )


def _quoted(text: str) -> str:
    """For a shell; a connection string has single quotes inside."""
    return shlex.quote(text) if '"' in text or "$" in text or "\\" in text else f'"{text}"'
