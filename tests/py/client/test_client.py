"""The clients on real PostgreSQL: every method, transactions, errors, prepared statements."""

from __future__ import annotations

import asyncio
import traceback
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.numeric import FloatLoader

from trex_client.errors import (
    AccessDenied,
    ClaimLost,
    CommitUnknown,
    EndedOtherwise,
    Forbidden,
    InvalidArgument,
    KeyReused,
    NotFound,
    NotPrimary,
    TrexError,
    WrongTransaction,
)
from trex_client.model import Movement, Report
from trex_client.postgres import AsyncPostgresClient, PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

    Connect = Callable[..., psycopg.Connection[Any]]

WHO: dict[str, Any] = {"actor": "ann", "reason": "test"}
CASH: dict[str, Any] = {"account": "a1", "currency": "USD", "cash_delta": Decimal("-12.5")}


def test_a_message_from_enqueue_to_receipt(shop: PostgresClient) -> None:
    enqueued = shop.enqueue("post", "k1", {"b": Decimal("1.50"), "a": "é"}, **CASH)
    assert (
        shop.enqueue("post", "k1", {"a": "é", "b": Decimal("1.50")}, **CASH).status == "duplicate"
    )
    (pending,) = shop.list_pending()
    assert pending.cash_delta == Decimal("-12.50")
    assert pending.state == "ready"
    (claim,) = shop.claim("w1")
    assert claim.message_id == enqueued.message_id
    assert claim.payload_json == '{"a": "é", "b": 1.50}'
    assert claim.payload == {"a": "é", "b": Decimal("1.50")}
    assert claim.lease_until.tzinfo is UTC
    assert claim.enqueued_at.tzinfo is UTC
    (cash,) = shop.pending_cash_delta()
    assert (cash.pending, cash.uncertain, cash.skipped) == (
        Decimal("-12.5"),
        Decimal(0),
        Decimal(0),
    )
    (extended,) = shop.extend([claim.message_id], [claim.fence], lease=timedelta(minutes=2))
    assert extended.lease_until is not None
    assert extended.lease_until > claim.lease_until
    assert shop.hold(claim.message_id, claim.fence).status == "recorded"
    assert shop.mark_sent(claim.message_id, claim.fence).status == "recorded"
    done = shop.complete(claim.message_id, claim.fence, balance=Decimal("87.5"), version=3)
    assert (done.status, done.state) == ("recorded", "delivered")
    assert shop.complete(claim.message_id, claim.fence).status == "already_recorded"
    status = shop.status(idempotency_key="k1")
    assert (status.state, status.duplicate, status.confirmed_by) == ("delivered", False, "answer")
    assert status.delivered_at is not None
    assert shop.stats().leased == 0


def test_every_outcome(shop: PostgresClient) -> None:
    shop.enqueue_many([Movement("post", f"k{i}", i) for i in range(9)])
    c = shop.claim("w1", 9)
    assert [x.idempotency_key for x in c] == [f"k{i}" for i in range(9)]
    assert shop.retry(c[0].message_id, c[0].fence, reason="timeout").state == "deferred"
    assert shop.mark_unknown(c[1].message_id, c[1].fence, park=True).state == "unknown"
    assert shop.conflict(c[2].message_id, c[2].fence).state == "conflict"
    assert shop.fail(c[3].message_id, c[3].fence).state == "permanent"
    assert shop.dead_letter(c[4].message_id, c[4].fence).state == "dead_letter"
    assert shop.complete_duplicate(c[5].message_id, c[5].fence).state == "delivered"
    assert shop.release(c[6].message_id, c[6].fence).state == "ready"
    postponed = shop.postpone(c[7].message_id, c[7].fence, timedelta(hours=1))
    assert postponed.state == "deferred"
    assert postponed.due_at is not None
    assert postponed.due_at > datetime.now(UTC) + timedelta(minutes=59)
    assert {p.parked for p in shop.list_parked()} == {
        "unknown",
        "conflict",
        "permanent",
        "dead_letter",
    }
    redriven = shop.redrive([c[3].message_id, c[1].message_id, 999], **WHO)
    assert [r.status for r in redriven] == ["redriven", "needs_resolve", "not_found"]
    assert [r.status for r in shop.expedite([c[7].message_id], **WHO)] == ["expedited"]
    resolved = shop.resolve(c[1].message_id, "delivered", evidence="statement", **WHO)
    assert resolved.state == "delivered"
    with pytest.raises(Forbidden):
        shop.resolve(c[4].message_id, "resend", evidence="statement", **WHO)


