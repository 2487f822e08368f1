"""The loop over time: waking up, hints, losing the server, bounded noise."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import psycopg
import pytest

from tests.support.pooler import Pooler
from tests.support.rig import (
    KEY,
    FakeSink,
    assert_counters_equal_rows,
    assert_sound,
    books,
    counters,
    enqueue,
    job,
    register,
    rows,
    until,
)
from trex_client.postgres import PostgresClient
from trex_client.testing import make_claim
from trex_client.worker import Exit, Plan, Runtime, connector
from trex_client.worker.plans import Hints, Once
from trex_client.worker.run import is_ready

pytestmark = pytest.mark.criterion("ac-0046")
LEASE = timedelta(seconds=30)


# hints


def got(hints, at, ids, *, swept=False, limit=10, attempt=1):
    claims = [make_claim(attempt=attempt, message_id=i) for i in ids]
    hints.done(at, at, swept=swept, claims=claims, limit=limit, lease=LEASE)


def test_the_hint_trails_what_was_got_by_200_milliseconds():
    hints = Hints(0.0)
    assert hints.next(0.0) == (0, None)
    got(hints, 0.0, range(1, 11), swept=True)
    assert hints.next(0.1)[0] == 0
    assert hints.next(0.21)[0] == 10
    got(hints, 0.21, [11, 15])
    assert hints.next(0.3)[0] == 10
    assert hints.next(0.42)[0] == 15


def test_a_sweep_comes_by_time_and_never_because_nothing_was_found():
    hints = Hints(0.0)
    got(hints, 0.0, [5], swept=True)
    for at in (0.3, 0.5, 0.9):
        got(hints, at, [])
        assert hints.next(at)[0] == 5
    assert hints.next(1.0) == (0, None)
    claims = [make_claim(message_id=9)]
    hints.done(1.0, 1.5, swept=True, claims=claims, limit=10, lease=LEASE)
    assert hints.next(11.4)[0] == 9
    assert hints.next(11.51) == (0, None)


def test_retried_messages_move_no_hint():
    hints = Hints(0.0)
    got(hints, 0.0, [5], swept=True)
    got(hints, 0.1, [900], attempt=2)
    assert hints.next(0.9)[0] == 5


def test_the_due_hint_trails_the_last_answer_that_left_nothing():
    hints = Hints(0.0)
    got(hints, 0.0, [1], swept=True, limit=1)
    assert hints.next(0.5)[1] is None
    claim = make_claim(message_id=2)
    hints.done(0.5, 0.5, swept=False, claims=[claim], limit=10, lease=LEASE)
    assert hints.next(0.9)[1] == claim.lease_until - LEASE - timedelta(seconds=0.2)


def test_a_run_is_over_when_a_sweep_brings_nothing_old():
    plan = Once()
    first = [make_claim(message_id=1), make_claim(message_id=2)]
    assert plan.take(first, swept=True, now=0.0) == (first, [])
    assert not plan.over
    plan.take([], swept=False, now=0.0)
    assert not plan.over
    assert plan.sweep_next
    plan.take(first[:1], swept=True, now=0.0)
    assert not plan.over
    for claim in first:
        plan.ended(claim, "retried")
    plan.take(first[:1], swept=True, now=0.0)
    assert plan.over


# waking up


async def test_an_idle_worker_is_woken(new_db):
    database = new_db()
    client = register(database)
    sink = FakeSink()
    made = job(database, sink, plan=Plan(), poll=30.0)
    running = asyncio.create_task(made.worker.run())
    listening = "select count(*) from trex.listener where until > clock_timestamp()"
    await until(lambda: rows(database, listening) == [(1,)])
    await until(lambda: made.worker._idle_rounds >= 6)
    begin = time.monotonic()
    for number in range(3):
        enqueue(client, 1, prefix=f"n{number}-")
        await until(lambda: len(sink.effects) > number)  # noqa: B023
        await asyncio.sleep(0.1)
    assert time.monotonic() - begin < 10
    made.worker.stop()
    assert await running is Exit.OK


async def test_without_listening_it_polls(new_db):
    database = new_db()
    client = register(database)
    sink = FakeSink()
    made = job(database, sink, plan=Plan(), poll=0.2, listen=False)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: made.worker._idle_rounds >= 6)
    assert rows(database, "select * from trex.listener") == []
    enqueue(client, 1)
    await until(lambda: len(sink.effects) == 1)
    made.worker.stop()
    assert await running is Exit.OK


async def test_a_busy_worker_does_not_listen(new_db):
    database = new_db()
    client = register(database)
    sink = FakeSink(slow=0.01)
    made = job(database, sink, plan=Plan(), poll=0.2, concurrency=2)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: rows(database, "select * from trex.listener"))
    enqueue(client, 600)
    await until(lambda: rows(database, "select * from trex.listener") == [])
    assert books(database)["delivered"] < 600
    made.worker.stop()
    await running


@pytest.mark.case("I1")
async def test_a_late_committer_is_found_at_once(new_db):
    database = new_db()
    client = register(database)
    late = PostgresClient(database.connect("app", autocommit=False), KEY)
    enqueue(late, 1, prefix="late")
    enqueue(client, 5)
    sink = FakeSink()
    made = job(database, sink, plan=Plan(), poll=0.1)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: len(sink.effects) == 5)
    late._conn.commit()
    await until(lambda: len(sink.effects) == 6, seconds=5)
    made.worker.stop()
    await running


@pytest.mark.case("B12", "I5")
async def test_failing_rows_do_not_hold_up_good_ones(new_db):
    database = new_db()
    client = register(database, backoff_base=timedelta(seconds=5))
    enqueue(client, 100, prefix="bad")
    enqueue(client, 10, prefix="good")
    sink = FakeSink(script={f"bad{n}": ["busy"] * 50 for n in range(100)})
    made = job(database, sink, plan=Plan(), batch=50, concurrency=50)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: len(sink.effects) == 10, seconds=10)
    assert max(sink.calls.values()) <= 2
    made.worker.stop()
    await running


async def test_ordered_messages_are_delivered_in_order_through_retries(new_db):
    database = new_db()
    client = register(
        database, backoff_base=timedelta(milliseconds=20), backoff_cap=timedelta(milliseconds=20)
    )
    enqueue(client, 8, ordering_key="account-1")
    order = []

    class Ordered(FakeSink):
        def _answer(self, step, claim, context):
            answer = super()._answer(step, claim, context)
            if context.wire_key in self.effects:
                order.append(claim.idempotency_key)
            return answer

    sink = Ordered(script={"k0": ["busy", "busy"], "k3": ["busy"]})
    made = job(database, sink, plan=Plan(), poll=0.05)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: len(order) == 8)
    made.worker.stop()
    await running
    assert order == [f"k{n}" for n in range(8)]


# losing the server


async def test_terminated_sessions_lose_nothing(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 1500)
    sink = FakeSink(slow=0.002)
    made = job(database, sink, plan=Plan(), poll=0.05, concurrency=32, batch=32)
    running = asyncio.create_task(made.worker.run())
    killed = 0
    admin = database.connect()
    while books(database)["delivered"] + books(database)["duplicate"] < 1500:
        await asyncio.sleep(0.1)
        killed += len(
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = %s and usename = 'trex_test_worker'",
                (database.dbname,),
            ).fetchall()
        )
    made.worker.stop()
    assert await running is Exit.OK
    assert killed >= 2
    assert "connection_lost" in {line["event"] for line in made.lines}
    assert set(sink.effects.values()) == {1}
    assert len(sink.effects) == 1500
    assert_counters_equal_rows(database, made)
    assert_sound(database)


@pytest.mark.case("B12")
async def test_a_restart_is_survived_and_noise_is_bounded(private_server):
    server = private_server()
    database = server.create_database()
    server.load_schema(database.dbname)
    client = register(database, lease_default=timedelta(seconds=2))
    enqueue(client, 200)
    sink = FakeSink(slow=0.05)
    made = job(database, sink, plan=Plan(), poll=0.05, concurrency=8, level="info", stats=0.2)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: made.counters()["delivered"] > 10)
    for mode in ("immediate", "fast"):
        server.embedded.stop(mode)
        await asyncio.sleep(1.5)
        assert not is_ready(made.worker)
        server.embedded.start()
        await until(lambda: is_ready(made.worker))
    await until(lambda: len(sink.effects) == 200)
    await until(lambda: not rows(database, "select * from trex.delivery"))
    made.worker.stop()
    assert await running is Exit.OK
    assert set(sink.effects.values()) == {1}
    noise = [line for line in made.lines if line["event"] in {"connect_failed", "connection_lost"}]
    assert len(noise) < 60
    assert_sound(database)
    # An answered commit is counted; one whose answer was lost is counted when it is repeated.
    found = books(database)
    assert made.counters()["delivered"] == found["delivered"]
    assert made.counters()["duplicate"] == found["duplicate"]


@pytest.mark.case("F5")
async def test_f3_statements_of_two_workers_meet_on_a_poolers_connections(pg_db):
    """With psycopg's defaults one worker's statement name is another's statement there."""
    client = register(pg_db)
    enqueue(client, 400)
    sink = FakeSink()
    with Pooler(pg_db.dsn("worker"), size=2) as pooler:
        made = [job(pooler.dsn, sink, plan=Plan(), poll=0.05, batch=4) for _ in "12"]
        running = [asyncio.create_task(one.worker.run()) for one in made]
        await until(lambda: books(pg_db)["delivered"] == 400)
        for one in made:
            one.worker.stop()
        assert await asyncio.gather(*running) == [Exit.OK] * 2
        # What a client gets that doesn't look: proof that this pooler is one.
        theirs = [psycopg.connect(pooler.dsn, autocommit=True) for _ in "12"]
        codes = set()
        for number in range(10):
            try:
                theirs[number % 2].execute(f"select {number % 2}", prepare=True)
            except psycopg.Error as error:
                codes.add(error.sqlstate)
        assert codes & {"42P05", "26000"}
        for conn in theirs:
            conn.close()
        assert pooler.switches > 100
    assert {line["event"] for one in made for line in one.lines} <= {
        "started", "connected", "claimed", "delivered", "released", "draining", "stopped",
    }  # fmt: skip
    assert set(sink.effects.values()) == {1}
    left = "select 1 from pg_stat_activity where state like 'idle in transaction%%'"
    assert rows(pg_db, left) == []
    assert_counters_equal_rows(pg_db, *made)
    assert_sound(pg_db)


