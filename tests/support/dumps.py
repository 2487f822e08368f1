"""All tables of a database as plain data, in one form for PostgreSQL and for the simulation.

Times are text to the microsecond in UTC, spans microseconds, amounts and jsonb text, digests hex.
Ids of `audit` are ranks. Left out: the server's start time, and what concerns the installation.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from trex_client.memory import MemoryDatabase

Row = dict[str, Any]
Dump = dict[str, list[Row]]

KEYS: dict[str, tuple[str, ...]] = {
    "epoch": ("singleton",),
    "currency": ("currency",),
    "instance": ("instance_key",),
    "binding": ("instance_key", "role_name"),
    "message": ("instance_key", "message_id"),
    "delivery": ("instance_key", "message_id"),
    "lane": ("instance_key", "box", "ordering_key"),
    "receipt": ("instance_key", "message_id"),
    "outcome": ("instance_key", "message_id", "fence"),
    "stale_report": ("instance_key", "message_id", "fence", "result"),
    "listener": ("instance_key", "worker"),
    "ledger_snapshot": ("instance_key", "account", "currency"),
    "ledger_skip": ("instance_key", "message_id"),
    "quarantine": ("quarantine_id",),
    "audit": ("audit_id",),
    "inbox_event": ("instance_key", "message_id"),
    "inbox_variant": ("instance_key", "message_id", "body_hash"),
}
"""Every table that the functions read or write, with its primary key."""

_SHARED = ("epoch", "currency", "quarantine", "audit")
_SCHEMA = ("schema_migration", "function_release", "function_digest")

_FORMS = {
    "timestamptz": "case when abs(extract(epoch from {0})) = 'Infinity' then {0}::text"
    " else to_char({0} at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') end",
    "interval": "(extract(epoch from {0}) * 1000000)::bigint",
    "numeric": "{0}::text",
    "jsonb": "{0}::text",
    "bytea": "encode({0}, 'hex')",
}
_PLAIN = {"bool", "int2", "int4", "int8", "text", "name"}

_COLUMNS = """
select c.relname, a.attname, coalesce(nullif(t.typbasetype, 0), t.oid)::regtype::text
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type t on t.oid = a.atttypid
where c.relnamespace = 'trex'::regnamespace and c.relkind = 'r'
order by c.relname, a.attnum
"""
_NAMES = {
    "timestamp with time zone": "timestamptz",
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
}


class Dumper:
    """Dumps the tables of one PostgreSQL database with one statement."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        """`conn`: as a role that may read all tables, in autocommit mode."""
        self._conn = conn
        columns: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in conn.execute(_COLUMNS).fetchall():
            columns.setdefault(table, []).append((column, _NAMES.get(kind, kind)))
        unknown = set(columns) - set(KEYS) - set(_SCHEMA)
        assert not unknown, f"tables that no dump compares: {sorted(unknown)}"
        self.columns = {
            table: [name for name, _ in columns[table] if (table, name) != _START] for table in KEYS
        }
        self._sql = "select " + ", ".join(self._select(table, columns[table]) for table in KEYS)

    @staticmethod
    def _select(table: str, columns: list[tuple[str, str]]) -> str:
        values = []
        for column, kind in columns:
            if (table, column) == _START:
                continue
            assert kind in _FORMS or kind in _PLAIN, f"{table}.{column}: {kind}"
            values.append(_FORMS.get(kind, "{0}").format(f"t.{column}"))
        where = {
            "epoch": "true",
            "currency": "t.currency <> all(%(currencies)s)",
            "quarantine": "t.quarantine_id > %(quarantined)s",
            "audit": "t.audit_id > %(audited)s"
            " and (t.instance_key is null or t.instance_key = any(%(instances)s))",
        }.get(table, "t.instance_key = any(%(instances)s)")
        return (
            f"(select json_agg(json_build_array({', '.join(values)}))"
            f" from trex.{table} as t where {where})::text"
        )

    def marks(self) -> dict[str, Any]:
        """What there is now of the tables that all instances share; a later dump leaves it out."""
        row = self._conn.execute(
            "select array(select currency::text from trex.currency),"
            " (select coalesce(max(quarantine_id), 0) from trex.quarantine),"
            " (select coalesce(max(audit_id), 0) from trex.audit)"
        ).fetchone()
        assert row is not None
        return {"currencies": row[0], "quarantined": row[1], "audited": row[2]}

    def texts(self, instances: Collection[str], marks: dict[str, Any]) -> tuple[str | None, ...]:
        """The rows of each table of `KEYS` as JSON text, in no order."""
        row = self._conn.execute(self._sql, {"instances": list(instances), **marks}).fetchone()
        assert row is not None
        return tuple(row)

    def dump(self, instances: Collection[str], marks: dict[str, Any]) -> Dump:
        """The rows of these instances, and what is new since `marks` in the shared tables."""
        return self.parse(self.texts(instances, marks))

    def parse(self, texts: tuple[str | None, ...]) -> Dump:
        tables = {}
        for table, text in zip(KEYS, texts, strict=True):
            names = self.columns[table]
            tables[table] = [dict(zip(names, row, strict=True)) for row in json.loads(text or "[]")]
        return _ordered(tables)


_START = ("epoch", "postmaster_start")


def memory_dump(
    db: MemoryDatabase, instances: Collection[str] | None = None, currencies: Collection[str] = ()
) -> Dump:
    """The same of the simulation; `currencies` are left out."""
    tables = {
        table: [
            {name: _plain(value) for name, value in row.items()}
            for row in rows
            if (table != "currency" or row["currency"] not in currencies)
            and (instances is None or table in _SHARED or row["instance_key"] in instances)
        ]
        for table, rows in db.dump().items()
    }
    assert tables.keys() == KEYS.keys()
    return _ordered(tables)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.hex()
    return value


def _ordered(tables: Dump) -> Dump:
    for table, rows in tables.items():
        key = KEYS[table]
        rows.sort(key=lambda row: tuple([row[name] for name in key]))
    for rank, row in enumerate(tables["audit"], 1):
        row["audit_id"] = rank
    return {table: tables[table] for table in KEYS}


def difference(left: Dump, right: Dump) -> list[str]:
    """The rows that only one side has, one a line; nothing when they are equal."""
    lines = []
    for table in KEYS:
        if left[table] != right[table]:
            lines += [f"< {table} {row}" for row in left[table] if row not in right[table]]
            lines += [f"> {table} {row}" for row in right[table] if row not in left[table]]
    return lines