def test_record_and_exchange(shop: PostgresClient) -> None:
    shop.enqueue_many([Movement("post", f"k{i}", i, **CASH) for i in range(5)])
    first = shop.exchange([], "w1", 3)
    assert first.recorded == []
    a, b, c = first.claims
    reports = [
        Report(c.message_id, c.fence, "completed", balance=Decimal("1.25"), version=1),
        Report(a.message_id, a.fence, "retry", "rate_limited", timedelta(seconds=90)),
        Report(b.message_id, b.fence + 1, "completed", reference='re"f\\,null{}'),
        Report(999, 1, "completed"),
    ]
    second = shop.exchange(reports, "w1", 10, lease=timedelta(seconds=5))
    assert [r.status for r in second.recorded] == [
        "recorded",
        "recorded",
        "claim_lost",
        "not_found",
    ]
    assert [r.message_id for r in second.recorded] == [r.message_id for r in reports]
    assert len(second.claims) == 2
    (again,) = shop.record([Report(b.message_id, b.fence, "duplicate", reference='re"f\\,null{}')])
    assert (again.status, again.state) == ("recorded", "delivered")
    assert shop.status(b.message_id).reference == 're"f\\,null{}'
    assert shop.record([]) == []


def test_operator_calls(shop: PostgresClient, conn: psycopg.Connection[Any]) -> None:
    assert shop.register_instance(**WHO) == "unchanged"
    assert shop.register_instance(max_attempts=3, wake=False, **WHO) == "changed"
    policy = shop.policy()
    assert (policy.max_attempts, policy.wake) == (3, False)
    assert policy.lease_default == timedelta(seconds=30)
    assert "trex_test_worker" in policy.bound_roles
    assert shop.unbind("trex_test_worker", **WHO) is True
    assert shop.unbind("trex_test_worker", **WHO) is False
    assert shop.pause(**WHO) is True
    assert shop.pause(**WHO) is False
    shop.enqueue("post", "k", 1)
    assert shop.claim("w1") == []
    assert shop.resume(**WHO) is True
    before = shop.bump_epoch(**WHO)
    assert shop.bump_epoch(**WHO) == before + 1
    assert shop.register_currency("SHELL", 4, **WHO) is True
    assert shop.register_currency("SHELL", 4, **WHO) is False
    channel = shop.listen("w1", timedelta(seconds=5))
    assert channel.startswith("trex_")
    shop.unlisten("w1")
    (claim,) = shop.claim("w1")
    shop.complete(claim.message_id, claim.fence)
    purged = shop.purge(timedelta(0), dry_run=True, **WHO)
    assert (purged.examined, purged.purged) == (1, 1)


def test_payload_json_is_the_same_as_payload(shop: PostgresClient) -> None:
    shop.enqueue("post", "k", {"a": [1, Decimal("2.0")], "b": None})
    same = shop.enqueue("post", "k", payload_json=' {"b":null,"a":[1,2.0]} ')
    assert same.status == "duplicate"
    with pytest.raises(KeyReused):
        shop.enqueue("post", "k", payload_json='{"b":null,"a":[1,2]}')
    assert shop.enqueue("post", "k", 1, on_conflict="report").status == "conflict"
    assert shop.enqueue("post", "null", payload_json="null").status == "enqueued"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "NaN", '"\\u0000"', '"\\ud800"', "1e200000",
        "[" * 100_000 + "]" * 100_000, "{'a': 1}", "Infinity", "1e-20000", "9" * 131_073,
        '"\\udc00"', '"\\udc00\\ud800"', '"\\ud83d\\u0041"', '{"\\u0000": 1}', '"\\\\\\u0000"',
        "01",
        '{"a": "\\u0000", "a": 1}', "\ufeff1", "\ud800", "1\0", '"\t"', "1 2",
    ],
    ids=lambda text: text[:10],
)  # fmt: skip
def test_payload_json_that_is_no_json(shop: PostgresClient, text: str) -> None:
    shop._conn.autocommit = False
    with pytest.raises(InvalidArgument, match="payload"):
        shop.enqueue("post", "k", payload_json=text)
    # It didn't reach the server, whose log would have had a part of it.
    assert shop._conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with pytest.raises(InvalidArgument, match="definition"):
        shop.machine_load("m", definition_json=text, actor="ann", reason="r")
    assert shop._conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    shop._conn.autocommit = True
    assert shop.list_pending() == []


