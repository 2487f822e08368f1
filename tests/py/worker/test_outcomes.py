"""What becomes of one message: every answer of a sink, every policy, and what is on the books."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from tests.support.rig import (
    BOOMS,
    TOPIC,
    FakeSink,
    account,
    assert_counters_equal_rows,
    assert_sound,
    books,
    enqueue,
    register,
    rows,
    run_once,
)
from trex_client.adapters import Snapshot
from trex_client.adapters.none import NoneAdapter


@pytest.mark.criterion("ac-0051")
async def test_everything_is_delivered_once_and_counted(pg_db):
    client = register(pg_db)
    enqueue(client, 250)
    sink = FakeSink(slow=0.001)
    done = await run_once(pg_db, sink, concurrency=16, batch=40)
    assert set(sink.effects.values()) == {1}
    assert len(sink.effects) == 250
    assert 1 < sink.most <= 16
    assert sink.closed == 1
    assert done.counters()["claimed"] == done.counters()["delivered"] == 250
    assert_counters_equal_rows(pg_db, done)
    assert_sound(pg_db)
    names = {line["event"] for line in done.lines}
    assert {"connected", "claimed", "delivered"} <= names
    shown = next(line for line in done.lines if line["event"] == "delivered")
    assert shown["topic"] == TOPIC
    assert shown["correlation"].startswith("sha256:")


CASES = [
    ("ok", "delivered", None, "delivered"),
    ("bad_reference", "delivered", None, "delivered"),
    ("busy", "deferred", "unavailable", "retried"),
    ("not_sent", "deferred", "unavailable", "retried"),
    ("unreachable", "deferred", "connect_failed", "retried"),
    ("boom_before", "deferred", "adapter_error", "retried"),
    ("typo", "deferred", "unspecified", "retried"),
    ("in_progress", "deferred", "in_progress", "unknown"),
    ("lost_request", "deferred", "timeout", "unknown"),
    ("lost_answer", "deferred", "timeout", "unknown"),
    ("garbage", "deferred", "response_invalid", "unknown"),
    ("nothing", "deferred", "response_invalid", "unknown"),
    ("boom_after", "deferred", "adapter_error", "unknown"),
    ("refused", "permanent", "rejected", "permanent"),
    ("other", "conflict", "key_conflict", "conflict"),
    *((boom, "deferred", "adapter_error", "unknown") for boom in BOOMS),
]


@pytest.mark.parametrize(("step", "state", "reason", "counter"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.case("B4")
async def test_each_answer(new_db, step, state, reason, counter):
    database = new_db()
    client = register(database, backoff_base=timedelta(seconds=30))
    (message_id,) = enqueue(client, 1)
    sink = FakeSink(script={"k0": [step]})
    done = await run_once(database, sink)
    status = client.status(message_id)
    assert status.state == state
    assert status.reason == reason
    assert status.uncertain == (counter == "unknown")
    assert done.counters()[counter] == 1
    assert_counters_equal_rows(database, done)
    assert_sound(database)
    assert "canary" not in done.log.getvalue()


async def test_waiting_for_a_connection_of_ones_own_costs_no_try(new_db):
    database = new_db()
    client = register(database, max_attempts=1)
    (message_id,) = enqueue(client, 1)
    done = await run_once(database, FakeSink(script={"k0": ["no_slot", "no_slot"]}))
    assert client.status(message_id).state == "delivered"
    assert done.counters()["released"] == 2
    outcomes = rows(database, "select kind, reason from trex.outcome")
    assert outcomes == [("released", "not_started")] * 2
    assert_counters_equal_rows(database, done)
    assert_sound(database)


@pytest.mark.case("B4")
async def test_one_bad_row_stops_nobody(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 40)
    bad = {f"k{n}": [boom] for n, boom in enumerate([*BOOMS, "garbage", "nothing", "typo"])}
    done = await run_once(database, FakeSink(script=bad), concurrency=4, batch=5)
    assert done.counters()["delivered"] + done.counters()["duplicate"] >= 40 - len(bad)
    assert books(database)["delivered"] >= 40 - len(bad)
    assert_sound(database)


@pytest.mark.criterion("ac-0050")
async def test_nothing_is_ever_delivered_without_a_consumer(new_db):
    database = new_db()
    client = register(
        database, max_attempts=2, backoff_base=timedelta(milliseconds=1),
        backoff_cap=timedelta(milliseconds=1),
    )  # fmt: skip
    for policy in ("idempotent", "lookup", "at_most_once"):
        enqueue(client, 1, prefix=policy, effect_policy=policy)
    for _ in range(3):
        await run_once(database, NoneAdapter())
    parked = {row.idempotency_key: (row.parked, row.uncertain) for row in client.list_parked()}
    assert parked == {
        "idempotent0": ("dead_letter", False),
        "lookup0": ("dead_letter", False),
        "at_most_once0": ("dead_letter", False),
    }
    reasons = rows(database, "select distinct reason from trex.outcome")
    assert reasons == [("consumer:none",)]
    assert books(database)["delivered"] == 0


async def test_a_retry_after_is_kept(new_db):
    database = new_db()
    client = register(database)
    (message_id,) = enqueue(client, 1)
    await run_once(database, FakeSink(default="later"))
    due = client.status(message_id).due_at
    (at,) = rows(database, "select recorded_at from trex.outcome")
    assert due - at[0] == timedelta(seconds=60)


# snapshots


async def test_the_ledgers_snapshot_is_written_with_the_delivery(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 9)
    sink = FakeSink(snapshot=lambda number: Snapshot(Decimal(number), number))
    await run_once(database, sink, concurrency=3, batch=4)
    stored = rows(
        database, "select account, balance, version from trex.ledger_snapshot order by account"
    )
    assert [name for name, _, _ in stored] == [account(n) for n in range(3)]
    assert max(version for _, _, version in stored) == 9
    assert all(balance == version for _, balance, version in stored)


async def test_a_snapshot_for_a_message_without_cash_is_left_out(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 1, account=None, currency=None, cash_delta=None)
    sink = FakeSink(snapshot=lambda number: Snapshot(Decimal(1), 1))
    done = await run_once(database, sink)
    assert done.counters()["delivered"] == 1
    assert rows(database, "select * from trex.ledger_snapshot") == []


@pytest.mark.parametrize("balance", [Decimal("1.005"), Decimal("1e40"), Decimal("NaN"), 1.5])
@pytest.mark.case("J4")
async def test_a_snapshot_that_cannot_be_stored_is_seen_and_stops_nobody(new_db, balance):
    database = new_db()
    client = register(database, backoff_base=timedelta(seconds=30))
    enqueue(client, 10)

    def snapshot(number):
        return Snapshot(balance, number) if number == 4 else Snapshot(Decimal(number), number)

    sink = FakeSink(snapshot=snapshot)
    done = await run_once(database, sink, concurrency=1, batch=10)
    storable = isinstance(balance, Decimal) and balance.is_finite()
    found = books(database)
    if storable:
        assert (found["delivered"], found["unknown"]) == (9, 1)
        (row,) = rows(database, "select reason, state from trex.outcome")
        assert row == ("write_back_failed", "deferred")
        assert "write_back_failed" in {line.get("result") for line in done.lines}
        # The next attempt ends as a duplicate, with the snapshot.
        client.expedite([p.message_id for p in client.list_pending()], actor="t", reason="t")
        sink.snapshot = lambda number: Snapshot(Decimal(99), 99)
        again = await run_once(database, sink)
        assert again.counters()["duplicate"] == 1
        assert_counters_equal_rows(database, done, again)
    else:
        assert (found["delivered"], found["unknown"]) == (10, 0)
    assert set(sink.effects.values()) == {1}
    assert_sound(database)


async def test_a_snapshot_that_can_never_be_stored_costs_nobody_the_delivery(new_db):
    database = new_db()
    client = register(database, backoff_base=timedelta(seconds=30))
    (number,) = enqueue(client, 1)
    sink = FakeSink(snapshot=lambda _: Snapshot(Decimal("1.005"), 1))
    done = await run_once(database, sink)
    client.expedite([number], actor="t", reason="t")
    again = await run_once(database, sink)
    assert client.status(number).state == "delivered"
    assert again.counters()["duplicate"] == 1
    assert rows(database, "select * from trex.ledger_snapshot") == []
    for made in (done, again):
        assert "write_back_failed" in {line.get("result") for line in made.lines}
    assert_counters_equal_rows(database, done, again)
    assert_sound(database)


async def test_a_row_that_the_database_refuses_stops_nobody(new_db):
    database = new_db()
    client = register(database)
    ids = enqueue(client, 12)
    bad = ids[3]
    conn = database.connect()
    conn.execute(f"alter table trex.receipt add constraint c check (message_id <> {bad}) not valid")
    conn.execute(f"alter table trex.outcome add constraint c check (message_id <> {bad}) not valid")
    done = await run_once(database, FakeSink(slow=0.001), concurrency=12, batch=12)
    assert done.counters()["delivered"] == 11
    assert client.status(bad).state == "leased"
    assert "report_refused" in {line["event"] for line in done.lines}


async def test_a_delivery_resolves_the_skip_that_parking_opened(new_db):
    database = new_db()
    client = register(database)
    (message_id,) = enqueue(client, 1)
    sink = FakeSink(script={"k0": ["refused"]})
    await run_once(database, sink)
    assert rows(database, "select reason, resolved_at from trex.ledger_skip") == [
        ("rejected", None)
    ]
    client.redrive([message_id], actor="ann", reason="fixed")
    await run_once(database, sink)
    ((resolved_at, fence),) = rows(
        database, "select resolved_at, resolved_fence from trex.ledger_skip"
    )
    assert resolved_at is not None
    assert fence == client.status(message_id).fence
