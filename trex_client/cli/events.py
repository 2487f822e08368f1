"""Bring in a provider's events from a file: what was missed while nothing received them."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from trex_client._calls import Call, refused, render
from trex_client._calls_reconcile import AllCalls
from trex_client._events import Content, read_content
from trex_client.cli._exit import ExitCode, exit_codes, note
from trex_client.cli._input import is_stdin, stdin
from trex_client.cli._output import line, show, wants_json
from trex_client.cli._run import check_schema, connect, conninfo, help_text, instance_key
from trex_client.cli._types import (
    DsnFile,
    InputFile,
    InstanceOption,
    Json,
    PrintSql,
    Service,
)
from trex_client.cli.importer import AGAIN, progress_bar
from trex_client.errors import InvalidArgument
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from trex_client.model_inbox import Received

_NOTES = 20


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file, and what it says; None: it isn't JSON."""

    number: int
    raw: bytes
    content: Content | None

    @property
    def order(self) -> tuple[str, bytes]:
        """Of two runs at once neither waits for the other in a circle."""
        return (self.content.event_id or "" if self.content else "", self.raw)


def read_lines(stream: IO[bytes], object_id: str) -> Iterator[Line]:
    """The lines that aren't empty."""
    for number, raw in enumerate(stream, start=1):
        raw = raw.rstrip(b"\r\n")
        if raw.strip():
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                yield Line(number, raw, None)
            else:
                yield Line(number, raw, read_content(text, object_id))


class Backfill:
    """Receives events, some in each transaction, and counts what became of every one."""

    def __init__(
        self, conn: psycopg.Connection[Any], key: str, provider: str, account: str, *, each: bool
    ) -> None:
        self._conn = conn
        self._client = PostgresClient(conn, key)
        self._calls = AllCalls(key)
        self._from = (provider, account)
        self._each = each
        self.counts: Counter[str] = Counter()

    def store(self, batch: list[Line]) -> None:
        """Receive a batch; where one is refused, one by one, so that only that is left out."""
        good = [one for one in batch if one.content is not None]
        try:
            answers = self._receive(good)
        except InvalidArgument:
            answers = {}
            for one in good:
                try:
                    answers |= self._receive([one])
                except InvalidArgument as refusal:
                    self._refused(one, refused(refusal))
        for one in batch:
            if one.content is None:
                self._refused(one, "not JSON in UTF-8")
            elif one.number in answers:
                self._tell(one, answers[one.number])

    def _receive(self, batch: list[Line]) -> dict[int, Received]:
        with self._conn.transaction():
            return {
                one.number: self._client.run(call(self._calls, *self._from, one))
                for one in sorted(batch, key=lambda one: one.order)
            }

    def _tell(self, one: Line, answer: Received) -> None:
        self.counts[answer.status] += 1
        self.counts["differs"] += answer.differs
        if self._each:
            line({"line": one.number, **asdict(answer)})

    def _refused(self, one: Line, why: str) -> None:
        self.counts["invalid"] += 1
        if self._each:
            line({"line": one.number, "status": "invalid"})
        if self.counts["invalid"] <= _NOTES:
            note(f"line {one.number}: invalid: {why}")

    def summary(self) -> dict[str, int]:
        """Events read, and what became of them."""
        kinds = ("received", "deduplicated", "revived", "invalid")
        events = {kind: self.counts[kind] for kind in kinds}
        return {"events": sum(events.values()), **events, "differs": self.counts["differs"]}


def call(calls: AllCalls, provider: str, account: str, one: Line) -> Call[Received]:
    """The call for one line that is JSON."""
    content = one.content
    assert content is not None  # noqa: S101 - narrows a type
    return calls.receive(
        provider,
        account,
        content.event_id,
        content.event_type,
        content.object_id,
        one.raw,
        payload_json=content.payload_json,
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], int | None]]:
    if is_stdin(path):
        yield stdin(), None
        return
    try:
        stream = path.open("rb")
    except OSError:
        raise typer.BadParameter("the file can't be read", param_hint="FILE") from None
    with stream:
        yield stream, path.stat().st_size


def register(group: typer.Typer) -> None:
    """Add the command to the group `inbox`."""
    summary = (
        "Receive every event of an NDJSON file, one JSON object a line, as the provider's list of"
        " events has them: what was missed while nothing received it. Safe to run again, and beside"
        " live webhooks: known events count as deduplicated. There is no signature to verify: get"
        " the list from the provider itself."
    )
    examples = """
        stripe events list --limit 100 | jq -c '.data[]' > events.ndjson
        trex inbox backfill events.ndjson --provider stripe --account acct_main
        trex inbox backfill - --provider stripe --account acct_main --each < events.ndjson
        """

    @group.command("backfill", help=help_text(summary, examples, "TREX_INSTANCE"))
    def backfill(
        file: InputFile,
        provider: Annotated[
            str, typer.Option("--provider", help="Who sent them, as at the webhook endpoint.")
        ],
        account: Annotated[
            str, typer.Option("--account", help="Whose they are, as at the webhook endpoint.")
        ],
        object_id: Annotated[
            str, typer.Option("--object-id", help="Path of the object's id in an event.")
        ] = "data.object.id",
        batch: Annotated[
            int, typer.Option("--batch", min=1, max=10_000, help="Events in one transaction.")
        ] = 500,
        each: Annotated[
            bool, typer.Option("--each", help="One NDJSON line for each event instead of sums.")
        ] = False,
        instance: InstanceOption = "",
        dsn_file: DsnFile = None,
        service: Service = None,
        json: Json = False,
        print_sql: PrintSql = False,
    ) -> None:
        with exit_codes():
            key = instance_key(instance)
            with _opened(file) as (stream, size):
                lines = read_lines(stream, object_id)
                if print_sql:
                    for one in lines:
                        if one.content is None:
                            raise InvalidArgument(f"line {one.number}: not JSON in UTF-8")
                        typer.echo(render(call(AllCalls(key), provider, account, one)))
                    return
                with (
                    connect(conninfo(dsn_file, service)) as conn,
                    progress_bar("events", size) as progress,
                ):
                    check_schema(conn)
                    job = Backfill(conn, key, provider, account, each=each)
                    read = 0
                    try:
                        while chunk := list(islice(lines, batch)):
                            job.store(chunk)
                            read += sum(len(one.raw) + 1 for one in chunk)
                            progress(read)
                    except BaseException:
                        note(f"stopped after {job.summary()['events']} events: {AGAIN}")
                        raise
        totals = job.summary()
        if not each:
            show(totals, as_json=wants_json(asked=json), title=f"events for {key}")
        if totals["invalid"]:
            raise typer.Exit(int(ExitCode.DIFFERENCES))