@pytest.mark.parametrize(
    "text",
    [
        '"\\ud83d\\ude00"', '"\\\\u0000"', '"\\\\ud800"', '"\\u00e9\\"\\/\\b"',
        "9" * 131_072, "1e131071",
        "-1E-16383", ' {"a" :\n[1.50, -0, true, null]}\t', '{"a": 1, "a": 2}', '"\x7f"',
        "[" * 256 + "]" * 256,
    ],
    ids=lambda text: text[:10],
)  # fmt: skip
def test_payload_json_that_the_server_takes(shop: PostgresClient, text: str) -> None:
    assert shop.enqueue("post", "k", payload_json=text).status == "enqueued"


def test_errors_name_the_argument_or_the_movement(shop: PostgresClient) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        shop.claim("w", 0)
    with pytest.raises(InvalidArgument, match="worker"):
        shop.claim(" w")
    with pytest.raises(InvalidArgument, match="movement 2"):
        shop.enqueue_many([Movement("t", "k", 1), Movement("T", "k2", 2)])
    shop.enqueue("t", "k2", 1)
    with pytest.raises(KeyReused, match="movement 2"):
        shop.enqueue_many([Movement("t", "k", 1), Movement("t", "k2", 2)])


# Transactions


def test_claim_commits_on_a_connection_without_autocommit(
    shop: PostgresClient, connect: Connect
) -> None:
    shop.enqueue_many([Movement("post", f"k{i}", i) for i in range(3)])
    conn = connect(autocommit=False)
    client = PostgresClient(conn, "shop")
    (claim,) = client.claim("w1")
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert shop.status(claim.message_id).state == "leased"
    client.complete(claim.message_id, claim.fence)
    assert shop.status(claim.message_id).state == "leased"
    with pytest.raises(WrongTransaction):
        client.claim("w1")
    with pytest.raises(WrongTransaction):
        client.exchange([], "w1")
    conn.commit()
    assert shop.status(claim.message_id).state == "delivered"
    with pytest.raises(InvalidArgument):
        client.claim("w1", 0)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert len(client.exchange([], "w1").claims) == 1


def test_claim_refuses_every_kind_of_open_transaction(
    shop: PostgresClient, conn: psycopg.Connection[Any]
) -> None:
    with conn.transaction(), pytest.raises(WrongTransaction):
        shop.claim("w1")
    conn.execute("begin")
    with pytest.raises(psycopg.Error):
        conn.execute("select 1/0")
    with pytest.raises(WrongTransaction):
        shop.claim("w1")
    conn.execute("rollback")
    with conn.pipeline(), pytest.raises(WrongTransaction):
        shop.claim("w1")
    conn.execute("set default_transaction_isolation = 'repeatable read'")
    with pytest.raises(WrongTransaction):
        shop.claim("w1")
    conn.execute("reset default_transaction_isolation")
    assert shop.claim("w1") == []


def test_enqueue_belongs_to_the_callers_transaction(
    shop: PostgresClient, conn: psycopg.Connection[Any]
) -> None:
    with conn.transaction(force_rollback=True):
        shop.enqueue("post", "k", 1)
    with pytest.raises(NotFound):
        shop.status(idempotency_key="k")


