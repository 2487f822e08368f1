"""Unknown outcomes: three crash points, three kinds of sink; effects are counted at the sink."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.support.rig import (
    FakeSink,
    account,
    assert_counters_equal_rows,
    assert_sound,
    enqueue,
    job,
    register,
    rows,
    run_once,
)
from trex_client import ledger
from trex_client.adapters import build_adapter
from trex_client.adapters.base import context_for, payload_digest, wire_key
from trex_client.postgres import PostgresClient

pytestmark = pytest.mark.criterion("ac-0033")

SINKS: dict[str, dict[str, Any]] = {
    "lookup": {"policy": "lookup", "can_lookup": True},
    "idempotent": {"policy": "idempotent"},
    "idempotent with lookup": {"policy": "idempotent", "can_lookup": True},
    "neither": {"policy": "at_most_once"},
}
POLICIES = ("idempotent", "lookup", "at_most_once")


def setup(database, policy, **more):
    client = register(
        database, backoff_base=timedelta(milliseconds=1), backoff_cap=timedelta(milliseconds=1),
        **more,
    )  # fmt: skip
    (message_id,) = enqueue(client, 1, effect_policy=policy)
    return client, message_id


def crash(database, *, marked):
    """Another worker claims the message, perhaps marks it, and is never heard of again."""
    dead = PostgresClient(database.connect("worker"), "inst")
    (claim,) = dead.claim("dead", lease=timedelta(milliseconds=100))
    if marked:
        dead.mark_sent(claim.message_id, claim.fence)
    database.clock.advance(10)
    return claim


@pytest.mark.parametrize("arrived", [False, True], ids=["before the call", "after the ledger"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.case("L1")
async def test_a_crash(new_db, kind, policy, arrived):
    database = new_db()
    client, message_id = setup(database, policy)
    sink = FakeSink(**SINKS[kind])
    claim = crash(database, marked=policy == "at_most_once")
    context = context_for("inst", claim)
    if arrived:
        sink.effects[context.wire_key] = 1
        sink.content[context.wire_key] = claim.payload_json
    done = await run_once(database, sink)
    status = client.status(message_id)
    looks_up = sink.can_lookup and policy != "at_most_once"
    repeats = sink.policy == "idempotent" and policy == "idempotent"
    calls = sum(sink.calls.values())
    if looks_up:
        assert sink.lookups == 1
        assert status.state == "delivered"
        assert status.confirmed_by == ("lookup" if arrived else "answer")
        assert calls == (0 if arrived else 1)
    elif repeats:
        assert status.state == "delivered"
        assert status.duplicate == arrived
        assert status.confirmed_by == "same_key"
        assert calls == 1
    else:
        assert (status.state, status.uncertain) == ("unknown", True)
        assert calls == 0
        assert status.reason in {"unsupported_policy", "lease_expired"}
    expected = 1 if arrived or looks_up or repeats else 0
    assert sum(sink.effects.values()) == expected
    assert set(sink.calls) <= {context.wire_key}
    assert_counters_equal_rows(database, done)
    assert_sound(database)


@pytest.mark.parametrize("step", ["lost_answer", "boom_after", "lost_request"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.case("J1")
async def test_a_lost_answer(new_db, kind, policy, step):
    database = new_db()
    client, message_id = setup(database, policy)
    sink = FakeSink(**SINKS[kind], script={"k0": [step]})
    first = await run_once(database, sink)
    jobs = [first]
    looks_up = sink.can_lookup and policy != "at_most_once"
    repeats = sink.policy == "idempotent" and policy == "idempotent"
    took_effect = step != "lost_request"
    if not (looks_up or repeats):
        assert client.status(message_id).state == "unknown"
        assert first.counters()["unknown"] == 1
    for _ in range(3):
        await asyncio.sleep(0.01)
        jobs.append(await run_once(database, sink))
    status = client.status(message_id)
    if looks_up or repeats:
        assert status.state == "delivered"
        assert sum(sink.effects.values()) == 1
        if looks_up and took_effect:
            assert (status.confirmed_by, sum(sink.calls.values())) == ("lookup", 1)
    else:
        # Called once; only an operator's decision leads on.
        assert (status.state, status.attempts) == ("unknown", 1)
        assert sum(sink.calls.values()) == 1
        assert sum(sink.effects.values()) == (1 if took_effect else 0)
        client.resolve(
            message_id, "delivered" if took_effect else "resend", evidence="the ledger's books",
            actor="ann", reason="looked",
        )  # fmt: skip
        jobs.append(await run_once(database, sink))
        assert client.status(message_id).state == "delivered"
        assert sum(sink.effects.values()) == 1
    assert len(sink.calls) == 1
    assert_counters_equal_rows(database, *jobs)
    assert_sound(database)


async def test_an_exhausted_unknown_parks_as_unknown_never_as_failed(new_db):
    database = new_db()
    client, message_id = setup(database, "idempotent", max_attempts=3)
    sink = FakeSink(script={"k0": ["lost_answer", "in_progress", "busy", "busy"]})
    for _ in range(5):
        await asyncio.sleep(0.01)
        await run_once(database, sink)
    status = client.status(message_id)
    assert (status.state, status.attempts, status.uncertain) == ("unknown", 3, True)
    (cash,) = client.pending_cash_delta()
    assert (cash.pending, cash.uncertain, cash.skipped) == (0, 1, 0)


async def test_in_progress_makes_a_certain_message_uncertain(new_db):
    database = new_db()
    client, message_id = setup(database, "idempotent", max_attempts=1)
    await run_once(database, FakeSink(default="in_progress"))
    status = client.status(message_id)
    assert (status.state, status.uncertain) == ("unknown", True)


async def test_a_certain_absence_makes_it_certain_again(new_db):
    database = new_db()
    client, message_id = setup(database, "lookup", max_attempts=2)
    crash(database, marked=False)
    await run_once(database, FakeSink(policy="lookup", can_lookup=True, default="busy"))
    status = client.status(message_id)
    assert (status.state, status.uncertain) == ("dead_letter", False)


@pytest.fixture
def ledger_db(new_db):
    database = new_db(migrated=False)
    ledger.install(database.dsn())
    return database


@asynccontextmanager
async def posting_adapter(ledger_db, kind):
    """The shipped adapter of a kind, on a ledger; with the HTTP front's server."""
    if kind == "postgres":
        table = {"kind": "postgres", "dsn": {"env": "D"}}
        yield build_adapter("inst", table, environ={"D": ledger_db.dsn()}), None
    else:
        async with ledger.LedgerServer(ledger_db.dsn()) as server:
            yield build_adapter("inst", server.adapter_config()), server


