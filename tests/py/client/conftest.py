"""One instance, bound to the server's superuser and to the test roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.support.databases import Database


@pytest.fixture
def conn(pg_db: Database) -> psycopg.Connection[Any]:
    return pg_db.connect()


@pytest.fixture
def shop(pg_db: Database, conn: psycopg.Connection[Any]) -> PostgresClient:
    """A client of the instance `shop`, over `conn`."""
    client = PostgresClient(conn, "shop")
    client.register_instance(actor="test", reason="test")
    for role in (pg_db.server.user, "trex_test_app", "trex_test_worker"):
        client.bind(role, actor="test", reason="test")
    return client


@pytest.fixture
def connect(pg_db: Database, shop: PostgresClient) -> Callable[..., psycopg.Connection[Any]]:
    """More connections to the database of `shop`."""
    return pg_db.connect