def test_read_only_is_not_primary(shop: PostgresClient, conn: psycopg.Connection[Any]) -> None:
    conn.execute("set default_transaction_read_only = on")
    with pytest.raises(NotPrimary):
        shop.enqueue("post", "k", 1)
    assert shop.list_pending() == []


# Lost claims


def lost(shop: PostgresClient, db: Database) -> tuple[int, int]:
    """A claim that somebody else holds by now."""
    shop.enqueue("post", "k", 1)
    (claim,) = shop.claim("w1", lease=timedelta(seconds=1))
    db.clock.advance(2)
    (taken,) = shop.claim("w2")
    assert taken.message_id == claim.message_id
    return claim.message_id, claim.fence


def stale(db: Database) -> list[str]:
    rows = db.connect().execute("select result from trex.stale_report order by 1").fetchall()
    return [row[0] for row in rows]


def test_a_lost_claim_raises_and_leaves_evidence(shop: PostgresClient, pg_db: Database) -> None:
    message_id, fence = lost(shop, pg_db)
    with pytest.raises(ClaimLost):
        shop.complete(message_id, fence)
    with pytest.raises(ClaimLost):
        shop.retry(message_id, fence)
    assert stale(pg_db) == ["completed", "retry"]
    assert shop.report_stale(message_id, fence, "completed") is False
    assert shop.complete(message_id, fence, on_lost="report").status == "claim_lost"
    with pytest.raises(ClaimLost):
        shop.mark_sent(message_id, fence)
    assert stale(pg_db) == ["completed", "retry"]


def test_a_lost_claim_in_a_callers_transaction_leaves_the_evidence_to_the_caller(
    shop: PostgresClient, pg_db: Database, conn: psycopg.Connection[Any]
) -> None:
    message_id, fence = lost(shop, pg_db)
    with conn.transaction():
        conn.execute("create table effect ()")
        with pytest.raises(ClaimLost):
            shop.complete(message_id, fence)
        raise psycopg.Rollback
    assert stale(pg_db) == []
    row = conn.execute("select to_regclass('effect')").fetchone()
    assert row == (None,)
    assert shop.report_stale(message_id, fence, "completed") is True
    assert stale(pg_db) == ["completed"]


def test_other_refusals_are_typed(shop: PostgresClient, conn: psycopg.Connection[Any]) -> None:
    shop.enqueue("post", "k", 1)
    (claim,) = shop.claim("w1")
    shop.retry(claim.message_id, claim.fence)
    with pytest.raises(EndedOtherwise):
        shop.complete(claim.message_id, claim.fence)
    with pytest.raises(NotFound):
        shop.complete(999, 1)
    with pytest.raises(AccessDenied):
        PostgresClient(conn, "nobody").stats()


# Errors carry nothing


SECRET = "s3cr3t-value"


def assert_silent(error: BaseException) -> None:
    assert error.__cause__ is None
    assert error.__context__ is None
    text = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    assert SECRET not in text
    assert "psycopg.errors" not in text


@pytest.mark.case("M5")
def test_errors_carry_no_text_of_the_server(
    shop: PostgresClient, conn: psycopg.Connection[Any], connect: Connect
) -> None:
    shop.enqueue("post", SECRET, {"a": 1})
    refusals: list[Callable[[], object]] = [
        lambda: shop.enqueue("post", SECRET, {"a": 2}),
        lambda: shop.enqueue("post", "k", payload_json='{"' + SECRET),
        lambda: shop.claim(SECRET + "\n"),
        lambda: PostgresClient(conn, "nobody").enqueue("post", SECRET, 1),
        lambda: PostgresClient(connect("reader"), "shop").enqueue("post", SECRET, 1),
    ]
    for refusal in refusals:
        with pytest.raises(TrexError) as info:
            refusal()
        assert_silent(info.value)


def test_a_lost_connection_is_an_unknown_commit(shop: PostgresClient, connect: Connect) -> None:
    for autocommit in (True, False):
        other = connect(autocommit=autocommit)
        client = PostgresClient(other, "shop")
        shop._conn.execute("select pg_terminate_backend(%s, 5000)", (other.info.backend_pid,))
        for _ in range(2):
            with pytest.raises(CommitUnknown) as info:
                client.claim("w1")
            assert_silent(info.value)
        with pytest.raises(CommitUnknown):
            client.enqueue("post", "k", 1)


