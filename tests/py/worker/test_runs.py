"""Backfill and targeted processing: the daemon's loop and rules, once; several workers at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
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
    enqueue,
    job,
    register,
    rows,
    run_once,
    until,
)
from trex_client import ledger
from trex_client._calls_reconcile import AllCalls
from trex_client.errors import InvalidArgument
from trex_client.postgres import PostgresClient
from trex_client.worker import Exit, Once, Plan, Program, Runtime, WorkerSettings
from trex_client.worker import daemon as daemon_program
from trex_client.worker import run_once as program_once
from trex_client.worker.link import connector
from trex_client.worker.run import RunCounts, is_ready

pytestmark = pytest.mark.criterion("ac-0047")

SETTINGS = WorkerSettings(stats=0.0, reach=5.0)
SERIALIZABLE = "-c default_transaction_isolation=serializable"


@pytest.fixture
def ledger_db(new_db):
    database = new_db(migrated=False)
    ledger.install(database.dsn())
    return database


def program(database, server, role="worker", **changes):
    values = {
        "instance_key": KEY,
        "dsn": database.dsn(role),
        "settings": SETTINGS,
        "adapter": server.adapter_config(),
        "level": "error",
    }
    return Program(**{**values, **changes})


@pytest.mark.case("O1")
async def test_backfill_gives_exact_counts_and_ends(new_db, ledger_db):
    database = new_db()
    client = register(database)
    enqueue(client, 50)
    async with ledger.LedgerServer(ledger_db.dsn()) as server:
        code, counts = await program_once(program(database, server))
        assert (code, counts.claimed, counts.delivered) == (Exit.OK, 50, 50)
        code, counts = await program_once(program(database, server))
        assert (code, counts.claimed) == (Exit.OK, 0)
        assert server.counts().effects == 50
    assert_sound(database)


@pytest.mark.case("O2")
async def test_two_backfills_and_a_daemon_at_once(new_db, ledger_db):
    database = new_db()
    client = register(database)
    enqueue(client, 300)
    async with ledger.LedgerServer(ledger_db.dsn()) as server:
        config = server.adapter_config()
        from trex_client.adapters import build_adapter

        made = job(database, build_adapter(KEY, config), plan=Plan(), batch=20, concurrency=10)
        beside = asyncio.create_task(made.worker.run())
        results = await asyncio.gather(*(program_once(program(database, server)) for _ in range(2)))
        await until(lambda: books(database)["delivered"] == 300)
        made.worker.stop()
        await beside
        delivered = sum(counts.delivered + counts.duplicate for _, counts in results)
        assert delivered + made.counters()["delivered"] + made.counters()["duplicate"] == 300
        found = server.counts()
        assert (found.effects, found.most_effects) == (300, 1)
    assert_sound(database)


async def test_backfill_of_one_topic_puts_the_others_back(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 30, prefix="a", topic="other.topic")
    mine = enqueue(client, 10, prefix="b", topic="my.topic")
    enqueue(client, 30, prefix="c", topic="other.topic")
    plan = Once(topic="my.topic")
    sink = FakeSink()
    await run_once(database, sink, plan=plan, batch=20)
    assert (plan.claimed, len(sink.effects)) == (10, 10)
    assert all(client.status(message_id).state == "delivered" for message_id in mine)
    found = rows(database, "select distinct kind, reason from trex.outcome")
    assert found == [("postponed", "waiting")]
    assert rows(database, "select max(tries) from trex.delivery") == [(0,)]


async def test_backfill_of_one_topic_and_few_messages_asks_for_whole_batches(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 40, prefix="a", topic="other.topic")
    enqueue(client, 10, prefix="b", topic="my.topic")
    plan = Once(topic="my.topic", limit=3)
    sink = FakeSink()
    done = await run_once(database, sink, plan=plan, batch=50)
    assert (plan.claimed, len(sink.effects), done.worker.counts["set_aside"]) == (3, 3, 47)
    assert rows(database, "select max(attempts), max(tries) from trex.delivery") == [(1, 0)]
    kinds = "select kind, count(*) from trex.outcome group by kind order by kind"
    assert rows(database, kinds) == [("postponed", 40), ("released", 7)]
    assert client.stats().due == 7


@pytest.mark.parametrize("correlation", [None, "order-1"])
async def test_a_run_goes_on_with_what_its_own_deliveries_free(new_db, correlation):
    database = new_db()
    client = register(database, backoff_base=timedelta(minutes=1))
    for key in ("x", "y"):
        enqueue(client, 15, prefix=key, correlation_id="order-1", ordering_key=key)
    plan = Once(correlation_id=correlation)
    sink = FakeSink(slow=0.01, script={"x3": ["busy"]})
    done = await run_once(database, sink, plan=plan)
    # All of one key, and of the other one those before the one that has to wait.
    assert done.counters()["delivered"] == 15 + 3


async def test_backfill_stops_at_its_limit(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 30)
    plan = Once(limit=7)
    done = await run_once(database, FakeSink(), plan=plan, concurrency=4)
    assert done.counters()["claimed"] == done.counters()["delivered"] == 7
    assert client.stats().ready == 23


async def test_backfill_does_not_try_a_failing_row_for_ever(new_db):
    database = new_db()
    client = register(
        database, max_attempts=1000, backoff_base=timedelta(milliseconds=1),
        backoff_cap=timedelta(milliseconds=1),
    )  # fmt: skip
    enqueue(client, 20)
    done = await run_once(database, FakeSink(default="busy"))
    assert 20 <= done.counters()["retried"] <= 200


async def test_backfill_ends_although_rows_keep_coming(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 20)
    (now,) = rows(database, "select clock_timestamp()")
    writer = PostgresClient(database.connect("app"), KEY)
    number = 0

    async def feed(claim):
        nonlocal number
        number += 1
        enqueue(writer, 1, prefix=f"new{number}-")

    done = await run_once(
        database, FakeSink(on_call=feed), plan=Once(until=now[0]), batch=5, concurrency=5
    )
    assert 20 <= done.counters()["delivered"] < 200


async def test_backfill_with_retrying_rows(new_db, ledger_db):
    database = new_db()
    client = register(database, backoff_base=timedelta(hours=1))
    enqueue(client, 12)
    await run_once(database, FakeSink(default="busy"))
    assert client.stats().deferred == 12
    async with ledger.LedgerServer(ledger_db.dsn()) as server:
        code, counts = await program_once(program(database, server))
        assert (code, counts.claimed, counts.expedited) == (Exit.OK, 0, 0)
        code, counts = await program_once(
            program(database, server, role=None), include_retrying=("ann", "ledger is back"),
            limit=5,
        )  # fmt: skip
        assert (code, counts.expedited, counts.delivered) == (Exit.OK, 5, 5)
        code, counts = await program_once(
            program(database, server, role=None), include_retrying=("ann", "ledger is back")
        )
        assert (code, counts.expedited, counts.delivered) == (Exit.OK, 7, 7)
    audited = rows(database, "select count(*) from trex.audit where action = 'expedite'")
    assert audited == [(12,)]


async def test_waiting_for_a_slow_ledgers_connections_costs_no_try(new_db, ledger_db, tmp_path):
    database = new_db()
    client = register(database, max_attempts=1)
    enqueue(client, 12)
    ledger_db.connect().execute(
        "create function ledger.slow(key text, fence bigint, attempt integer, topic text,"
        " account text, currency text, amount numeric, payload jsonb, out result text,"
        " out reference text, out balance numeric, out version bigint) language sql volatile as"
        " $$ select 'posted', null::text, null::numeric, null::bigint from pg_sleep(0.1) $$"
    )
    file = tmp_path / "dsn"
    file.write_text(ledger_db.dsn())
    slow = Program(
        instance_key=KEY, dsn=database.dsn("worker"), settings=SETTINGS, level="error",
        adapter={"kind": "postgres", "dsn": {"file": str(file)}, "function": "ledger.slow",
                 "connections": 2, "pool_timeout": 0.15},
    )  # fmt: skip
    code, counts = await program_once(slow)
    assert (code, counts.delivered, counts.claimed) == (Exit.OK, 12, 12)
    assert rows(database, "select distinct kind from trex.outcome") == []


async def test_a_paused_instance_is_said(new_db, capfd):
    database = new_db()
    client = register(database)
    enqueue(client, 1)
    client.pause(actor="ann", reason="stock-taking")
    quiet = Program(
        instance_key=KEY, dsn=database.dsn("worker"), settings=SETTINGS, level="warning",
        adapter={"kind": "none"},
    )  # fmt: skip
    assert (await program_once(quiet))[1].claimed == 0
    assert '"event": "paused"' in capfd.readouterr().err
    client.resume(actor="ann", reason="done")
    assert (await program_once(quiet))[1].claimed == 1
    assert '"event": "paused"' not in capfd.readouterr().err


@pytest.mark.case("O1")
async def test_an_interrupted_backfill_goes_on(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 40)
    sink = FakeSink(slow=0.05)
    first = job(database, sink, concurrency=4)
    running = asyncio.create_task(first.worker.run())
    await until(lambda: first.counters()["delivered"] >= 8)
    first.worker.stop()
    assert await running is Exit.OK
    second = await run_once(database, FakeSink(effects=sink.effects, content=sink.content))
    assert first.counters()["delivered"] + second.counters()["delivered"] == 40
    assert second.counters()["duplicate"] == 0
    assert_counters_equal_rows(database, first, second)


# one correlation


async def test_targeted_processing_touches_one_correlation(new_db, ledger_db):
    database = new_db()
    client = register(database)
    ids = enqueue(client, 6, correlation_id="order-1")
    enqueue(client, 6, prefix="x", correlation_id="order-2")
    async with ledger.LedgerServer(ledger_db.dsn()) as server:
        code, counts = await program_once(program(database, server), correlation_id="order-1")
        assert (code, counts.claimed, counts.delivered) == (Exit.OK, 6, 6)
        code, counts = await program_once(program(database, server), correlation_id="order-1")
        assert (code, counts.claimed) == (Exit.EMPTY, 0)
        code, _ = await program_once(program(database, server), correlation_id="nobody's")
        assert code is Exit.EMPTY
    assert all(client.status(message_id).state == "delivered" for message_id in ids)
    assert client.stats().ready == 6


@pytest.mark.parametrize("correlation", ["", " blank ", "x" * 256, "a\tb", "a\0b", "\ud800"])
async def test_a_correlation_that_is_none_is_named_before_anything_connects(correlation):
    unreachable = Program(
        instance_key=KEY, dsn="host=/nonexistent", adapter={"kind": "none"}, level="error"
    )
    with pytest.raises(InvalidArgument, match="correlation"):
        await program_once(unreachable, correlation_id=correlation)


async def test_targeted_processing_leaves_leased_and_parked_rows_alone(new_db):
    database = new_db()
    client = register(database)
    leased, parked, _free = enqueue(client, 3, correlation_id="order-1")
    other = PostgresClient(database.connect("worker"), KEY)
    claims = other.claim("other", 2)
    other.fail(parked, claims[1].fence)
    sink = FakeSink()
    done = await run_once(database, sink, plan=Once(correlation_id="order-1"))
    assert done.counters()["delivered"] == 1
    assert client.status(leased).state == "leased"
    assert client.status(parked).state == "permanent"


@pytest.mark.case("I7")
async def test_an_uncommitted_message_is_delivered_later(new_db):
    database = new_db()
    register(database)
    writer = PostgresClient(database.connect("app", autocommit=False), KEY)
    enqueue(writer, 1, correlation_id="order-1")
    done = await run_once(database, FakeSink(), plan=Once(correlation_id="order-1"))
    assert done.counters()["claimed"] == 0
    writer._conn.commit()
    done = await run_once(database, FakeSink(), plan=Once(correlation_id="order-1"))
    assert done.counters()["delivered"] == 1


# many workers, many instances


async def test_instances_keep_to_themselves(new_db):
    database = new_db()
    sinks = {}
    jobs = []
    for key in ("a", "b", "c"):
        client = register(database, key)
        enqueue(client, 60)
        sinks[key] = FakeSink()
        jobs += [job(database, sinks[key], key=key, batch=7, concurrency=4) for _ in range(2)]
    await asyncio.gather(*(one.worker.run() for one in jobs))
    for key, sink in sinks.items():
        assert (len(sink.effects), set(sink.calls.values())) == (60, {1})
        assert_sound(database, key)
    assert not set(sinks["a"].effects) & set(sinks["b"].effects)


@pytest.mark.parametrize("key", ["", " ", None, "UPPER", "a b"])
async def test_nothing_connects_without_an_instance_key(key):
    with pytest.raises(InvalidArgument):
        connector("host=unreachable.invalid", key)
    broken = Program(instance_key=key, dsn="host=unreachable.invalid", adapter={"kind": "none"})
    with pytest.raises(InvalidArgument):
        await daemon_program(broken)
    with pytest.raises(InvalidArgument):
        await program_once(broken, correlation_id="x")


def test_a_connection_string_that_cannot_be_read_is_not_shown():
    with pytest.raises(InvalidArgument) as caught:
        connector("password=canary 'oops", KEY)
    assert "canary" not in str(caught.value)


async def test_a_run_does_not_wait_for_ever(ledger_db):
    async with ledger.LedgerServer(ledger_db.dsn()) as server:
        lost = Program(
            instance_key=KEY,
            dsn="host=/nonexistent",
            settings=WorkerSettings(reach=0.3, backoff=0.05),
            adapter=server.adapter_config(),
            level="error",
        )
        code, counts = await program_once(lost)
    assert (code, counts.claimed) == (Exit.UNREACHABLE, 0)


async def test_a_role_without_the_right_is_told_at_once(new_db, ledger_db):
    database = new_db()
    enqueue(register(database), 1, delay=timedelta(hours=1))
    alerts = []

    async def webhook(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        alerts.append(await reader.readuntil(b"}"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    hook = await asyncio.start_server(webhook, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hook.sockets[0].getsockname()[1]}/"
    async with ledger.LedgerServer(ledger_db.dsn()) as server, hook:
        told = {"webhook": url, "webhook_networks": ("127.0.0.0/8",)}
        denied = program(database, server, role="app", settings=WorkerSettings(stats=0.0), **told)
        assert await program_once(denied) == (Exit.ACCESS_DENIED, RunCounts())
        assert await daemon_program(denied) is Exit.ACCESS_DENIED
        code, _ = await program_once(program(database, server), include_retrying=("a", "r"))
    assert code is Exit.ACCESS_DENIED
    assert [b"access_denied" in alert for alert in alerts] == [True, True]


async def test_busy_slots_leave_a_worker_ready(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 3)
    now = [0.0]
    runtime = replace(Runtime(), monotonic=lambda: time.monotonic() + now[0])
    sink = FakeSink(slow=3600.0)
    made = job(database, sink, plan=Plan(), concurrency=2, runtime=runtime, drain=0.0)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: sink.now == 2)
    assert is_ready(made.worker)
    now[0] += 300.0
    assert is_ready(made.worker)
    made.worker.stop()
    assert not is_ready(made.worker)
    await running


@pytest.mark.parametrize("prepare", [True, False])
async def test_a_workers_connections_are_read_committed_whatever_the_default_is(
    new_db, ledger_db, prepare
):
    database = new_db()
    client = register(database)
    enqueue(client, 3)
    client.run(AllCalls(KEY).enqueue("t", "c", {}, correlation_id="c"))
    dsn = f"{database.dsn('worker')} options='{SERIALIZABLE}'"
    settings = replace(SETTINGS, listen=prepare)
    async with ledger.LedgerServer(ledger_db.dsn()) as server:
        one = program(database, server, dsn=dsn, settings=settings)
        code, counts = await program_once(one, correlation_id="c")
        assert (code, counts.delivered) == (Exit.OK, 1)
        code, counts = await program_once(one)
        assert (code, counts.delivered) == (Exit.OK, 3)
    assert_sound(database)


async def test_a_wrong_isolation_level_is_told_at_once(new_db):
    database = new_db()
    register(database)
    with Pooler(f"{database.dsn('worker')} options='{SERIALIZABLE}'", size=1) as pooler:
        made = job(pooler.dsn, FakeSink(), plan=Plan())
        assert await asyncio.wait_for(made.worker.run(), 30) is Exit.USAGE
        assert "TX501" in {line.get("result") for line in made.lines}
        # Nothing of ours stays on a connection that others get.
        with psycopg.connect(pooler.dsn, autocommit=True) as theirs:
            shown = theirs.execute("show default_transaction_isolation").fetchone()
        assert shown == ("serializable",)


async def test_a_schema_that_is_not_there(empty_db, ledger_db):
    async with ledger.LedgerServer(ledger_db.dsn()) as server:
        code, _ = await program_once(program(empty_db, server, role=None))
    assert code is Exit.SCHEMA
