"""Bring movements in from a file."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from trex_client._calls import Calls, encode_json, refused, render
from trex_client._values import exact
from trex_client.cli._exit import ExitCode, exit_codes, leave, note
from trex_client.cli._input import KEY_TWICE, is_stdin, load_json, refuse_twins, stdin
from trex_client.cli._output import show, wants_json
from trex_client.cli._run import check_schema, connect, conninfo, help_text, instance_key
from trex_client.cli._types import (
    DsnFile,
    InputFile,
    InstanceOption,
    Json,
    PrintSql,
    Service,
    parse_duration,
)
from trex_client.errors import InvalidArgument
from trex_client.model import Movement
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIELDS = (
    "topic", "idempotency_key", "payload", "account", "currency", "cash_delta", "correlation_id",
    "ordering_key", "effect_policy", "delay",
)  # fmt: skip
_NOTES = 20
_PAYLOAD_TWINS = f"payload: {KEY_TWICE}"
AGAIN = "what is stored counts as there already when it is run again"
# How each line of a reject file begins.
_REJECTED = b'{"line": '
_LONGEST_FIELD = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of the file: where it is, what it says, and the movement or the field that is wrong,
    with an explanation after a colon where there is one.
    """

    line: int
    source: Any
    movement: Movement | None
    wrong: str | None = None


def read_rows(stream: IO[str], kind: str, topic: str | None) -> Iterator[SourceRow]:
    """Rows of a CSV or NDJSON file.

    Fields are those of `Movement`; `payload` is JSON. Where there is no field `payload`, all other
    fields become one object. `delay` is a duration such as `30s`. An empty CSV field is none.
    """
    yield from _csv_rows(stream, topic) if kind == "csv" else _ndjson_rows(stream, topic)


def _csv_rows(stream: IO[str], topic: str | None) -> Iterator[SourceRow]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(stream, strict=True)
    header = next(_cells(reader), (1, []))[1]
    if "idempotency_key" not in header or len(set(header)) != len(header):
        raise InvalidArgument("the first line must name each column once, idempotency_key too")
    if "payload" in header and set(header) - set(FIELDS):
        raise InvalidArgument("a column is unknown; extra columns are for files without payload")
    for line, cells in _cells(reader):
        if not cells:
            continue
        if len(cells) != len(header):
            yield SourceRow(line, cells, None, "columns")
            continue
        row: dict[str, Any] = {
            name: cell for name, cell in zip(header, cells, strict=True) if cell != ""
        }
        try:
            refuse_twins("payload", row.get("payload", ""))
        except InvalidArgument:
            yield SourceRow(line, row, None, _PAYLOAD_TWINS)
            continue
        yield _row(line, row, topic, payload_json=row.get("payload"))