def test_idle_transactions_that_the_server_ends_are_lost_connections(
    shop: PostgresClient, connect: Connect
) -> None:
    shop.enqueue("post", "k", 1)
    (claim,) = shop.claim("w1")
    conn = connect(autocommit=False)
    client = PostgresClient(conn, "shop")
    client.hold(claim.message_id, claim.fence, timeout=timedelta(milliseconds=100))
    shop._conn.execute(
        "select pg_sleep(0.05) from generate_series(1, 100)"
        " where exists (select from pg_stat_activity where pid = %s)",
        (conn.info.backend_pid,),
    )
    with pytest.raises(CommitUnknown):
        client.complete(claim.message_id, claim.fence)


def test_a_failed_commit_is_unknown(
    shop: PostgresClient, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.enqueue("post", "k", 1)
    conn = connect(autocommit=False)

    def commit() -> None:
        shop._conn.execute("select pg_terminate_backend(%s, 5000)", (conn.info.backend_pid,))
        psycopg.Connection.commit(conn)

    monkeypatch.setattr(conn, "commit", commit)
    with pytest.raises(CommitUnknown) as info:
        PostgresClient(conn, "shop").claim("w1")
    assert_silent(info.value)


# The connection's own habits don't matter


def test_other_factories_loaders_and_settings_do_not_matter(
    shop: PostgresClient, connect: Connect
) -> None:
    conn = connect(row_factory=dict_row, cursor_factory=psycopg.RawCursor, prepare_threshold=0)
    conn.adapters.register_loader("numeric", FloatLoader)
    conn.execute("set timezone = 'Asia/Kolkata'")
    conn.execute("set datestyle = 'German, DMY'")
    conn.execute("set intervalstyle = 'sql_standard'")
    conn.execute("set search_path = pg_temp")
    client = PostgresClient(conn, "shop")
    client.enqueue("post", "k", {"a": "é"}, delay=timedelta(seconds=0), **CASH)
    (cash,) = client.pending_cash_delta()
    assert isinstance(cash.pending, Decimal)
    (claim,) = client.claim("w1", due_after=datetime(2026, 1, 2, tzinfo=UTC))
    assert isinstance(claim.cash_delta, Decimal)
    assert abs(claim.enqueued_at - datetime.now(UTC)) < timedelta(minutes=1)
    done = client.retry(claim.message_id, claim.fence, delay=timedelta(days=1, microseconds=5))
    assert done.due_at is not None
    assert client.policy().lease_max == timedelta(minutes=15)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("autocommit", [True, False])
def test_another_client_encoding_is_refused_before_anything_is_claimed(
    shop: PostgresClient, connect: Connect, encoding: str, autocommit: bool
) -> None:
    shop.enqueue("post", "k", {"a": "é"}, account="ä", currency="USD", cash_delta=1)
    conn = connect(client_encoding=encoding)
    conn.autocommit = autocommit
    client = PostgresClient(conn, "shop")
    calls: list[Callable[[], object]] = [
        lambda: client.claim("w1"), client.policy, client.list_pending,
        lambda: client.enqueue("post", "k2", {}),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidArgument, match="client_encoding") as info:
            call()
        assert_silent(info.value)
        assert conn.info.transaction_status == TransactionStatus.IDLE
    conn.autocommit = True
    conn.execute("set client_encoding = 'UTF8'")
    assert [claim.payload for claim in client.claim("w1")] == [{"a": "é"}]


def test_a_hint_of_ours_is_shown_whole(shop: PostgresClient) -> None:
    with pytest.raises(InvalidArgument) as info:
        shop.claim("w1", limit=0)
    assert str(info.value) == "invalid argument: limit: from 1 to 1000"


def test_hot_calls_are_prepared_once_whatever_the_numbers(
    shop: PostgresClient, conn: psycopg.Connection[Any]
) -> None:
    for i in (1, 40_000, 3_000_000_000):
        shop.complete(i, i, on_lost="report")
        shop.record([Report(i, i, "completed"), Report(i + 1, 1, "retry", "timeout")])
        shop.claim("w1", after=i)
    rows = conn.execute("select statement from pg_prepared_statements").fetchall()
    assert len([row for row in rows if "trex." in row[0]]) == 3


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.case("F3")
def test_statements_are_prepared_again_when_the_server_forgot_them(
    shop: PostgresClient, connect: Connect, autocommit: bool
) -> None:
    shop.enqueue_many([Movement("post", f"k{i}", i) for i in range(3)])
    conn = connect(autocommit=autocommit)
    client = PostgresClient(conn, "shop")
    assert len(client.claim("w1")) == 1
    for _ in range(2):
        conn.pgconn.exec_(b"deallocate all")
        assert len(client.claim("w1")) == 1


@pytest.mark.case("F2")
def test_statements_are_prepared_again_when_a_result_type_changed(
    shop: PostgresClient, pg_db: Database, conn: psycopg.Connection[Any]
) -> None:
    shop.enqueue("post", "k", 1)
    (claim,) = shop.claim("w1")
    shop.complete(claim.message_id, claim.fence)
    # A later release may return another type under the same name; the old plan is of no use then.
    with pg_db.connect() as other, other.transaction():
        for statement in (
            (
                "create type trex.recorded_later as (message_id bigint, fence bigint,"
                " status varchar, state text, late boolean, due_at timestamptz)"
            ),
            "drop function trex.complete",
            (
                "create function trex.complete(p_instance_key text, p_message_id bigint,"
                " p_fence bigint, p_reference text, p_confirmed_by text, p_balance numeric,"
                " p_version bigint, p_on_lost text) returns trex.recorded_later language sql"
                " return row(1, 2, 'recorded', 'delivered', false, null)::trex.recorded_later"
            ),
        ):
            other.execute(statement)
    assert shop.complete(claim.message_id, claim.fence).fence == 2
    assert shop.complete(claim.message_id, claim.fence).status == "recorded"
    rows = conn.execute(
        "select count(*) from pg_prepared_statements where statement like '%trex.complete%'"
    ).fetchone()
    assert rows == (1,)


# The asynchronous client


async def test_the_asynchronous_client(shop: PostgresClient, pg_db: Database) -> None:
    async with await psycopg.AsyncConnection.connect(pg_db.dsn()) as conn:
        client = AsyncPostgresClient(conn, "shop")
        await client.enqueue("post", "k", {"a": 1}, **CASH)
        await client.enqueue_many([Movement("post", "k2", 2)])
        with pytest.raises(WrongTransaction):
            await client.claim("w1")
        await conn.commit()
        first, second = await client.claim("w1", 2)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        await client.complete(first.message_id, first.fence)
        await conn.commit()
        done = await client.exchange([Report(second.message_id, second.fence, "retry")], "w1")
        assert [r.status for r in done.recorded] == ["recorded"]
        with pytest.raises(InvalidArgument) as info:
            await client.claim("w1", 0)
        assert_silent(info.value)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        await conn.set_autocommit(True)
        with pytest.raises(ClaimLost) as lost_info:
            await client.complete(second.message_id, second.fence + 1)
        assert_silent(lost_info.value)
        await conn.execute("select pg_advisory_lock(7)")


async def test_a_cancelled_claim_leaves_no_transaction_open(
    shop: PostgresClient, pg_db: Database
) -> None:
    blocker = pg_db.connect(autocommit=False)
    blocker.execute("lock table trex.delivery in access exclusive mode")
    async with await psycopg.AsyncConnection.connect(pg_db.dsn()) as conn:
        client = AsyncPostgresClient(conn, "shop")
        task = asyncio.create_task(client.claim("w1"))
        watcher = pg_db.connect()
        for _ in range(500):
            await asyncio.sleep(0.01)
            if watcher.execute(
                "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'",
                (conn.info.backend_pid,),
            ).fetchone():
                break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        blocker.rollback()
        assert await client.claim("w1") == []
