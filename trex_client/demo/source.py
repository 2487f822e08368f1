"""Movements of a CSV or NDJSON file, as the demo delivers them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from trex_client._calls import check_instance_key, encode_json
from trex_client.adapters import wire_key
from trex_client.cli.importer import FIELDS, read_rows
from trex_client.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trex_client.model import Movement

INSTANCES = ("seoul", "berlin")
MOST_INSTANCES = 8
TOPIC = "ledger.post"


@dataclass(frozen=True, slots=True)
class Entry:
    """A movement of the file: its line, its instance, and what is enqueued."""

    line: int
    instance: str
    movement: Movement

    @property
    def key(self) -> tuple[str, str]:
        """Instance and idempotency key."""
        return self.instance, self.movement.idempotency_key

    @property
    def wire_key(self) -> str:
        """The key that the ledger sees."""
        return wire_key(self.instance, "outbox", self.movement.idempotency_key)

    @property
    def account(self) -> tuple[str, str]:
        """Account and currency."""
        return str(self.movement.account), str(self.movement.currency)

    @property
    def amount(self) -> Decimal:
        """What it moves."""
        return Decimal(self.movement.cash_delta or 0)


class BadFile(Exception):  # noqa: N818
    """The file can't be used: which line, and which field."""


def read(path: Path) -> list[Entry]:
    """Read a file: CSV when it is named `*.csv`, else NDJSON.

    Needed: idempotency_key, account, currency, cash_delta. Known beside them: instance, topic,
    correlation_id, ordering_key, effect_policy, delay. Anything else goes into the payload. Without
    an instance a movement belongs to one of two, by its account.

    Raises:
        BadFile: the first line that can't be used.
    """
    kind = "csv" if path.suffix.lower() == ".csv" else "ndjson"
    entries = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for row in read_rows(stream, kind, TOPIC):
                if row.movement is None:
                    raise BadFile(f"line {row.line}: {row.wrong}")
                entries.append(_entry(row.line, row.movement, row.source))
    except OSError:
        raise BadFile("it can't be read") from None
    except UnicodeDecodeError:
        raise BadFile("it isn't UTF-8") from None
    except InvalidArgument as error:
        raise BadFile(str(error)) from None
    if not entries:
        raise BadFile("no movements")
    if len({entry.instance for entry in entries}) > MOST_INSTANCES:
        raise BadFile(f"more than {MOST_INSTANCES} instances")
    return entries


def _entry(line: int, movement: Movement, source: Any) -> Entry:
    row = source if isinstance(source, dict) else {}
    for name in ("account", "currency", "cash_delta"):
        if getattr(movement, name) is None:
            raise BadFile(f"line {line}: {name}")
    instance = row.get("instance") or _instance_of(str(movement.account))
    try:
        check_instance_key(instance)
    except InvalidArgument:
        raise BadFile(f"line {line}: instance") from None
    amount = Decimal(movement.cash_delta or 0)
    payload: dict[str, Any] = {
        "account": movement.account,
        "currency": movement.currency,
        "amount": format(amount, "f") if amount.is_finite() else str(amount),
    }
    if "payload" in row:
        payload["details"] = json.loads(movement.payload_json or "null", parse_float=Decimal)
    else:
        rest = {name: row[name] for name in row if name not in FIELDS and name != "instance"}
        payload.update((name, value) for name, value in rest.items() if name not in payload)
    try:
        text = encode_json(payload)
    except InvalidArgument:
        raise BadFile(f"line {line}: payload") from None
    return Entry(line, instance, replace(movement, payload_json=text))


def _instance_of(account: str) -> str:
    return INSTANCES[hashlib.sha256(account.encode("utf-8", "replace")).digest()[0] % 2]


def unique(entries: Sequence[Entry]) -> dict[tuple[str, str], Entry]:
    """The first movement of each key."""
    found: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        found.setdefault(entry.key, entry)
    return found