@pytest.mark.parametrize("policy", ["idempotent", "lookup"])
@pytest.mark.parametrize("other", ["amount", "account", "currency", "no cash"])
@pytest.mark.parametrize(
    ("kind", "lost"),
    [("http", "dead worker"), ("http", "cut answer"), ("postgres", "dead worker")],
)
async def test_a_foreign_posting_under_our_key(new_db, ledger_db, kind, other, policy, lost):
    database = new_db()
    client, message_id = setup(database, policy)
    key = wire_key("inst", "outbox", "k0")
    booked = {
        "amount": (account(0), "USD", "1.01"),
        "account": (account(1), "USD", "1.00"),
        "currency": (account(0), "KRW", "1.00"),
        "no cash": (None, None, None),
    }[other]
    books = ledger_db.connect()
    books.execute("select ledger.post(%s, 0, 1, 'elsewhere', %s, %s, %s, '{}')", (key, *booked))
    before = books.execute("select * from ledger.entry order by 1, 2").fetchall()
    jobs = []
    async with posting_adapter(ledger_db, kind) as (adapter, server):
        if lost == "dead worker":
            crash(database, marked=False)
        else:
            server.faults = ledger.Faults(cut_after_commit=1.0, most_per_key=1)
            jobs.append(await run_once(database, adapter))
            assert client.status(message_id).uncertain
            await asyncio.sleep(0.01)
        jobs.append(await run_once(database, adapter))
    status = client.status(message_id)
    assert (status.state, status.reason) == ("conflict", "key_conflict")
    assert rows(database, "select count(*) from trex.receipt") == [(0,)]
    assert sum(job.counters()["conflict"] for job in jobs) == 1
    assert sum(job.counters()["delivered"] for job in jobs) == 0
    assert books.execute("select * from ledger.entry order by 1, 2").fetchall() == before
    (cash,) = client.pending_cash_delta()
    assert (cash.pending, cash.uncertain, cash.skipped) == (0, 0, 1)
    assert_counters_equal_rows(database, *jobs)
    assert_sound(database)


@pytest.mark.parametrize("kind", ["http", "postgres"])
async def test_our_own_posting_is_found_as_ours(new_db, ledger_db, kind):
    database = new_db()
    client, message_id = setup(database, "lookup")
    key = wire_key("inst", "outbox", "k0")
    ledger_db.connect().execute(
        "select ledger.post(%s, 0, 1, 'pay.out', %s, 'USD', '1.000', '{}')", (key, account(0))
    )
    crash(database, marked=False)
    async with posting_adapter(ledger_db, kind) as (adapter, _):
        await run_once(database, adapter)
    status = client.status(message_id)
    assert (status.state, status.confirmed_by) == ("delivered", "lookup")


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ({}, "delivered"),
        ({"account": account(0)}, "delivered"),
        ({"currency": "USD", "cash_delta": Decimal(1)}, "delivered"),
        ({"cash_delta": Decimal("-1")}, "conflict"),
        ({"digest": "0" * 64}, "conflict"),
        ({"account": None}, "conflict"),
        ({"cash_delta": 1.0}, "unsure"),
        ({"cash_delta": "1.00"}, "unsure"),
        ({"cash_delta": Decimal("sNaN")}, "unsure"),
        ({"digest": b"0"}, "unsure"),
    ],
    ids=repr,
)
async def test_what_a_look_up_states_is_compared(new_db, found, state):
    database = new_db()
    client, message_id = setup(database, "lookup")
    claim = crash(database, marked=False)
    sink = FakeSink(policy="lookup", can_lookup=True, found=found)
    sink.effects[context_for("inst", claim).wire_key] = 1
    done = await run_once(database, sink)
    status = client.status(message_id)
    if state == "unsure":
        assert (status.state in {"deferred", "ready"}, status.uncertain) == (True, True)
        assert rows(
            database, "select distinct reason from trex.outcome where kind = 'unknown'"
        ) == [("response_invalid",)]
    else:
        assert status.state == state
    assert sink.calls == {}
    assert_counters_equal_rows(database, done)
    assert_sound(database)


