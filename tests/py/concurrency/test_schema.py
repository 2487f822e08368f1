"""What the schema itself refuses, also for its owner and under session_replication_role."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.backends import WHO
from tests.support.invariants import GUARDS
from trex_client.model import Report

if TYPE_CHECKING:
    from tests.support.backends import PostgresBackend

pytestmark = [pytest.mark.criterion("ac-0032")]

FACTS = ("message", "receipt", "outcome", "stale_report", "audit")


@pytest.fixture
def full(postgres: PostgresBackend) -> PostgresBackend:
    """At least one row in every table."""
    postgres.uncompared()
    shop = postgres.register("shop", max_attempts=3)
    for number in range(1, 8):
        shop.enqueue("t", f"k{number}", {}, account="a", currency="USD", cash_delta=1,
                     ordering_key="o" if number == 7 else None)  # fmt: skip
    claims = shop.claim("w", 5)
    shop.complete(1, claims[0].fence, balance=None, version=None)
    shop.record([Report(2, claims[1].fence, "completed", balance=Decimal(1), version=1)])
    shop.retry(3, claims[2].fence)
    shop.conflict(4, claims[3].fence)
    postgres.advance(60)
    shop.claim("v", 1, after=4)
    shop.retry(5, claims[4].fence, on_lost="report")
    shop.listen("w", timedelta(seconds=1))
    postgres.quarantine("old", "1", payload="{}")
    shop.pause(**WHO)
    return postgres


def refused(conn: psycopg.Connection[Any], statement: str, *codes: str, **values: Any) -> None:
    """The statement fails with one of the codes, and leaves nothing."""
    with pytest.raises(psycopg.Error) as error, conn.transaction():
        conn.execute(statement, values)
    assert error.value.sqlstate in codes, (statement, error.value.sqlstate)


@pytest.mark.parametrize("replica", [False, True], ids=["origin", "replica"])
def test_facts_are_append_only(full: PostgresBackend, replica: bool) -> None:
    conn = full.admin
    key = full.instances[0]
    before = full.dump()
    conn.execute(f"set session_replication_role = {'replica' if replica else 'origin'}")
    try:
        for table in FACTS:
            assert full.rows(table), table
            column = {"message": "topic", "audit": "action", "outcome": "reason",
                      "receipt": "attempt", "stale_report": "result"}[table]  # fmt: skip
            changes = {"topic": "'x'", "action": "'x'", "reason": "'timeout'", "attempt": "9",
                       "result": "'retry'"}[column]  # fmt: skip
            where = "where instance_key = %(key)s"
            refused(conn, f"update trex.{table} set {column} = {changes} {where}", "TX901", key=key)
            refused(conn, f"update trex.{table} set {column} = {column} {where}", "TX901", key=key)
            refused(conn, f"delete from trex.{table} {where}", "TX901", key=key)
            refused(conn, f"truncate trex.{table}", "TX901")
            refused(conn, f"truncate trex.{table} cascade", "TX901")
        for table in ("delivery", "ledger_snapshot", "quarantine"):
            refused(conn, f"truncate trex.{table}", "TX901")
        refused(conn, "delete from trex.quarantine", "TX901")
        refused(conn, "delete from trex.instance where instance_key = %(key)s", "TX901", "23503",
                key=key)  # fmt: skip
        refused(conn, "update trex.currency set exponent = 3 where currency = 'USD'", "TX901")
        refused(conn, "delete from trex.currency where currency = 'USD'", "TX901")
    finally:
        conn.execute("set session_replication_role = origin")
    assert full.dump() == before
    assert conn.execute(GUARDS).fetchall() == []


@pytest.mark.parametrize("replica", [False, True], ids=["origin", "replica"])
def test_a_delivery_keeps_its_identity_and_its_counters_rise(
    full: PostgresBackend, replica: bool
) -> None:
    conn, key = full.admin, full.instances[0]
    before = full.dump()
    conn.execute(f"set session_replication_role = {'replica' if replica else 'origin'}")
    where = "where instance_key = %(key)s and message_id = 3"
    try:
        for change in (
            "instance_key = 'another'",
            "message_id = 999",
            "box = 'inbox'",
            "ordering_key = 'x'",
            "fence = fence - 1",
            "fence = fence + 1",
            "attempts = attempts + 1",
            "attempts = 0, fence = 0, tries = 0",
            "attempts = attempts + 2, fence = fence + 1",
        ):
            refused(conn, f"update trex.delivery set {change} {where}", "TX902", key=key)
        # It goes only with its receipt.
        refused(conn, f"delete from trex.delivery {where}", "TX902", key=key)
        refused(conn, "delete from trex.delivery where instance_key = %(key)s", "TX902", key=key)
        for change in ("version = 0", "balance = balance + 1", "account = 'x'", "currency = 'JPY'"):
            refused(
                conn,
                f"update trex.ledger_snapshot set {change} where instance_key = %(key)s",
                "TX902",
                key=key,
            )
        for change in ("source = 'x'", "payload = '1'", "adopted_at = now()"):
            refused(
                conn,
                f"update trex.quarantine set {change}"
                " where quarantine_id = (select max(quarantine_id) from trex.quarantine)",
                "TX901",
                "TX902",
                "23514",
            )
    finally:
        conn.execute("set session_replication_role = origin")
    assert full.dump() == before


def test_rows_that_no_state_allows(full: PostgresBackend) -> None:
    """The second lock: what the functions would never write."""
    conn, key = full.admin, full.instances[0]
    before = full.dump()
    where = "where instance_key = %(key)s and message_id = 3"
    for change in (
        "parked = 'weird'",
        "parked = 'dead_letter'",
        "parked = 'dead_letter', deferred_until = null",
        "lease_until = now()",
        "worker = 'w'",
        "tries = -1",
        "tries = attempts + 1",
    ):
        refused(conn, f"update trex.delivery set {change} {where}", "23514", key=key)
    insert = "insert into trex.{} select (r).* from (select {} as r from trex.{} t {}) q"
    for table, field, value in (
        ("message", "instance_key", None),
        ("message", "instance_key", ""),
        ("message", "instance_key", "Upper"),
        ("message", "idempotency_key", " k"),
        ("message", "cash_delta", "NaN"),
        ("message", "cash_delta", "Infinity"),
        ("message", "currency", None),
        ("message", "effect_policy", "twice"),
        ("message", "box", "sent"),
        ("outcome", "reason", "because the ledger said no"),
        ("outcome", "kind", "lost"),
        ("outcome", "fence", 0),
        ("receipt", "confirmed_by", "nobody"),
        ("ledger_snapshot", "balance", "NaN"),
        ("ledger_skip", "reason", "free text"),
        ("quarantine", "instance_key", "shop"),
    ):
        row = f"jsonb_populate_record(t, jsonb_build_object('{field}', %(value)s::text))"
        scope = "" if table == "quarantine" else "where t.instance_key = %(key)s limit 1"
        refused(
            conn, insert.format(table, row, table, scope),
            "23514", "23502", "22P02", "428C9", "23505", key=key, value=value,
        )  # fmt: skip
    # One receipt, one live row, one end per fence, one message per key.
    for table in ("message", "delivery", "receipt", "outcome"):
        refused(conn, insert.format(table, "t", table, "where t.instance_key = %(key)s"), "23505",
                key=key)  # fmt: skip
    assert full.dump() == before


@pytest.mark.case("M5")
def test_no_constraint_shows_the_row(full: PostgresBackend) -> None:
    """Arguments are checked before a constraint could print the row that holds them."""
    client = full.client("shop")
    conn = full.connection(client)
    key = full.instances[0]
    for call in (
        "trex.enqueue(%(key)s, 't', ' s3cr3t', '{}')",
        "trex.enqueue(%(key)s, 't', 'k', '{}', 's3cr3t')",
        "trex.enqueue(%(key)s, 't', 'k', '{}', 's3cr3t', 'USD', 'NaN')",
        "trex.enqueue(%(key)s, 't', 'k1', '\"s3cr3t\"')",
        "trex.retry(%(key)s, 3, 1, 's3cr3t')",
        "trex.complete(%(key)s, 3, 1, 's3cr3t ')",
        "trex.claim('s3cr3t S', 'w')",
        "trex.redrive(%(key)s, '{1}', 's3cr3t ', 'x')",
    ):
        with pytest.raises(psycopg.Error) as raised, conn.transaction():
            conn.execute(f"select {call}", {"key": key})
        diagnosis = raised.value.diag
        parts = [diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint,
                 diagnosis.context, diagnosis.internal_query]  # fmt: skip
        assert raised.value.sqlstate in ("TX400", "TX422"), call
        assert not [part for part in parts if part and "s3cr3t" in part], call
