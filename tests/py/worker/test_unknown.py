"""Unknown outcomes: three crash points, three kinds of sink; effects are counted at the sink."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.rig import (
    FakeSink,
    assert_counters_equal_rows,
    assert_sound,
    enqueue,
    job,
    register,
    rows,
    run_once,
)
from trex_client.adapters.base import context_for
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
