"""yoyo's own books, written in our transaction.

yoyo marks on a connection and in a transaction of its own, under a lock row that a killed process
leaves behind. Here it gets our connection and thinks it is inside a transaction, so its marks are
committed together with what they say.
"""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any

import yoyo
from yoyo import internalmigrations
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.connections import DatabaseURI
from yoyo.migrations import default_migration_table

if TYPE_CHECKING:
    import psycopg


class _OurConnection(PostgresqlPsycopgBackend):  # type: ignore[misc]
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._ours = conn
        uri = DatabaseURI("postgresql+psycopg", None, None, None, None, None, {})
        super().__init__(uri, default_migration_table)
        self._in_transaction = True

    def connect(self, dburi: DatabaseURI) -> psycopg.Connection[Any]:
        return self._ours


def mark_applied(conn: psycopg.Connection[Any], folder: str) -> tuple[str, ...]:
    """Mark every migration of ``folder`` that yoyo doesn't have yet; make its tables if missing.

    Args:
        conn: inside a transaction of a role that owns, or may create, the schema ``trex_yoyo``.
        folder: path of the numbered files.

    Returns:
        Names that were marked by this call, in order.
    """
    row = conn.execute("select to_regnamespace('trex_yoyo') is null").fetchone()
    if row is not None and row[0]:
        conn.execute("create schema trex_yoyo")
    conn.execute("set local search_path = trex_yoyo, pg_catalog, pg_temp")
    backend = _OurConnection(conn)
    if backend.lock_table not in backend.list_tables():
        backend.create_lock_table()
    if internalmigrations.needs_upgrading(backend):
        internalmigrations.upgrade(backend)
    missing = backend.to_apply(yoyo.read_migrations(glob.escape(folder)))
    for migration in missing:
        backend.mark_one(migration, log=False)
    return tuple(str(m.id) for m in missing)
