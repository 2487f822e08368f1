"""Claim messages and say what became of them: what a worker does, by hand or from a script."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trex_client._calls import Call, Calls
from trex_client._values import exact
from trex_client.cli._input import KEY_TWICE, load_json, read_text
from trex_client.cli._run import call_command
from trex_client.cli._types import (
    Absent,
    Balance,
    BoxOption,
    Confirmed,
    Delay,
    DueAfter,
    Fence,
    InputFile,
    Lease,
    Limit,
    MessageId,
    ReasonCode,
    Reference,
    Version,
    Worker,
    parse_duration,
)
from trex_client.errors import InvalidArgument
from trex_client.model import RESULTS, Report

PANEL = "Claims"

_HINT_AFTER = Annotated[int, typer.Option("--after", help="Hint of a worker's loop.")]
_DURATION = {"parser": parse_duration, "metavar": "DURATION"}


def read_reports(path: Path) -> list[Report]:
    """Reports from NDJSON: objects with the fields of `Report`; money as a string or an exact
    number, `delay` as a duration (`30s`) or a number of seconds.

    Raises:
        InvalidArgument: naming the line, and the field where there is one.
    """
    reports: list[Report] = []
    for number, text in enumerate(read_text(path).splitlines(), start=1):
        if not text.strip():
            continue
        field: str | None = "not JSON"
        with suppress(ValueError, ArithmeticError, RecursionError):
            row, twice = load_json(text, parse_float=Decimal)
            field = None if isinstance(row, dict) else "not an object"
            if any(twice):
                field = KEY_TWICE
        if field is None:
            field = _report_field(row, reports)
        if field is not None:
            raise InvalidArgument(f"line {number}: {field}")
    return reports


def _report_field(row: dict[str, Any], reports: list[Report]) -> str | None:
    """Append the report, or name the field that is wrong."""
    fields = Report.__dataclass_fields__
    if not set(row) <= set(fields):
        return "unknown field"
    for needed in ("message_id", "fence", "result"):
        if needed not in row:
            return f"{needed} is missing"
    if row["result"] not in RESULTS:
        return "result"
    try:
        if row.get("balance") is not None:
            row["balance"] = exact(row["balance"])
    except ValueError:
        return "balance"
    delay = row.get("delay")
    try:
        if isinstance(delay, str):
            row["delay"] = parse_duration(delay)
        elif delay is not None:
            row["delay"] = timedelta(microseconds=int(exact(delay) * 1_000_000))
    except (typer.BadParameter, OverflowError, ValueError):
        return "delay"
    reports.append(Report(**row))
    return None


def register(app: typer.Typer) -> None:
    """Add the commands."""
    _register_claims(app)
    _register_outcomes(app)
    _register_batches(app)


def _register_claims(app: typer.Typer) -> None:
    @call_command(
        app,
        "claim",
        """
        trex claim --worker w1 -n 10
        trex claim --worker w1 --correlation order-17 --lease 2m
        """,
        panel=PANEL,
    )
    def claim(
        calls: Calls,
        worker: Worker,
        limit: Limit = 1,
        lease: Lease = None,
        box: BoxOption = "outbox",
        correlation_id: Annotated[
            str | None, typer.Option("--correlation", help="Only what belongs to this.")
        ] = None,
        after: _HINT_AFTER = 0,
        due_after: DueAfter = None,
    ) -> Call[Any]:
        """Lease messages to a worker; each gets a fence. The payload is only in the JSON output."""
        return calls.claim(
            worker,
            limit,
            lease=lease,
            box=box,
            correlation_id=correlation_id,
            after=after,
            due_after=due_after,
        )

    @call_command(app, "extend", "trex extend 4711 4398046511105 --lease 1m", panel=PANEL)
    def extend(calls: Calls, message_id: MessageId, fence: Fence, lease: Lease = None) -> Call[Any]:
        """Prolong the lease of a claim; never shortens it."""
        return calls.extend([message_id], [fence], lease=lease)

    @call_command(app, "release", "trex release 4711 4398046511105", panel=PANEL)
    def release(
        calls: Calls, message_id: MessageId, fence: Fence, reason: ReasonCode = "not_started"
    ) -> Call[Any]:
        """Give a claim back that wasn't worked on; it costs no try."""
        return calls.release(message_id, fence, reason=reason, on_lost="report")

    @call_command(app, "postpone", "trex postpone 4711 4398046511105 --delay 10m", panel=PANEL)
    def postpone(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        delay: Annotated[
            timedelta, typer.Option("--delay", help="For how long, 0s to 30d.", **_DURATION)
        ],
        reason: ReasonCode = "waiting",
    ) -> Call[Any]:
        """Give a claim back that waits for something else; it costs no try."""
        return calls.postpone(message_id, fence, delay, reason=reason, on_lost="report")

    @call_command(app, "mark-sent", "trex mark-sent 4711 4398046511105", panel=PANEL)
    def mark_sent(calls: Calls, message_id: MessageId, fence: Fence) -> Call[Any]:
        """Note that a call which can't be repeated goes out now."""
        return calls.mark_sent(message_id, fence, on_lost="report")

    @call_command(app, "hold", "trex hold 4711 4398046511105", panel=PANEL)
    def hold(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        timeout: Annotated[
            timedelta, typer.Option("--timeout", help="100ms to 10m.", **_DURATION)
        ] = "10s",  # type: ignore[assignment]  # Typer parses it
    ) -> Call[Any]:
        """Check that a claim is the current one. The lock itself is for transactions: see
        --print-sql.
        """
        return calls.hold(message_id, fence, timeout=timeout)

    @call_command(app, "listen", "trex listen --worker w1 --duration 1m", panel=PANEL)
    def listen(
        calls: Calls,
        worker: Worker,
        duration: Annotated[
            timedelta, typer.Option("--duration", help="100ms to 1h.", **_DURATION)
        ],
    ) -> Call[Any]:
        """Say that a worker waits idle; prints the channel to LISTEN on."""
        return calls.listen(worker, duration)

    @call_command(app, "unlisten", "trex unlisten --worker w1", panel=PANEL)
    def unlisten(calls: Calls, worker: Worker) -> Call[Any]:
        """Take back what listen said."""
        return calls.unlisten(worker)