def _cells(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line that each begins on. After a broken quote nobody can tell where the next
    row begins.
    """
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except csv.Error:
            raise InvalidArgument(
                f"line {line}: a quote isn't closed, or something follows a closed one"
            ) from None
        except StopIteration:
            return
        yield line, cells


def _ndjson_rows(stream: IO[str], topic: str | None) -> Iterator[SourceRow]:
    for line, text in enumerate(stream, start=1):
        if not text.strip():
            continue
        try:
            row, twice = load_json(text, parse_float=Decimal, parse_constant=_refuse_constant)
        except (ValueError, RecursionError, InvalidOperation):
            yield SourceRow(line, text.rstrip("\n"), None, "json")
            continue
        if not isinstance(row, dict):
            yield SourceRow(line, text.rstrip("\n"), None, "json")
        elif twice[-1]:
            yield SourceRow(line, text.rstrip("\n"), None, "a field is there twice")
        elif any(twice):
            yield SourceRow(line, text.rstrip("\n"), None, _PAYLOAD_TWINS)
        else:
            payload = row.get("payload")
            try:
                text_of_payload = encode_json(payload) if "payload" in row else None
            except InvalidArgument:
                yield SourceRow(line, row, None, "payload")
                continue
            yield _row(line, row, topic, payload_json=text_of_payload)


def _refuse_constant(_name: str) -> None:
    raise ValueError


def _row(
    line: int, row: dict[str, Any], topic: str | None, *, payload_json: str | None
) -> SourceRow:
    values: dict[str, Any] = {name: row[name] for name in FIELDS if name in row}
    values.pop("payload", None)
    extra = {name: value for name, value in row.items() if name not in FIELDS}
    if payload_json is not None and extra:
        return SourceRow(line, row, None, "unknown field")
    wrong = "topic"
    try:
        values.setdefault("topic", topic)
        wrong = "payload"
        values["payload_json"] = encode_json(extra) if payload_json is None else payload_json
        wrong = "cash_delta"
        values["cash_delta"] = _decimal(values.get("cash_delta"))
        wrong = "delay"
        values["delay"] = _delay(values.get("delay"))
    except (ValueError, TypeError, typer.BadParameter):
        return SourceRow(line, row, None, wrong)
    if "idempotency_key" not in values:
        return SourceRow(line, row, None, "idempotency_key")
    return SourceRow(line, row, Movement(**values))


def _decimal(value: object) -> Decimal | None:
    return None if value is None else exact(value)


def _delay(value: object) -> timedelta | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError
    return parse_duration(value)


@contextmanager
def _reject_file(path: Path | None, source: IO[str]) -> Iterator[IO[bytes] | None]:
    """The file for refused rows. Only one that is new, empty or of an earlier import is written
    over, and never the one that is read.
    """
    if path is None:
        yield None
        return
    try:
        # Not yet cut off: what is open is judged first, whatever its name is.
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        raise typer.BadParameter("the file can't be written", param_hint="--reject") from None
    with os.fdopen(number, "wb", buffering=0) as stream:
        there = os.fstat(number)
        with suppress(OSError):
            if os.path.samestat(there, os.fstat(source.fileno())):
                raise typer.BadParameter("this is the file that is read", param_hint="--reject")
        if stat.S_ISREG(there.st_mode):
            if os.pread(number, len(_REJECTED), 0) not in (b"", _REJECTED):
                raise typer.BadParameter(
                    "the file exists, and isn't of an earlier import", param_hint="--reject"
                )
            os.ftruncate(number, 0)
        yield stream


class Import:
    """Enqueues rows in batches, each a transaction, and counts what became of every row."""

    def __init__(self, client: PostgresClient, reject: IO[bytes] | None) -> None:
        self._client = client
        self._reject = reject
        self.counts: Counter[str] = Counter()

    def store(self, batch: list[SourceRow]) -> None:
        """Enqueue a batch. Where a row is refused, row by row, so that only that one is left
        out.
        """
        good: list[tuple[SourceRow, Movement]] = []
        for row in batch:
            if row.movement is None:
                self._refused(row, "invalid", row.wrong)
            else:
                good.append((row, row.movement))
        if not good:
            return
        try:
            self._enqueue(good)
        except InvalidArgument:
            for one in good:
                self._store_one(one)

    def _store_one(self, one: tuple[SourceRow, Movement]) -> None:
        try:
            self._enqueue([one])
        except InvalidArgument as refusal:
            self._refused(one[0], "invalid", refused(refusal).removeprefix("movement 1: "))

    def _enqueue(self, good: list[tuple[SourceRow, Movement]]) -> None:
        done = self._client.enqueue_many([m for _, m in good], on_conflict="report")
        for (row, _), result in zip(good, done, strict=True):
            if result.status == "conflict":
                self._refused(row, "conflict", "idempotency_key")
            else:
                self.counts[result.status] += 1

    def _refused(self, row: SourceRow, reason: str, wrong: str | None) -> None:
        self.counts[reason] += 1
        number = self.counts["invalid"] + self.counts["conflict"]
        if number <= _NOTES:
            note(f"line {row.line}: {reason}: {wrong}")
        elif number == _NOTES + 1:
            note("more rows were refused; --reject FILE names them all")
        if self._reject is not None:
            argument = (wrong or "").partition(": ")[0]
            entry = {"line": row.line, "reason": reason, "argument": argument, "row": row.source}
            text = (json.dumps(entry, default=str) + "\n").encode()
            try:
                whole = self._reject.write(text) == len(text)
            except OSError:
                whole = False
            if not whole:
                leave(ExitCode.FAILED, "the file of --reject can't be written")

    def summary(self) -> dict[str, int]:
        """Rows read, and what became of them."""
        kinds = ("enqueued", "duplicate", "conflict", "invalid")
        return {
            "rows": sum(self.counts.values()),
            **{kind: self.counts[kind] for kind in kinds},
        }


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar over the bytes read, when a person looks at stderr."""
    if not sys.stderr.isatty():
        yield lambda _position: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda position: bar.update(task, completed=position)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[str], int | None]]:
    """The file as text, and its size in bytes. What isn't UTF-8 becomes lone surrogates, refused
    row by row.
    """
    options: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": ""}
    if is_stdin(path):
        text = TextIOWrapper(stdin(), **options)
        try:
            yield text, None
        finally:
            text.detach()
        return
    try:
        stream = path.open(**options)
    except OSError:
        raise typer.BadParameter("the file can't be read", param_hint="FILE") from None
    with stream:
        yield stream, path.stat().st_size


