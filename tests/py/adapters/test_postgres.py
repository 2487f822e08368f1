"""The adapter `postgres`: key and effect are one transaction of the ledger's database."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from trex_client import ledger
from trex_client.adapters import (
    Absent,
    ConfigError,
    Conflict,
    Delivered,
    Duplicate,
    Found,
    NotSure,
    Permanent,
    Retryable,
    Snapshot,
    Unknown,
    build_adapter,
)
from trex_client.adapters.base import context_for
from trex_client.testing import make_claim

pytestmark = pytest.mark.criterion("ac-0049")


@pytest.fixture
def ledger_db(new_db):
    database = new_db(migrated=False)
    ledger.install(database.dsn())
    return database


@pytest.fixture
async def adapter(ledger_db):
    made = adapter_for(ledger_db)
    yield made
    await made.close()


def adapter_for(database, **settings):
    table = {"kind": "postgres", "dsn": {"env": "D"}, **settings}
    return build_adapter("inst", table, environ={"D": database.dsn()})


async def deliver(adapter, **changes):
    claim = make_claim(**{"amount": Decimal("10.00"), **changes})
    return await adapter.deliver(claim, context_for("inst", claim))


KEY = context_for("inst", make_claim()).wire_key


async def test_posts_once_and_tells_the_balance(adapter, ledger_db):
    first = await deliver(adapter)
    assert isinstance(first, Delivered)
    assert first.snapshot == Snapshot(Decimal("10.00"), 1)
    again = await deliver(adapter, attempt=2, fence=2)
    assert again == Duplicate(first.reference, first.snapshot)
    claim = make_claim(amount=Decimal("10.00"))
    found = await adapter.lookup(KEY)
    assert found == Found(
        first.reference,
        first.snapshot,
        account=claim.account,
        currency="USD",
        cash_delta=Decimal("10.00"),
    )
    assert found.is_of(claim)
    assert str(claim.account) not in repr(found)
    assert await adapter.lookup("00" * 32) == Absent()
    counts = ledger.counts(ledger_db.dsn())
    assert (counts.effects, counts.most_effects, counts.drift) == (1, 1, 0)
    assert counts.imbalance == 0


@pytest.mark.criterion("ac-0033")
async def test_a_posting_without_cash_is_not_ours_with_cash(adapter):
    await deliver(adapter, amount=None)
    found = await adapter.lookup(KEY)
    assert (found.account, found.currency, found.cash_delta) == (None, None, None)
    assert found.is_of(make_claim())
    assert not found.is_of(make_claim(amount=Decimal("10.00")))


@pytest.mark.criterion("ac-0033")
async def test_a_look_up_that_does_not_state_content_is_no_answer(ledger_db):
    ledger_db.connect().execute(
        "create function ledger.old(key text, out found boolean, out reference text,"
        " out balance numeric, out version bigint) language sql as"
        " $$ select true, 'r', null::numeric, null::bigint $$"
    )
    adapter = adapter_for(ledger_db, lookup="ledger.old")
    assert await adapter.lookup(KEY) == NotSure("lookup_failed")
    await adapter.close()


async def test_other_content_and_a_lower_fence(adapter):
    await deliver(adapter, fence=5)
    assert await deliver(adapter, fence=6, amount=Decimal("11.00")) == Conflict()
    assert await deliver(adapter, fence=4) == Unknown("stale_version")


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ("refused", Permanent("rejected", absent=True)),
        ("conflict", Conflict()),
        ("retry", Retryable("unavailable")),
    ],
)
async def test_what_the_ledger_answers(adapter, ledger_db, planted, expected):
    ledger_db.connect().execute("insert into ledger.fault values (%s, %s)", (KEY, planted))
    assert await deliver(adapter) == expected
    assert ledger.counts(ledger_db.dsn()).effects == 0


async def test_an_error_of_the_ledger_rolls_back_and_is_certain(adapter, ledger_db):
    conn = ledger_db.connect()
    conn.execute("alter table ledger.entry add constraint canary check (amount < 5)")
    assert await deliver(adapter) == Permanent("rejected")
    conn.execute("alter table ledger.entry drop constraint canary")
    conn.execute("alter table ledger.entry rename to gone")
    assert await deliver(adapter, fence=2) == Retryable("unavailable")
    conn.execute("alter table ledger.gone rename to entry")
    assert isinstance(await deliver(adapter, fence=3), Delivered)


async def test_a_call_that_takes_too_long_is_cancelled_and_certain(ledger_db):
    adapter = adapter_for(ledger_db, call_timeout=0.2)
    blocker = ledger_db.connect(autocommit=False)
    blocker.execute("lock table ledger.posting in access exclusive mode")
    assert await deliver(adapter) == Retryable("unavailable")
    assert await adapter.lookup(KEY) == NotSure("lookup_failed")
    blocker.rollback()
    assert isinstance(await deliver(adapter, fence=2), Delivered)
    await adapter.close()


async def test_a_session_ended_in_the_middle_is_unknown(adapter, ledger_db):
    blocker = ledger_db.connect(autocommit=False)
    blocker.execute("lock table ledger.posting in access exclusive mode")
    call = asyncio.create_task(deliver(adapter))
    admin = ledger_db.connect()
    victim = None
    while victim is None:
        await asyncio.sleep(0.01)
        victim = admin.execute(
            "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = %s",
            (ledger_db.dbname,),
        ).fetchone()
    admin.execute("select pg_terminate_backend(%s)", victim)
    assert await call == Unknown("connection_lost")
    blocker.rollback()
    assert isinstance(await deliver(adapter, fence=2), Delivered)


async def test_a_session_that_died_while_idle_is_replaced(adapter, ledger_db):
    await deliver(adapter)
    ledger_db.connect().execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = %s and pid <> pg_backend_pid()",
        (ledger_db.dbname,),
    )
    await asyncio.sleep(0.1)
    assert isinstance(await deliver(adapter, key="other"), Delivered)


async def test_sessions_are_bounded(ledger_db):
    adapter = adapter_for(ledger_db, connections=2, pool_timeout=30)
    await asyncio.gather(*(deliver(adapter, key=f"k{n}") for n in range(20)))
    row = (
        ledger_db.connect()
        .execute(
            "select count(*) from pg_stat_activity"
            " where datname = %s and application_name = 'trex'",
            (ledger_db.dbname,),
        )
        .fetchone()
    )
    assert row[0] <= 2
    await adapter.close()


async def test_a_session_of_ours_that_is_not_free_in_time_costs_no_try(ledger_db):
    adapter = adapter_for(ledger_db, connections=1, pool_timeout=0.1)
    assert adapter.concurrency == 1
    blocker = ledger_db.connect(autocommit=False)
    blocker.execute("lock table ledger.posting in access exclusive mode")
    first = asyncio.create_task(deliver(adapter))
    await asyncio.sleep(0)
    assert await deliver(adapter, key="other") == Retryable("not_started")
    assert await adapter.lookup(KEY) == NotSure("not_started")
    blocker.rollback()
    assert isinstance(await first, Delivered)
    await adapter.close()


@pytest.mark.parametrize(
    "dsn", ["canary", "password='canary", "postgresql://u:canary@[h/db", "host=h pass canary=1"]
)
def test_a_connection_string_that_cannot_be_read_is_refused_at_once(dsn):
    with pytest.raises(ConfigError) as caught:
        build_adapter("inst", {"kind": "postgres", "dsn": {"env": "D"}}, environ={"D": dsn})
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dsn": "postgresql://u:canary@h/db"},
        {"dsn": {"env": "MISSING"}},
        {"dsn": {"env": "D"}, "service": "s"},
        {"service": "s; x"},
        {"dsn": {"env": "D"}, "function": "ledger.post(); drop table x"},
        {"dsn": {"env": "D"}, "function": "post"},
        {"dsn": {"env": "D"}, "connections": 0},
        {"dsn": {"env": "D"}, "function": "a.b", "policy": "lookup"},
        {"dsn": {"env": "D"}, "call_timeout": 5, "in_flight": 1},
    ],
    ids=repr,
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ConfigError) as caught:
        build_adapter("inst", {"kind": "postgres", **settings}, environ={"D": "dbname=x"})
    assert "canary" not in str(caught.value)
