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

_SHARED = ("epoch", "currency", "quarantine", "audit")
"""Tables whose rows aren't all of one instance. Other tables without an owner concern the
installation and aren't dumped."""

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
            if (table, column) != _START:
                columns.setdefault(table, []).append((column, _NAMES.get(kind, kind)))
        self.columns = {
            table: [name for name, _ in pairs]
            for table, pairs in columns.items()
            if table in _SHARED or pairs[0][0] == "instance_key"
        }
        texts = ", ".join(self._select(table, columns[table]) for table in self.columns)
        # Planning so many tables takes ten times as long as reading them: planned once, in a
        # function of this session.
        conn.execute(
            "create or replace function pg_temp.trex_dump(p_instances text[], p_currencies text[],"
            " p_quarantined bigint, p_audited bigint) returns text[] language plpgsql"
            f" set plan_cache_mode = force_generic_plan as $$ begin return array[{texts}]; end $$"
        )

    @staticmethod
    def _select(table: str, columns: list[tuple[str, str]]) -> str:
        values = []
        for column, kind in columns:
            assert kind in _FORMS or kind in _PLAIN, f"{table}.{column}: {kind}"
            values.append(_FORMS.get(kind, "{0}").format(f"t.{column}"))
        where = {
            "epoch": "true",
            "currency": "t.currency <> all(p_currencies)",
            "quarantine": "t.quarantine_id > p_quarantined",
            "audit": "t.audit_id > p_audited"
            " and (t.instance_key is null or t.instance_key = any(p_instances))",
        }.get(table, "t.instance_key = any(p_instances)")
        return (
            f"(select json_agg(json_build_array({', '.join(values)}))"
            f" from trex.{table} as t where {where})::text"
        )

    def marks(self) -> dict[str, Any]:
        """What there is now of the tables that all instances share; a later dump leaves it out."""
        row = self._conn.execute(
            "select array(select currency::text from trex.currency)::text,"
            " (select coalesce(max(quarantine_id), 0) from trex.quarantine),"
            " (select coalesce(max(audit_id), 0) from trex.audit)"
        ).fetchone()
        assert row is not None
        return {"currencies": row[0], "quarantined": row[1], "audited": row[2]}

    def texts(self, instances: Collection[str], marks: dict[str, Any]) -> tuple[str | None, ...]:
        """The rows of each table of `columns` as JSON text, in no order."""
        row = self._conn.execute(
            "select pg_temp.trex_dump(%(instances)s, %(currencies)s::text[], %(quarantined)s,"
            " %(audited)s)",
            {"instances": list(instances), **marks},
        ).fetchone()
        assert row is not None
        return tuple(row[0])

    def dump(self, instances: Collection[str], marks: dict[str, Any]) -> Dump:
        """The rows of these instances, and what is new since `marks` in the shared tables."""
        return self.parse(self.texts(instances, marks))

    def parse(self, texts: tuple[str | None, ...]) -> Dump:
        return _ordered(
            {
                table: [dict(zip(names, row, strict=True)) for row in json.loads(text or "[]")]
                for (table, names), text in zip(self.columns.items(), texts, strict=True)
            }
        )


_START = ("epoch", "postmaster_start")


def memory_dump(
    db: MemoryDatabase, instances: Collection[str] | None = None, currencies: Collection[str] = ()
) -> Dump:
    """The same of the simulation; `currencies` are left out."""
    return _ordered(
        {
            table: [
                {name: _plain(value) for name, value in row.items()}
                for row in rows
                if (table != "currency" or row["currency"] not in currencies)
                and (instances is None or table in _SHARED or row["instance_key"] in instances)
            ]
            for table, rows in db.dump().items()
        }
    )


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
    """Rows in the order of their columns, which begin with the primary key."""
    for rows in tables.values():
        rows.sort(key=lambda row: [(value is not None, value) for value in row.values()])
    for rank, row in enumerate(tables["audit"], 1):
        row["audit_id"] = rank
    return tables


def difference(left: Dump, right: Dump) -> list[str]:
    """The rows that only one side has, one a line; nothing when they are equal."""
    lines = []
    for table in {**left, **right}:
        ours, theirs = left.get(table, []), right.get(table, [])
        if ours != theirs:
            lines += [f"< {table} {row}" for row in ours if row not in theirs]
            lines += [f"> {table} {row}" for row in theirs if row not in ours]
    return lines