def _kind(path: Path, given: str | None) -> str:
    if given is not None:
        return given
    return "csv" if path.suffix.lower() == ".csv" else "ndjson"


_HELP = help_text(
    "Enqueue every row of a CSV or NDJSON file, with exact counts. Safe to run again after any"
    " interruption: rows that are there already count as duplicates.\n\n"
    "Fields: topic, idempotency_key, payload (JSON), account, currency, cash_delta, correlation_id,"
    " ordering_key, effect_policy, delay. Without a field payload, all others become one object."
    " An object with a key twice is refused.",
    """
    trex import movements.csv --topic ledger.post
    trex import movements.ndjson --reject refused.ndjson
    zcat movements.ndjson.gz | trex import -
    """,
    "TREX_INSTANCE",
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(
        "import", help=_HELP, rich_help_panel="Outbox", short_help="Enqueue every row of a file."
    )
    def import_file(
        file: InputFile,
        topic: Annotated[
            str | None, typer.Option("--topic", help="Topic of rows that name none.")
        ] = None,
        kind: Annotated[
            Literal["csv", "ndjson"] | None,
            typer.Option(
                "--format", metavar="csv|ndjson", help="Default: csv for *.csv, else ndjson."
            ),
        ] = None,
        batch: Annotated[
            int, typer.Option("--batch", min=1, max=10_000, help="Rows in one transaction.")
        ] = 500,
        reject: Annotated[
            Path | None,
            typer.Option("--reject", help="New file for refused rows, as NDJSON."),
        ] = None,
        instance: InstanceOption = "",
        dsn_file: DsnFile = None,
        service: Service = None,
        json: Json = False,
        print_sql: PrintSql = False,
    ) -> None:
        with exit_codes():
            key = instance_key(instance)
            with _opened(file) as (stream, size):
                rows = read_rows(stream, _kind(file, kind), topic)
                if print_sql:
                    _print_sql(Calls(key), rows, batch)
                    return
                with (
                    _reject_file(reject, stream) as rejected,
                    connect(conninfo(dsn_file, service)) as conn,
                    progress_bar("import", size) as progress,
                ):
                    check_schema(conn)
                    job = Import(PostgresClient(conn, key), rejected)
                    try:
                        while chunk := list(islice(rows, batch)):
                            job.store(chunk)
                            if size is not None:
                                progress(stream.buffer.raw.tell())  # type: ignore[attr-defined]
                    except BaseException:
                        if job.counts:
                            note(f"stopped after {job.counts.total()} rows: {AGAIN}")
                        raise
        summary = job.summary()
        show(summary, as_json=wants_json(asked=json), title=f"import into {key}")
        if summary["conflict"] or summary["invalid"]:
            raise typer.Exit(int(ExitCode.DIFFERENCES))


def _print_sql(calls: Calls, rows: Iterator[SourceRow], batch: int) -> None:
    while chunk := list(islice(rows, batch)):
        for row in chunk:
            if row.movement is None:
                raise InvalidArgument(f"line {row.line}: {row.wrong}")
        movements = [row.movement for row in chunk if row.movement is not None]
        typer.echo(render(calls.enqueue_many(movements, on_conflict="report")))