async def test_a_read_only_server_changes_nothing_until_it_is_primary_again(new_db):
    database = new_db()
    client = register(database)
    sink = FakeSink()
    made = job(database, sink, plan=Plan(), poll=0.05)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: is_ready(made.worker))
    admin = database.connect()
    name = database.dbname
    admin.execute(f"alter database {name} set default_transaction_read_only = on")
    admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = %s and pid <> pg_backend_pid()",
        (name,),
    )
    await until(lambda: not is_ready(made.worker))
    await asyncio.sleep(0.5)
    assert {line.get("result") for line in made.lines} >= {"not_primary"}
    admin.execute(f"alter database {name} reset default_transaction_read_only")
    admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = %s and pid <> pg_backend_pid()",
        (name,),
    )
    writer = PostgresClient(database.connect(), KEY)
    enqueue(writer, 3)
    await until(lambda: len(sink.effects) == 3)
    made.worker.stop()
    assert await running is Exit.OK
    del client


async def test_stopping_without_a_server_does_not_hang():
    made = job("host=/nonexistent", FakeSink(), plan=Plan())
    running = asyncio.create_task(made.worker.run())
    await asyncio.sleep(0.2)
    made.worker.stop()
    assert await asyncio.wait_for(running, 5) is Exit.OK


