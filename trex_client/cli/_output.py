"""Results as tables for eyes, and as NDJSON when piped or asked for. Data on stdout, notes on
stderr.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from trex_client.cli._exit import note
from trex_client.model import InstanceStats
from trex_client.model_operations import MachineCell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What a table leaves out, by what is listed: too wide, or data that nobody asked to see.
_ONLY_JSON: dict[str, frozenset[str]] = {
    "Claim": frozenset({
        "payload_json", "attempt", "tries", "correlation_id", "ordering_key", "effect_policy",
        "enqueued_at",
    }),
    "Pending": frozenset({"topic", "correlation_id", "ordering_key", "tries", "enqueued_at"}),
    "ParkedMessage": frozenset({"topic", "correlation_id", "ordering_key", "enqueued_at"}),
}  # fmt: skip
_WIDEST = 56


def wants_json(*, asked: bool) -> bool:
    """NDJSON was asked for, or nobody looks at stdout."""
    return asked or not sys.stdout.isatty()


def show(result: object, *, as_json: bool, title: str = "") -> None:
    """Print a result: a dataclass, a mapping, or a list of them."""
    if isinstance(result, list):
        if as_json:
            for row in result:
                line(as_mapping(row))
        elif result and isinstance(result[0], MachineCell):
            _machine(result)
        elif result:
            left_out = _ONLY_JSON.get(type(result[0]).__name__, frozenset())
            rows = [as_mapping(row) for row in result]
            _table([{n: v for n, v in row.items() if n not in left_out} for row in rows], title)
        else:
            note("nothing")
    elif as_json:
        line(as_mapping(result))
    else:
        _sheet(as_mapping(result), title)
        if isinstance(result, InstanceStats) and result.abandoned:
            note(
                "abandoned doesn't end doubt: where trex parked says uncertain, look at the ledger,"
                " then trex resolve ID delivered or absent"
            )


def _machine(cells: Sequence[MachineCell]) -> None:
    """Its states, and the transitions that it allows."""
    rows = [as_mapping(cell) for cell in cells]
    about = ("state", "owner", "longest_stay", "next_action", "alert", "final")
    states = {row["state"]: {name: row[name] for name in about} for row in rows if row["state"]}
    moves = ("state", "event", "to_state", "roles", "amount_min", "amount_max", "topic")
    allowed = [{n: row[n] for n in moves} for row in rows if row["to_state"] is not None]
    _table(list(states.values()), f"states, revision {cells[0].revision}")
    _table(allowed, "transitions")
    note(f"forbidden: the other {len(rows) - len(allowed)} of {len(rows)} cells; --json lists all")


def as_mapping(row: object) -> dict[str, Any]:
    """Names and values of a dataclass or mapping."""
    if is_dataclass(row):
        return {field.name: getattr(row, field.name) for field in fields(row)}
    assert isinstance(row, dict)  # noqa: S101 - all results are one or the other
    return row


def line(row: Mapping[str, Any]) -> None:
    """Print one NDJSON line. Money is a string, a time ISO 8601 in UTC, a duration a number of
    seconds, bytes are base64.
    """
    parts = []
    for name, value in row.items():
        if name == "payload_json":
            # The canonical text as it is: parsing it would lose digits.
            parts.append(f'"payload":{value}')
        else:
            parts.append(
                f"{json.dumps(name)}:{json.dumps(value, default=_json, ensure_ascii=False)}"
            )
    sys.stdout.write("{" + ",".join(parts) + "}\n")


def _json(value: object) -> object:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _duration(value: timedelta) -> str:
    """As options take it: `1d12h`, `30s`, `1.5s`."""
    left = value // timedelta(microseconds=1)
    parts = []
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    if left or not parts:
        parts.append(f"{Decimal(left).scaleb(-6).normalize():f}s")
    return "".join(parts)


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    names = [name for name in rows[0] if _worth_a_column([row[name] for row in rows])]
    table = Table(title=title or None, title_justify="left")
    for name in names:
        numeric = all(_is_number(row[name]) for row in rows if row[name] is not None)
        widest = max(len(name), *(len(_text(row[name])) for row in rows))
        table.add_column(
            name,
            justify="right" if numeric else "left",
            overflow="fold",
            width=widest if numeric else min(widest, _WIDEST),
        )
    for row in rows:
        table.add_row(*(Text(_text(row[name]), style=_style(row[name])) for name in names))
    console = Console()
    # Rather longer lines than the terminal's than columns too narrow to read.
    natural = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    Console(width=max(console.width, natural)).print(table)


def _worth_a_column(values: Sequence[object]) -> bool:
    """Not what is the same everywhere and goes without saying."""
    return any(_is_number(value) or value not in (None, False, "outbox") for value in values)


def _sheet(row: Mapping[str, Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in row.items():
        if value is not None:
            table.add_row(name, Text(_text(value), style=_style(value)))
    Console().print(table)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _style(value: object) -> str:
    if value in ("ok", "recorded", "enqueued", "delivered", "redriven", "expedited"):
        return "green"
    if value in ("warn", "duplicate", "already_recorded", "unknown", "lease_ended", "deferred"):
        return "yellow"
    if value in ("fail", "claim_lost", "ended_otherwise", "conflict", "dead_letter", "permanent"):
        return "red"
    return ""
