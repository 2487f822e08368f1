"""The fixtures themselves: servers, databases, roles, clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.databases import TEST_ROLES


def test_an_empty_database_has_no_schema(empty_db):
    with empty_db.connect() as conn:
        assert conn.info.server_version // 10_000 == empty_db.version
        assert conn.execute("select to_regnamespace('trex')").fetchone() == (None,)


def test_databases_are_separate_and_dropped(pg_server, new_db):
    first, second = (new_db(pg_server.version, migrated=False) for _ in range(2))
    first.connect().execute("create table only_here ()")
    assert second.connect().execute("select to_regclass('only_here')").fetchone() == (None,)
    first.close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(first.dsn())


def test_a_migrated_database_has_the_schema_and_the_roles(pg_db):
    assert pg_db.connect().execute("select to_regclass('trex.message')").fetchone() != (None,)
    for role in TEST_ROLES:
        row = pg_db.connect(role).execute("select session_user").fetchone()
        assert row == (f"trex_test_{role}",)


def test_roles_can_connect_through_tcp(pg_db):
    with psycopg.connect(pg_db.dsn("app", tcp=True)) as conn:
        assert conn.execute("select 1").fetchone() == (1,)


def test_the_clock_runs_stops_and_moves(pg_db):
    clock = pg_db.clock
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=30)
    moment = clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    assert clock.now() == moment
    assert clock.advance(1.5) == moment + timedelta(seconds=1.5)
    assert clock.now() == moment + timedelta(seconds=1.5)
    clock.run()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=30)


async def test_async_connections(empty_db):
    conn = await empty_db.aconnect()
    cursor = await conn.execute("select 1")
    assert await cursor.fetchone() == (1,)


def test_a_private_server_may_crash(private_server):
    server = private_server()
    database = server.create_database()
    server.embedded.kill9()
    server.embedded.start()
    assert database.connect().execute("select 1").fetchone() == (1,)