def rename_table(database, old, new):
    database.connect().execute(f"alter table trex.{old} rename to {new}")


def rename_database(database, old, new):
    """A database that isn't there any more, and then is again."""
    names = {"delivery": database.dbname, "gone": f"{database.dbname}_gone"}
    with database.server.admin() as conn:
        conn.execute(f"alter database {names[old]} allow_connections false")
        conn.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s",
            (names[old],),
        )
        conn.execute(f"alter database {names[old]} rename to {names[new]}")
        conn.execute(f"alter database {names[new]} allow_connections true")


@pytest.mark.case("B12")
@pytest.mark.parametrize("rename", [rename_table, rename_database])
async def test_a_broken_database_is_no_busy_loop(new_db, rename):
    """Counted, not timed: how often the worker tries and what it says, while the pauses that it
    asks for would add up to a minute; and it goes on by itself."""
    database = new_db()
    client = register(database)
    enqueue(client, 1)
    tries = []
    connect = connector(database.dsn("worker"), KEY)

    async def counted():
        tries.append(1)
        return await connect()

    async def sleep(seconds):
        await asyncio.sleep(seconds / 50)

    runtime = Runtime(sleep=sleep, monotonic=lambda: time.monotonic() * 50)
    sink = FakeSink()
    made = job(
        database, sink, plan=Plan(), poll=0.5, listen=False, connect=counted, runtime=runtime,
        level="info", backoff=0.1, backoff_cap=5.0, call_timeout=500.0,
    )  # fmt: skip
    running = asyncio.create_task(made.worker.run())
    await until(lambda: sink.effects)
    rename(database, "delivery", "gone")
    tries.clear()
    begin = runtime.monotonic()
    await until(lambda: runtime.monotonic() - begin > 60)
    assert len(tries) < 40
    assert len(made.lines) < 40
    rename(database, "gone", "delivery")
    enqueue(PostgresClient(database.connect(), KEY), 1, prefix="n")
    await until(lambda: len(sink.effects) == 2)
    made.worker.stop()
    assert await running is Exit.OK


async def test_the_gauges_show_what_the_database_says(new_db):
    database = new_db()
    client = register(database)
    ids = enqueue(client, 4)
    other = PostgresClient(database.connect("worker"), KEY)
    (claim,) = other.claim("other")
    other.fail(claim.message_id, claim.fence)
    client.pause(actor="t", reason="t")
    made = job(database, FakeSink(), plan=Plan(), stats=0.1)
    running = asyncio.create_task(made.worker.run())

    def gauge(name, **labels):
        return made.telemetry.registry.get_sample_value(name, {"trex_instance": KEY, **labels})

    await until(lambda: gauge("trex_due", box="outbox") == 3)
    assert gauge("trex_parked", box="outbox", state="permanent") == 1
    assert gauge("trex_pending_cash_entries") == len(ids)
    assert 0 <= gauge("trex_oldest_due_seconds", box="outbox") < 120
    assert gauge("trex_connected", box="outbox") == 1
    made.worker.stop()
    await running
    assert counters(made.telemetry)["claimed"] == 0
