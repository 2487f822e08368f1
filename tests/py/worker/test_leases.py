"""Leases, lost claims, draining: nothing is sent without a lease, or recorded for a lost one."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from datetime import timedelta
from decimal import Decimal

import pytest

from tests.support.rig import (
    FakeSink,
    assert_counters_equal_rows,
    assert_sound,
    books,
    enqueue,
    job,
    register,
    rows,
    run_once,
    until,
)
from trex_client.adapters import Snapshot
from trex_client.model import Report
from trex_client.postgres import PostgresClient
from trex_client.worker import Exit, Plan, Runtime

pytestmark = pytest.mark.criterion("ac-0046")


async def test_slow_calls_keep_their_leases(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 30)
    sink = FakeSink(slow=1.6)
    lease = timedelta(milliseconds=500)
    first = job(database, sink, lease=lease, concurrency=15, plan=Plan())
    second = job(database, sink, lease=lease, concurrency=15, plan=Plan())
    running = [asyncio.create_task(one.worker.run()) for one in (first, second)]
    await until(lambda: books(database)["delivered"] == 30)
    for one in (first, second):
        one.worker.stop()
    assert await asyncio.gather(*running) == [Exit.OK, Exit.OK]
    assert set(sink.calls.values()) == {1}
    assert len(sink.calls) == 30
    assert rows(database, "select count(*) from trex.outcome") == [(0,)]
    assert_counters_equal_rows(database, first, second)


@pytest.mark.case("A7")
async def test_the_tail_of_a_batch_is_not_sent_twice(new_db):
    # One slow call at a time, a lease shorter than the whole batch, and a second worker beside it.
    database = new_db()
    client = register(database)
    enqueue(client, 24)
    sink = FakeSink(slow=0.1)
    lease = timedelta(milliseconds=400)
    jobs = [job(database, sink, lease=lease, concurrency=1, prefetch=50) for _ in range(2)]
    await asyncio.gather(*(one.worker.run() for one in jobs))
    assert set(sink.calls.values()) == {1}
    assert books(database)["delivered"] == 24


class Skip:
    """A monotonic clock that can jump."""

    def __init__(self):
        self.ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead


@pytest.mark.case("A5")
async def test_no_call_begins_after_the_lease_ended(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 10)
    clock = Skip()

    async def freeze(claim):
        # The process stands still past the lease while one call is under way.
        clock.ahead += 40.0

    sink = FakeSink(on_call=freeze)
    made = job(
        database, sink, runtime=Runtime(monotonic=clock), concurrency=1, prefetch=0, batch=10,
        lease=timedelta(seconds=30),
    )  # fmt: skip
    made.worker._room = lambda: 0 if made.worker.draining else 10  # type: ignore[method-assign]
    running = asyncio.create_task(made.worker.run())
    await until(lambda: made.worker.counts["released"] >= 1)
    made.worker.stop()
    await running
    reasons = {reason for (reason,) in rows(database, "select reason from trex.outcome")}
    assert {"not_started"} <= reasons <= {"not_started", "shutdown"}
    assert set(sink.calls.values()) <= {1}
    assert_counters_equal_rows(database, made)


@pytest.mark.parametrize("lost_by", ["reclaim", "delivered elsewhere", "parked elsewhere"])
async def test_a_lost_claim_changes_nothing(new_db, lost_by):
    database = new_db()
    client = register(database)
    (message_id,) = enqueue(client, 1)
    other = PostgresClient(database.connect("worker"), "inst")
    before = []

    def picture():
        return [
            rows(database, f"select t::text from trex.{table} t order by 1")
            for table in ("delivery", "receipt", "outcome", "ledger_snapshot", "ledger_skip")
        ]

    async def lose(claim):
        database.clock.advance(60)
        (theirs,) = other.claim("other")
        if lost_by == "delivered elsewhere":
            other.complete(theirs.message_id, theirs.fence)
        elif lost_by == "parked elsewhere":
            other.fail(theirs.message_id, theirs.fence)
        before.append(picture())

    sink = FakeSink(on_call=lose, snapshot=lambda number: Snapshot(Decimal(5), 5))
    done = await run_once(database, sink)
    assert picture() == before[0]
    assert done.counters()["claim_lost"] == 1
    assert done.counters()["delivered"] == 0
    assert rows(database, "select message_id, result from trex.stale_report") == [
        (message_id, "completed")
    ]
    events = [line["event"] for line in done.lines]
    assert "delivered" not in events
    assert "claim_lost" in events
    assert_sound(database)


async def test_a_claim_lost_while_waiting_is_never_sent(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 5)
    sink = FakeSink(slow=0.5)
    made = job(database, sink, concurrency=1, lease=timedelta(milliseconds=300))
    made.worker._room = lambda: 5 if not made.worker._held else 0  # type: ignore[method-assign]
    running = asyncio.create_task(made.worker.run())
    await until(lambda: len(made.worker._held) == 5)
    database.clock.advance(60)
    other = PostgresClient(database.connect("worker"), "inst")
    theirs = other.claim("other", 10)
    other.record([Report(claim.message_id, claim.fence, "completed") for claim in theirs])
    await running
    assert len(theirs) >= 4
    assert sum(sink.calls.values()) <= 2
    assert made.counters()["claim_lost"] >= 4


# draining


@pytest.mark.case("B9")
async def test_draining_finishes_reports_and_releases(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 30)
    sink = FakeSink(slow=0.4)
    made = job(database, sink, concurrency=5, plan=Plan(), poll=0.05, drain=60.0)
    made.worker._room = lambda: 0 if made.worker.draining else 20  # type: ignore[method-assign]
    running = asyncio.create_task(made.worker.run())
    await until(lambda: sink.now == 5)
    made.worker.stop()
    assert await running is Exit.OK
    assert made.counters()["delivered"] == 5
    stats = client.stats()
    assert (stats.leased, stats.lease_ended, stats.ready + stats.due) == (0, 0, 25)
    assert rows(
        database, "select distinct kind, reason from trex.outcome"
    ) == [("released", "shutdown")]  # fmt: skip
    tries = rows(database, "select distinct tries from trex.delivery")
    assert tries == [(0,)]
    assert_counters_equal_rows(database, made)
    assert_sound(database)


async def test_claims_that_come_while_draining_are_given_back(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 8)
    sink = FakeSink()
    made = job(database, sink, plan=Plan())
    receive = made.worker._receive

    def receive_late(*args, **options):
        made.worker.stop()
        receive(*args, **options)

    made.worker._receive = receive_late  # type: ignore[method-assign]
    assert await made.worker.run() is Exit.OK
    assert sink.calls == {}
    stats = client.stats()
    assert (stats.leased, stats.ready + stats.due) == (0, 8)


def claims_two(worker):
    worker._room = lambda: 0 if worker.draining else 2


@pytest.mark.case("B11")
async def test_interruptions_before_the_send_use_up_nothing(new_db):
    database = new_db()
    client = register(database, max_attempts=3)
    enqueue(client, 2)
    for _ in range(5):
        sink = FakeSink(slow=0.1)
        made = job(database, sink, concurrency=1, plan=Plan(), prefetch=10)
        claims_two(made.worker)
        running = asyncio.create_task(made.worker.run())
        made.worker._start_waiting = lambda: None  # type: ignore[method-assign]
        held = made.worker._held
        await until(held.__len__)
        assert len(held) == 2
        made.worker.stop()
        await running
    assert rows(database, "select attempts, tries from trex.delivery") == [(5, 0), (5, 0)]
    await run_once(database, FakeSink())
    assert books(database)["delivered"] == 2


@pytest.mark.case("B9")
async def test_what_is_left_after_the_drain_time(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 3)
    sink = FakeSink(slow=30)
    made = job(database, sink, concurrency=3, plan=Plan(), drain=0.3)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: sink.now == 3)
    begin = time.monotonic()
    made.worker.stop()
    assert await running is Exit.LEFT_IN_FLIGHT
    assert time.monotonic() - begin < 5
    assert client.stats().leased == 3
    assert rows(database, "select * from trex.outcome") == []


async def test_a_call_that_has_not_left_is_given_back_after_the_drain_time(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 1)

    class Hanging(FakeSink):
        async def deliver(self, claim, context):
            self.now += 1
            await asyncio.sleep(60)
            await context.sending()

    sink = Hanging()
    made = job(database, sink, plan=Plan(), drain=0.2)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: sink.now == 1)
    made.worker.stop()
    assert await running is Exit.OK
    assert client.stats().leased == 0
    assert rows(database, "select kind, reason from trex.outcome") == [("released", "shutdown")]


@pytest.mark.parametrize("sent", [True, False])
async def test_a_call_that_never_ends_is_ended(new_db, sent):
    database = new_db()
    client = register(database, backoff_base=timedelta(seconds=60))
    (message_id, *_) = enqueue(client, 5)

    class Hanging(FakeSink):
        async def deliver(self, claim, context):
            if claim.message_id == message_id:
                if sent:
                    await context.sending()
                await asyncio.sleep(600)
            return await super().deliver(claim, context)

    done = await run_once(
        database, Hanging(), concurrency=2, longest_call=0.3, lease=timedelta(seconds=1)
    )
    status = client.status(message_id)
    assert (status.state, status.reason, status.uncertain) == ("deferred", "timeout", sent)
    assert done.counters()["delivered"] == 4
    assert_counters_equal_rows(database, done)


# being refused


async def test_an_unbound_role_is_told_by_the_exit_code(new_db):
    database = new_db()
    register(database)
    made = job(database, FakeSink(), role="other", plan=Plan())
    assert await made.worker.run() is Exit.ACCESS_DENIED
    assert "access_denied" in {line.get("result") for line in made.lines}


async def test_losing_the_binding_ends_the_worker(new_db):
    database = new_db()
    client = register(database)
    made = job(database, FakeSink(), plan=Plan(), poll=0.05)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: made.worker.connected)
    client.unbind("trex_test_worker", actor="t", reason="t")
    assert await asyncio.wait_for(running, 10) is Exit.ACCESS_DENIED


async def test_a_lease_that_the_instance_does_not_allow(new_db):
    database = new_db()
    register(database, lease_max=timedelta(seconds=60))
    made = job(database, FakeSink(), lease=timedelta(seconds=61))
    assert await made.worker.run() is Exit.USAGE


def test_settings_are_checked():
    from trex_client.errors import InvalidArgument
    from trex_client.worker import WorkerSettings

    for bad in (
        {"concurrency": 0},
        {"batch": 1001},
        {"poll": 0.0},
        {"lease": timedelta(milliseconds=99)},
        {"drain": -1.0},
    ):
        with pytest.raises(InvalidArgument):
            dataclasses.replace(WorkerSettings(), **bad)