async def test_a_digest_finds_another_payload(new_db):
    database = new_db()
    client, message_id = setup(database, "lookup")
    claim = crash(database, marked=False)
    sink = FakeSink(policy="lookup", can_lookup=True, found={"digest": payload_digest(claim)})
    sink.effects[context_for("inst", claim).wire_key] = 1
    await run_once(database, sink)
    assert client.status(message_id).confirmed_by == "lookup"


@pytest.mark.parametrize("says", ["lookup_failed", "boom", "garbage", "in_progress"])
async def test_a_look_up_without_an_answer(new_db, says):
    database = new_db()
    client, message_id = setup(database, "lookup")
    crash(database, marked=False)
    sink = FakeSink(policy="lookup", can_lookup=True, lookup_says=says)
    await run_once(database, sink)
    status = client.status(message_id)
    assert (status.state in {"deferred", "ready"}, status.uncertain) == (True, True)
    assert sink.calls == {}
    # A sink that is idempotent as well gets the same key again.
    other = FakeSink(policy="idempotent", can_lookup=True, lookup_says=says)
    database2 = new_db()
    client2, message_id2 = setup(database2, "idempotent")
    crash(database2, marked=False)
    await run_once(database2, other)
    assert client2.status(message_id2).confirmed_by == "same_key"


async def test_absent_counts_only_after_the_sinks_window(new_db):
    database = new_db()
    client, message_id = setup(database, "lookup")
    claim = crash(database, marked=False)
    key = context_for("inst", claim).wire_key

    class Late(FakeSink):
        async def lookup(self, wire_key):
            answer = await super().lookup(wire_key)
            self.effects[key] = 1  # the earlier request arrives just now
            return answer

    sink = Late(policy="lookup", can_lookup=True, in_flight=timedelta(seconds=4))
    await run_once(database, sink, concurrency=1)
    status = client.status(message_id)
    assert (status.state, status.confirmed_by) == ("delivered", "lookup")
    assert (sink.calls, sink.lookups) == ({}, 2)


async def test_waiting_for_the_window_uses_no_slot_and_ends_with_the_worker(new_db):
    database = new_db()
    client, message_id = setup(database, "lookup")
    crash(database, marked=False)
    enqueue(client, 20, prefix="n")
    sink = FakeSink(policy="lookup", can_lookup=True, in_flight=timedelta(seconds=30))
    made = job(database, sink, concurrency=1)
    running = asyncio.create_task(made.worker.run())
    async with asyncio.timeout(10):
        while made.counters()["delivered"] < 20:
            await asyncio.sleep(0.01)
        made.worker.stop()
        await running
    status = client.status(message_id)
    assert (status.state, status.uncertain, status.reason) == ("ready", True, "shutdown")
    assert_counters_equal_rows(database, made)


async def test_the_mark_is_committed_before_anything_leaves(new_db):
    database = new_db()
    client, message_id = setup(database, "at_most_once")
    seen = []

    async def look(claim):
        seen.append(rows(database, "select sent_fence = fence from trex.delivery"))

    await run_once(database, FakeSink(policy="at_most_once", on_call=look))
    assert seen == [[(True,)]]
    assert client.status(message_id).state == "delivered"


async def test_a_sink_that_does_not_announce_is_marked_first(new_db):
    database = new_db()
    client, message_id = setup(database, "at_most_once")
    sink = FakeSink(policy="at_most_once", announces_sending=False, script={"k0": ["boom_before"]})
    await run_once(database, sink)
    status = client.status(message_id)
    assert (status.state, status.uncertain) == ("unknown", True)


async def test_a_connection_that_was_never_made_does_not_use_up_the_one_call(new_db):
    database = new_db()
    client, message_id = setup(database, "at_most_once")
    sink = FakeSink(policy="at_most_once", script={"k0": ["unreachable", "not_sent"]})
    for _ in range(3):
        await asyncio.sleep(0.01)
        await run_once(database, sink)
    status = client.status(message_id)
    assert (status.state, status.attempts) == ("delivered", 3)
    assert sum(sink.calls.values()) == 1


async def test_a_refusal_after_the_one_call_is_certain(new_db):
    database = new_db()
    client, message_id = setup(database, "at_most_once")
    sink = FakeSink(policy="at_most_once", script={"k0": ["busy"]})
    await run_once(database, sink)
    status = client.status(message_id)
    assert (status.state, status.uncertain) == ("dead_letter", False)
    client.redrive([message_id], actor="ann", reason="the ledger is back")
    await run_once(database, sink)
    assert client.status(message_id).state == "delivered"