def _register_outcomes(app: typer.Typer) -> None:
    @call_command(
        app,
        "complete",
        """
        trex complete 4711 4398046511105 --reference TX-99
        trex complete 4711 4398046511105 --balance 100.25 --version 17
        """,
        panel=PANEL,
    )
    def complete(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        reference: Reference = None,
        confirmed_by: Confirmed = "answer",
        balance: Balance = None,
        version: Version = None,
    ) -> Call[Any]:
        """Delivered."""
        return calls.complete(
            message_id,
            fence,
            reference=reference,
            confirmed_by=confirmed_by,
            balance=balance,
            version=version,
            on_lost="report",
        )

    @call_command(
        app, "complete-duplicate", "trex complete-duplicate 4711 4398046511105", panel=PANEL
    )
    def complete_duplicate(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        reference: Reference = None,
        confirmed_by: Confirmed = "answer",
        balance: Balance = None,
        version: Version = None,
    ) -> Call[Any]:
        """Delivered: the ledger says that it already has it."""
        return calls.complete_duplicate(
            message_id,
            fence,
            reference=reference,
            confirmed_by=confirmed_by,
            balance=balance,
            version=version,
            on_lost="report",
        )

    @call_command(
        app,
        "retry",
        "trex retry 4711 4398046511105 --reason unavailable --delay 30s",
        panel=PANEL,
    )
    def retry(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        reason: ReasonCode = "unspecified",
        delay: Delay = None,
        absent: Absent = False,
    ) -> Call[Any]:
        """Not delivered: try again after the backoff, or park when the allowance is used up."""
        return calls.retry(
            message_id, fence, reason=reason, delay=delay, absent=absent, on_lost="report"
        )

    @call_command(app, "unknown", "trex unknown 4711 4398046511105 --reason timeout", panel=PANEL)
    def unknown(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        reason: ReasonCode = "unspecified",
        delay: Delay = None,
        park: Annotated[bool, typer.Option("--park", help="Park it, for an operator.")] = False,
    ) -> Call[Any]:
        """Nobody can tell whether it was delivered."""
        return calls.mark_unknown(
            message_id, fence, reason=reason, delay=delay, park=park, on_lost="report"
        )

    @call_command(app, "conflict", "trex conflict 4711 4398046511105", panel=PANEL)
    def conflict(
        calls: Calls, message_id: MessageId, fence: Fence, reason: ReasonCode = "key_conflict"
    ) -> Call[Any]:
        """Park: the ledger has this key with other content."""
        return calls.conflict(message_id, fence, reason=reason, on_lost="report")

    @call_command(app, "fail", "trex fail 4711 4398046511105 --reason rejected", panel=PANEL)
    def fail(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        reason: ReasonCode = "rejected",
        absent: Absent = False,
    ) -> Call[Any]:
        """Park: refused for good."""
        return calls.fail(message_id, fence, reason=reason, absent=absent, on_lost="report")

    @call_command(app, "dead-letter", "trex dead-letter 4711 4398046511105", panel=PANEL)
    def dead_letter(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        reason: ReasonCode = "unspecified",
        absent: Absent = False,
    ) -> Call[Any]:
        """Park: no more tries."""
        return calls.dead_letter(message_id, fence, reason=reason, absent=absent, on_lost="report")

    @call_command(
        app, "report-stale", "trex report-stale 4711 4398046511105 completed", panel=PANEL
    )
    def report_stale(
        calls: Calls,
        message_id: MessageId,
        fence: Fence,
        result: Annotated[
            Literal[
                "completed",
                "duplicate",
                "retry",
                "unknown",
                "conflict",
                "permanent",
                "dead_letter",
                "released",
                "postponed",
            ],
            typer.Argument(help="What the lost claim would have recorded."),
        ],
    ) -> Call[Any]:
        """Keep the rejected result of a lost claim as evidence."""
        return calls.report_stale(message_id, fence, result)


def _register_batches(app: typer.Typer) -> None:
    @call_command(
        app,
        "record",
        """
        trex record outcomes.ndjson
        echo '{"message_id": 4711, "fence": 439804, "result": "completed"}' | trex record -
        """,
        panel=PANEL,
    )
    def record(calls: Calls, file: InputFile) -> Call[Any]:
        """Record up to 1,000 outcomes, one JSON object a line: message_id, fence, result and the
        options of the single commands (reason, delay, absent, park, confirmed_by, reference,
        balance, version)."""
        return calls.record(read_reports(file))

    @call_command(app, "exchange", "trex exchange outcomes.ndjson --worker w1 -n 10", panel=PANEL)
    def exchange(
        calls: Calls,
        file: InputFile,
        worker: Worker,
        limit: Limit = 1,
        lease: Lease = None,
        box: BoxOption = "outbox",
        after: _HINT_AFTER = 0,
        due_after: DueAfter = None,
    ) -> Call[Any]:
        """Record outcomes as record does, and claim the next messages, in one transaction."""
        return calls.exchange(
            read_reports(file),
            worker,
            limit,
            lease=lease,
            box=box,
            after=after,
            due_after=due_after,
        )
