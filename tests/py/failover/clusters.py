"""A primary with a standby, backups of it, and new servers made of them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.databases import FAST, TEST_ROLES, Server
from trex_client.embedded import EmbeddedServer
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "shop"
WHO: Any = {"actor": "test", "reason": "test"}
PRIMARY = {
    "wal_level": "replica",
    "max_wal_senders": "6",
    "hot_standby": "on",
    "wal_keep_size": "64MB",
    "wal_sender_timeout": "5s",
    "autovacuum": "off",
}


def embedded(server: Server) -> EmbeddedServer:
    """Return the process behind a server of our own."""
    assert server.embedded is not None
    return server.embedded


def prepare(server: Server, **policy: Any) -> str:
    """Make a database with schema, an instance and bindings on a private server; its name."""
    database = server.create_database()
    server.load_schema(database.dbname)
    database.close = lambda: None  # type: ignore[method-assign]
    with psycopg.connect(server.dsn(database.dbname), autocommit=True) as conn:
        client = PostgresClient(conn, KEY)
        client.register_instance(**WHO, **policy)
        for role in ("postgres", *(f"trex_test_{name}" for name in TEST_ROLES)):
            client.bind(role, **WHO)
    return database.dbname


def from_backup(source: Server, *, standby: bool) -> EmbeddedServer:
    """Make a server out of a base backup, not yet started.

    Args:
        source: the running server to copy.
        standby: it follows the source; otherwise it comes up alone, as a restored backup does.
    """
    origin = embedded(source)
    conninfo = make_conninfo(
        host=str(origin.socket_dir), port=origin.port, user="postgres", application_name="standby"
    )

    def fill(server: EmbeddedServer) -> None:
        options = ["-X", "stream", "-c", "fast", "--no-sync", "-d", conninfo]
        server.run("pg_basebackup", "-D", server.data, *options, *(["-R"] if standby else []))

    made = EmbeddedServer(origin.binaries, settings={**FAST, **PRIMARY}, prepare=fill)
    made.create()
    return made


@contextmanager
def connected(server: EmbeddedServer, dbname: str, **options: Any) -> Iterator[psycopg.Connection]:
    """A superuser's connection, in autocommit mode."""
    with psycopg.connect(server.dsn(dbname), autocommit=True, **options) as conn:
        yield conn


def until(condition: Any, seconds: float = 30.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def is_streaming(primary: Server, state: str) -> bool:
    """Whether the standby is connected, and as what (`async` or `sync`)."""
    with primary.admin() as conn:
        rows = conn.execute(
            "select sync_state from pg_stat_replication where state = 'streaming'"
        ).fetchall()
    return rows == [(state,)]


def caught_up(primary: Server, standby: EmbeddedServer) -> None:
    """Wait until the standby has replayed what the primary has written."""
    with primary.admin() as conn:
        row = conn.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None

    def replayed() -> bool:
        with psycopg.connect(standby.dsn(), autocommit=True) as conn:
            answer = conn.execute(
                "select pg_last_wal_replay_lsn() >= %s::pg_lsn", (row[0],)
            ).fetchone()
        return bool(answer and answer[0])

    until(replayed)


def promote(standby: EmbeddedServer) -> None:
    """Make a standby the primary."""
    with psycopg.connect(standby.dsn(), autocommit=True) as conn:
        conn.execute("select pg_promote(true, 60)")
    until(lambda: not _in_recovery(standby))


def _in_recovery(server: EmbeddedServer) -> bool:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        row = conn.execute("select pg_is_in_recovery()").fetchone()
    return bool(row and row[0])


def mutate(conn: psycopg.Connection[Any], function: str, old: str, new: str) -> None:
    """Plant a fault in a function of the schema."""
    row = conn.execute(
        "select pg_get_functiondef(p.oid) from pg_proc p"
        " where p.pronamespace = 'trex'::regnamespace and p.proname = %s",
        (function,),
    ).fetchone()
    if row is None or old not in row[0]:
        raise ValueError(f"{function} has no {old}")
    conn.execute(row[0].replace(old, new))
