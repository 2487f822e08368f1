"""Types of options and arguments, with their parsers. A refused value is never repeated in the
message.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from trex_client._values import exact

_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,6})?)(?P<unit>ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(text: str) -> timedelta:
    """`500ms`, `30s`, `1h30m`, `7d`."""
    total = timedelta()
    position = 0
    for match in _DURATION.finditer(text):
        if match.start() != position:
            break
        total += _one_unit(match["number"], match["unit"])
        position = match.end()
    if position == 0 or position != len(text):
        raise typer.BadParameter("a duration such as 500ms, 30s, 1h30m or 7d")
    return total


def _one_unit(number: str, unit: str) -> timedelta:
    if unit in ("ms", "s"):
        scale = 1_000 if unit == "ms" else 1_000_000
        return timedelta(microseconds=int(Decimal(number) * scale))
    return timedelta(**{_UNITS[unit]: float(number)})


def parse_amount(text: str) -> Decimal:
    """An exact decimal."""
    try:
        return exact(text)
    except ValueError:
        raise typer.BadParameter("a decimal number such as -12.50") from None


def parse_time(text: str) -> datetime:
    """ISO 8601; without an offset it is UTC."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("a time such as 2026-01-31T12:00:00Z") from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


MessageId: TypeAlias = Annotated[int, typer.Argument(help="Number of the message.")]
MessageIds: TypeAlias = Annotated[list[int], typer.Argument(help="Numbers of messages.")]
Fence: TypeAlias = Annotated[int, typer.Argument(help="Fence of the claim.")]
Worker: TypeAlias = Annotated[
    str, typer.Option("--worker", help="Name of the worker, its own for each process.")
]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", help="At most so many, to 1000.")]
ReadLimit: TypeAlias = Annotated[
    int, typer.Option("--limit", "-n", help="At most so many, to 10000.")
]
After: TypeAlias = Annotated[
    int, typer.Option("--after", help="Only messages with a higher number.")
]
DueAfter: TypeAlias = Annotated[
    datetime | None,
    typer.Option("--due-after", parser=parse_time, metavar="TIME", help="Hint of a worker's loop."),
]
BoxOption: TypeAlias = Annotated[
    Literal["outbox", "inbox"], typer.Option("--box", metavar="outbox|inbox", help="Which box.")
]
Lease: TypeAlias = Annotated[
    timedelta | None,
    typer.Option(
        "--lease",
        parser=parse_duration,
        metavar="DURATION",
        help="From 100ms to the instance's lease_max; default the instance's.",
    ),
]
Delay: TypeAlias = Annotated[
    timedelta | None,
    typer.Option(
        "--delay", parser=parse_duration, metavar="DURATION", help="Not before, 0s to 30d."
    ),
]
ReasonCode: TypeAlias = Annotated[
    str, typer.Option("--reason", help="A reason code, such as timeout or rejected.")
]
Absent: TypeAlias = Annotated[
    bool, typer.Option("--absent", help="It is certain that no attempt took effect.")
]
Reference: TypeAlias = Annotated[
    str | None, typer.Option("--reference", help="The ledger's own reference.")
]
Confirmed: TypeAlias = Annotated[
    Literal["answer", "lookup", "same_key", "handler"],
    typer.Option(
        "--confirmed-by",
        metavar="answer|lookup|same_key|handler",
        help="How the delivery was confirmed.",
    ),
]
Balance: TypeAlias = Annotated[
    Decimal | None,
    typer.Option(
        "--balance", parser=parse_amount, metavar="AMOUNT", help="The ledger's balance afterwards."
    ),
]
Version: TypeAlias = Annotated[
    int | None, typer.Option("--version", help="Version of that balance.")
]
Actor: TypeAlias = Annotated[
    str, typer.Option("--actor", envvar="TREX_ACTOR", help="Who does this, for the audit.")
]
Reason: TypeAlias = Annotated[str, typer.Option("--reason", help="Why, for the audit.")]
Evidence: TypeAlias = Annotated[
    str, typer.Option("--evidence", help="What shows it, for the audit.")
]
Policy: TypeAlias = Annotated[
    Literal["idempotent", "lookup", "at_most_once"],
    typer.Option(
        "--effect-policy",
        metavar="idempotent|lookup|at_most_once",
        help="What the receiver is known to do with a repetition.",
    ),
]
Report: TypeAlias = Annotated[
    bool,
    typer.Option("--report", help="A refusal is an answer, not an error; the code says which."),
]
InputFile: TypeAlias = Annotated[
    Path, typer.Argument(help="File to read; - is stdin.", show_default=False)
]

InstanceOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--instance", "-i", envvar="TREX_INSTANCE", help="Instance key.", show_default=False
    ),
]
DsnFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--dsn-file", help="File with the connection string (or set TREX_DSN)."),
]
Service: TypeAlias = Annotated[
    str | None, typer.Option("--service", help="Name of a connection in pg_service.conf.")
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="NDJSON on stdout; the default when piped.")
]
PrintSql: TypeAlias = Annotated[
    bool, typer.Option("--print-sql", help="Print the SQL call instead of running it.")
]
