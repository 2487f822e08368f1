"""Public failure reports of systems like this one, as tests named after the case's id.

Each runs on the simulation and on every PostgreSQL server where both make sense. Cases of other
parts (daemon, adapters, inbox, migrations, telemetry) have their tests there.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.backends import WHO, text
from tests.support.looks import stopped_at
from tests.support.sessions import Session, waits
from trex_client.errors import (
    ClaimLost,
    DatabaseError,
    EndedOtherwise,
    InvalidArgument,
    KeyReused,
    SerializationFailure,
)
from trex_client.memory import _backoff
from trex_client.model import Movement, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.backends import Backend, PostgresBackend
    from trex_client.api import Trex
    from trex_client.model import Claim

pytestmark = pytest.mark.criterion("ac-0029")

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
CASH: dict[str, Any] = {"account": "a", "currency": "USD", "cash_delta": Decimal(10)}


def fill(shop: Trex, count: int, **columns: Any) -> None:
    shop.enqueue_many([Movement("t", f"k{n}", n, **columns) for n in range(1, count + 1)])


def ids(claims: list[Claim]) -> list[int]:
    return [claim.message_id for claim in claims]


# A. Lease, fence, stale worker


class Looking:
    """One message, and a claim that has seen that it could be claimed, and has yet to lock it.

    Args:
        path: which of the looks of a claim: at ready rows, at them when something is due as well,
            at due rows, at those of a correlation.
        lapsed: the message has a lease that ended, `fence`; else it has none.
    """

    def __init__(self, postgres: PostgresBackend, path: str, *, lapsed: bool) -> None:
        postgres.uncompared()
        self.postgres = postgres
        # Whether anything is due is asked before due rows are.
        self.look = 2 if path == "due" else 1
        self.shop = postgres.register("shop", max_attempts=9)
        # The first claim after a start raises the epoch, and all others wait for its end.
        self.shop.claim("first")
        delay = SECOND if path == "due" else None
        self.shop.enqueue("t", "k", {}, correlation_id="c", delay=delay)
        if path == "due":
            postgres.advance(1)
        self.fence = 0
        if lapsed:
            (claim,) = self.shop.claim("old", lease=SECOND)
            self.fence = claim.fence
            postgres.advance(1)
        self.others: list[int] = []
        if path == "ready beside due":
            self.others = [self.shop.enqueue("t", "other", {}, delay=SECOND).message_id]
            postgres.advance(1)
        self.correlation_id = "c" if path == "correlation" else None

    def claims(self, meanwhile: Callable[[], object]) -> list[int]:
        """What the claim gets beside `others` when the row has changed at that moment."""
        client = self.postgres.client("shop", "second")
        conn = self.postgres.connection(client)
        with stopped_at(self.postgres.admin, conn, 1, look=self.look) as go_on:
            call = Session(client, conn).start(
                "claim", "late", 9, correlation_id=self.correlation_id
            )
            assert waits(self.postgres.admin, call)
            meanwhile()
            before = self.postgres.rows("delivery", message_id=1)
            go_on()
            got = ids(call.outcome())
        assert self.postgres.rows("delivery", message_id=1) == before
        return [number for number in got if number not in self.others]


PATHS = ["ready", "ready beside due", "due", "correlation"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("meanwhile", ["completed", "extended", "retried", "claimed again"])
def test_a1_the_sweep_repeats_its_test(
    postgres: PostgresBackend, meanwhile: str, path: str
) -> None:
    """The sweep is part of claim: it tests state and lease on the row that it has locked."""
    looking = Looking(postgres, path, lapsed=True)
    shop, fence = looking.shop, looking.fence
    changes: dict[str, Callable[[], object]] = {
        "completed": lambda: shop.complete(1, fence),
        "extended": lambda: shop.extend([1], [fence]),
        "retried": lambda: shop.retry(1, fence, delay=HOUR),
        "claimed again": lambda: shop.claim("v", 9),
    }
    assert looking.claims(changes[meanwhile]) == []
    # The end that the sweep would write is written once, by who has claimed the row.
    ends = postgres.rows("outcome", kind="lease_expired")
    assert len(ends) == (meanwhile == "claimed again")


@pytest.mark.parametrize("meanwhile", ["completed", "claimed again"])
def test_a1_the_sweep_steps_over_a_locked_row(postgres: PostgresBackend, meanwhile: str) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    fill(shop, 1)
    (old,) = shop.claim("w", lease=SECOND)
    postgres.advance(1)
    worker, sweeper = postgres.client("shop"), postgres.client("shop", "second")
    mine = postgres.connection(worker)
    mine.execute("begin")
    if meanwhile == "completed":
        worker.complete(1, old.fence)
    else:
        worker.hold(1, old.fence)
    call = Session(sweeper, postgres.connection(sweeper)).start("claim", "v", 9)
    assert not waits(postgres.admin, call)
    assert call.outcome() == []
    mine.execute("commit")
    if meanwhile == "completed":
        assert sweeper.claim("v", 9) == []
        assert postgres.row("receipt")["fence"] == old.fence
        assert postgres.rows("outcome") == []
    else:
        (new,) = sweeper.claim("v", 9)
        before = postgres.row("delivery")
        assert worker.claim("x", 9) == []
        assert postgres.row("delivery") == before
        assert before["fence"] == new.fence


def test_a2_a_late_report_never_breaks_the_claims_of_others(backend: Backend, shop: Trex) -> None:
    fill(shop, 1)
    (first,) = shop.claim("w")
    shop.retry(1, first.fence)
    backend.advance(10)
    (f2,) = shop.claim("w", lease=SECOND)
    backend.advance(1)
    (f3,) = shop.claim("v")
    assert f3.attempt == 3
    # Where the case says dead_letter: an earlier attempt may have left, so it parks as unknown.
    assert shop.dead_letter(1, f3.fence).state == "unknown"
    before = backend.row("delivery")
    with pytest.raises(ClaimLost):
        shop.retry(1, f2.fence)
    assert backend.row("delivery") == before
    shop.enqueue_many([Movement("t", f"fresh{n}", n) for n in range(9)])
    assert len(shop.claim("w", 10)) == 9


def test_a5_late_finishers_are_told(backend: Backend, shop: Trex) -> None:
    """One key, several calls: the ledger applies once, and only the last holder records."""
    fill(shop, 1)
    applied: set[str] = set()
    calls = []
    fences = []
    for _ in range(3):
        (claim,) = shop.claim("w", lease=2 * SECOND)
        calls.append(claim.idempotency_key)
        applied.add(claim.idempotency_key)
        fences.append(claim.fence)
        backend.advance(7)
    assert (len(calls), len(applied)) == (3, 1)
    for fence in fences[:2]:
        with pytest.raises(ClaimLost):
            shop.complete(1, fence)
    assert shop.complete(1, fences[2]).late


@pytest.mark.criterion("ac-0039")
def test_a6_leases_of_every_length(backend: Backend) -> None:
    shop = backend.register("shop", lease_max=timedelta(days=1))
    fill(shop, 4)
    before = backend.dump()
    for lease in (
        timedelta(0), -SECOND, timedelta(microseconds=1), timedelta(days=25), timedelta(days=400),
        timedelta(days=999_999_999), timedelta.max, timedelta.min, 0.5, "infinity", "1 month",
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            shop.claim("w", lease=lease)  # type: ignore[arg-type]
    assert backend.dump() == before
    for lease in (SECOND / 10, SECOND / 3, timedelta(hours=23), timedelta(days=1)):
        (claim,) = shop.claim("w", lease=lease)
        assert claim.lease_until - backend.now() == lease
        assert backend.row("delivery", message_id=claim.message_id)["lease_until"] == text(
            claim.lease_until
        )
    assert shop.claim("w") == []


@pytest.mark.criterion("ac-0039")
@pytest.mark.parametrize("lease", ["infinity", "1 month", "300000 years", "-1 s", "1 year", "0"])
def test_a6_intervals_that_only_sql_can_say(postgres: PostgresBackend, lease: str) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    fill(shop, 1)
    # Before PostgreSQL 17 there is no infinite interval: the text itself is refused.
    too_new = lease == "infinity" and postgres.database.version < 17
    before = postgres.dump()
    with pytest.raises(psycopg.Error) as error:
        postgres.connection(shop).execute(
            "select trex.claim(%s, 'w', 1, %s::interval)", (shop.instance_key, lease)
        )
    assert error.value.sqlstate in (("22007",) if too_new else ("TX400", "22008", "22015"))
    assert postgres.dump() == before


def test_a7_the_tail_of_a_batch(backend: Backend, shop: Trex) -> None:
    """A worker that extends keeps its tail; one that doesn't may not mark it as sent any more."""
    fill(shop, 50)
    batch = shop.claim("w", 50, lease=60 * SECOND)
    for number, claim in enumerate(batch):
        rest = batch[number:]
        if number % 10 == 0:
            answers = shop.extend([c.message_id for c in rest], [c.fence for c in rest],
                                  lease=60 * SECOND)  # fmt: skip
            assert {a.status for a in answers} == {"extended"}
        assert shop.claim("idle", 50) == []
        shop.mark_sent(claim.message_id, claim.fence)
        backend.advance(3)
        shop.complete(claim.message_id, claim.fence)
    assert {row["attempt"] for row in backend.rows("receipt")} == {1}
    shop.enqueue("t", "tail", {})
    (claim,) = shop.claim("w", lease=60 * SECOND)
    backend.advance(60)
    with pytest.raises(ClaimLost):
        shop.mark_sent(claim.message_id, claim.fence)


def test_a8_no_claim_is_born_expired(postgres: PostgresBackend) -> None:
    """The lease starts after the locks: the clock moves while the claim waits for the table."""
    postgres.uncompared()
    shop = postgres.register("shop")
    fill(shop, 1)
    blocker = postgres.database.connect()
    blocker.execute("begin")
    blocker.execute("lock table trex.delivery in access exclusive mode")
    client = postgres.client("shop", "second")
    call = Session(client, postgres.connection(client)).start("claim", "w", lease=3 * SECOND)
    assert waits(postgres.admin, call)
    now = postgres.advance(5)
    blocker.execute("commit")
    (claim,) = call.outcome()
    assert claim.lease_until == now + 3 * SECOND


# B. Crash, poison rows, attempts


def test_b3_restarts_use_up_the_allowance_like_anything_else(backend: Backend) -> None:
    shop = backend.register("shop", max_attempts=3)
    fill(shop, 1)
    claims = 0
    for _ in range(10):
        # The same worker name again and again: the name proves nothing.
        claims += len(shop.claim("fixed-worker-id", lease=10 * SECOND))
        assert shop.claim("fixed-worker-id") == []
        backend.advance(10)
    assert claims == 3
    # The case says dead_letter; a crash after the claim may have sent it, so it is unknown here.
    assert shop.status(1).state == "unknown"


def test_b5_only_the_lease_decides(backend: Backend, shop: Trex) -> None:
    fill(shop, 3)
    old = shop.claim("pod-1", 3, lease=10 * SECOND)
    shop.listen("pod-1", HOUR)
    assert shop.claim("pod-1", 3) == []
    shop.unlisten("pod-1")
    backend.advance(10)
    new = shop.claim("pod-1", 3)
    assert ids(new) == [1, 2, 3]
    for claim in old:
        with pytest.raises(ClaimLost):
            shop.complete(claim.message_id, claim.fence)


def test_b6_an_ended_lease_uses_no_slot(backend: Backend, shop: Trex) -> None:
    """One in flight per ordering key: a dead worker's message doesn't hold the key for ever."""
    fill(shop, 2, ordering_key="account")
    assert ids(shop.claim("dead", 9, lease=10 * SECOND)) == [1]
    assert shop.claim("w", 9) == []
    backend.advance(10)
    assert ids(shop.claim("w", 9)) == [1]


@pytest.mark.parametrize("on_parked", ["block", "continue"])
def test_b7_the_last_attempt_dies_in_an_ordered_queue(backend: Backend, on_parked: Any) -> None:
    shop = backend.register("shop", max_attempts=1, on_parked=on_parked)
    fill(shop, 5, ordering_key="account")
    assert ids(shop.claim("dead", 9, lease=SECOND)) == [1]
    backend.advance(1)
    claims = shop.claim("w", 9)
    assert shop.status(1).state == "unknown"
    stats = shop.stats()
    if on_parked == "continue":
        assert ids(claims or shop.claim("w", 9)) == [2]
    else:
        # Blocked, and visible with a count, until an operator gives it up.
        assert claims == shop.claim("w", 9) == []
        assert (stats.blocked_keys, stats.unknown) == (1, 1)
        shop.resolve(1, "abandon", evidence="not in the ledger", **WHO)
        assert shop.stats().blocked_keys == 0
        assert ids(shop.claim("w", 9)) == [2]


def test_b11_a_graceful_stop_costs_nothing(backend: Backend, shop: Trex) -> None:
    fill(shop, 1)
    for number in range(1, 6):
        (claim,) = shop.claim("w")
        assert (claim.attempt, claim.tries) == (number, 1)
        shop.release(1, claim.fence, reason="shutdown")
    (claim,) = shop.claim("w")
    assert shop.complete(1, claim.fence).status == "recorded"
    # An interrupt after the call may have left counts: the lease ends without an outcome.
    shop.enqueue("t", "cut off", {})
    for _ in range(3):
        assert len(shop.claim("w", lease=SECOND)) == 1
        backend.advance(1)
    assert shop.claim("w") == []


# C. Clocks and backoff


def test_c1_a_long_transaction_is_not_late(backend: Backend, shop: Trex) -> None:
    with backend.transaction(shop):
        shop.stats()
        backend.advance(20)
        shop.enqueue("t", "x", {})
    assert shop.stats().oldest_due_at == backend.now()
    assert shop.status(1).enqueued_at == backend.now()


def test_c3_times_are_spans_so_a_skewed_client_cannot_fail(backend: Backend, shop: Trex) -> None:
    """There is no instant to send. A negative span is refused before anything runs, and the
    transaction goes on."""
    with backend.transaction(shop):
        shop.enqueue("t", "k1", {}, delay=timedelta(0))
    for delay in (-5 * SECOND, timedelta(days=-365)):
        with pytest.raises(InvalidArgument):
            shop.enqueue("t", "k2", {}, delay=delay)
    assert ids(shop.claim("w", 9)) == [1]


@pytest.mark.parametrize(
    ("zone", "at"),
    [("America/New_York", "2026-03-08T06:45:00+00:00"), ("America/New_York",
      "2026-11-01T05:30:00+00:00"), ("Asia/Kolkata", "2026-03-08T06:45:00+00:00")],
)  # fmt: skip
def test_c5_an_hour_is_an_hour_in_every_zone(postgres: PostgresBackend, zone: str, at: str) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    moment = postgres.database.clock.freeze(datetime.fromisoformat(at))
    postgres.connection(shop).execute(f"set timezone = '{zone}'")
    fill(shop, 2)
    one, two = shop.claim("w", 2, lease=900 * SECOND)
    assert one.lease_until == moment + 900 * SECOND
    assert shop.retry(1, one.fence, delay=HOUR).due_at == moment + HOUR
    assert shop.postpone(2, two.fence, timedelta(days=1)).due_at == moment + timedelta(days=1)
    with pytest.raises(InvalidArgument):
        shop.claim("w", due_after=datetime(2026, 3, 8, 1, 45))  # noqa: DTZ001 - naive on purpose
    postgres.connection(shop).execute("reset timezone")


@pytest.mark.parametrize("tries", [1, 31, 64, 200])
def test_c6_the_backoff_never_overflows(backend: Backend, tries: int) -> None:
    shop = backend.register(
        "shop", max_attempts=1000, backoff_base=30 * SECOND, backoff_cap=timedelta(days=30)
    )
    fill(shop, 1)
    wait = timedelta(0)
    for _ in range(tries):
        (claim,) = shop.claim("w")
        recorded = shop.retry(1, claim.fence)
        assert recorded.due_at is not None
        wait = recorded.due_at - backend.now()
        assert timedelta(0) < wait <= timedelta(days=30)
        backend.advance(wait)
    if tries >= 31:
        assert wait >= timedelta(days=15)


@pytest.mark.parametrize("tries", [31, 64, 1023, 1024, 100_000])
def test_c6_the_backoff_of_any_number(postgres: PostgresBackend, tries: int) -> None:
    """The two functions themselves agree, far beyond the largest allowance."""
    postgres.uncompared()
    for message_id in (1, 2**31 - 1, 2**31, 2**62):
        for base, cap in ((30 * SECOND, HOUR), (SECOND / 1000, timedelta(days=30))):
            row = postgres.admin.execute(
                "select trex._backoff(%s, %s, %s, %s, %s)", (message_id, tries, tries, base, cap)
            ).fetchone()
            assert row == (_backoff(message_id, tries, tries, base, cap),)
            assert timedelta(0) < row[0] <= cap


def test_c7_there_is_no_zero_backoff(backend: Backend, shop: Trex) -> None:
    policies: list[dict[str, Any]] = [
        {"backoff_base": timedelta(0)},
        {"backoff_cap": timedelta(0)},
        {"backoff_base": -SECOND},
    ]
    for policy in policies:
        with pytest.raises(InvalidArgument):
            shop.register_instance(**WHO, **policy)
    assert shop.policy().backoff_base == SECOND
    fill(shop, 1)
    polls = 0
    for _ in range(100):
        for claim in shop.claim("w"):
            polls += 1
            shop.retry(1, claim.fence, delay=timedelta(0))
        backend.advance(0.02)
    # Two seconds of an outage don't use up three attempts.
    assert polls < 3
    assert shop.status(1).state == "deferred"


def test_c2_only_the_clock_of_the_database_judges(backend: Backend, shop: Trex) -> None:
    """No call takes an instant but for a hint, so the clock of a worker's machine can't matter."""
    fill(shop, 2)
    (claim,) = shop.claim("fast", lease=60 * SECOND)
    shop.retry(1, claim.fence, delay=30 * SECOND)
    (held,) = shop.claim("slow", lease=60 * SECOND)
    for ahead in (-600, 600):
        hint = backend.now() + timedelta(seconds=ahead)
        assert shop.claim("w", 9, due_after=hint) == []
    backend.advance(30)
    assert ids(shop.claim("w", 9)) == [1]
    backend.advance(29.999999)
    assert shop.list_pending() == []
    assert shop.complete(2, held.fence).late is False


# D. The claim query, isolation, locks


@pytest.mark.criterion("ac-0031")
@pytest.mark.parametrize("settings", ["", "set enable_hashjoin = off; set enable_mergejoin = off"])
def test_d1_a_limit_is_a_limit_under_stale_statistics(
    postgres: PostgresBackend, settings: str
) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    fill(shop, 1)
    postgres.admin.execute("vacuum analyze trex.delivery, trex.message")
    shop.enqueue_many([Movement("t", f"due{n}", n) for n in range(40)])
    if settings:
        postgres.connection(shop).execute(settings)
    assert len(shop.claim("w", 2)) == 2
    assert len(postgres.rows("delivery", worker="w")) == 2
    postgres.connection(shop).execute("reset all")


@pytest.mark.criterion("ac-0030")
def test_d3_a_duplicate_does_not_spoil_the_transaction(postgres: PostgresBackend) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    other = postgres.client("shop", "second")
    with postgres.transaction(shop):
        shop.enqueue("business", "a", {})
        number = other.enqueue("t", "k", {}).message_id
        answer = shop.enqueue("t", "k", {})
        assert (answer.message_id, answer.status) == (number, "duplicate")
        shop.enqueue("business", "b", {})
    assert len(postgres.rows("message")) == 3
    # With a snapshot older than the key: one documented error.
    conn = postgres.connection(shop)
    conn.execute("begin isolation level repeatable read")
    shop.stats()
    other.enqueue("t", "newer", {})
    with pytest.raises(SerializationFailure):
        shop.enqueue("t", "newer", {})
    conn.rollback()
    assert shop.enqueue("t", "newer", {}).status == "duplicate"


def test_d3_a_conflict_as_data_leaves_it_usable(backend: Backend, shop: Trex) -> None:
    with backend.transaction(shop):
        shop.enqueue("t", "k", {})
        assert shop.enqueue("t", "k", [], on_conflict="report").status == "conflict"
        shop.enqueue("t", "b", {})
    with backend.rolled_back(shop):
        with pytest.raises(KeyReused):
            shop.enqueue("t", "k", [])
        with pytest.raises(DatabaseError) as spoiled:
            shop.enqueue("t", "c", {})
        assert spoiled.value.code == "25P02"
    assert len(backend.rows("message")) == 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("change", ["claimed", "deferred", "completed"])
def test_d6_the_test_is_repeated_after_the_lock(
    postgres: PostgresBackend, change: str, path: str
) -> None:
    """A row that a claim has seen, and that somebody else claims before it is locked."""
    looking = Looking(postgres, path, lapsed=False)

    def meanwhile() -> None:
        fences = {c.message_id: c.fence for c in looking.shop.claim("v", 9)}
        assert 1 in fences
        if change == "deferred":
            looking.shop.retry(1, fences[1], delay=HOUR)
        elif change == "completed":
            looking.shop.complete(1, fences[1])

    assert looking.claims(meanwhile) == []


@pytest.mark.parametrize("change", ["deferred", "completed"])
def test_d6_a_locked_row_is_stepped_over(postgres: PostgresBackend, change: str) -> None:
    """Row 1 is locked while it changes: a targeted claim steps over it, and later finds it as it is
    then."""
    postgres.uncompared()
    shop = postgres.register("shop")
    fill(shop, 3, correlation_id="c")
    (claim,) = shop.claim("w", lease=SECOND)
    postgres.advance(1)
    holder, other = postgres.client("shop"), postgres.client("shop", "second")
    conn = postgres.connection(holder)
    conn.execute("begin")
    if change == "deferred":
        holder.retry(1, claim.fence, delay=HOUR)
    else:
        holder.complete(1, claim.fence)
    call = Session(other, postgres.connection(other)).start("claim", "v", 9, correlation_id="c")
    assert not waits(postgres.admin, call)
    conn.execute("commit")
    assert ids(call.outcome()) == [2, 3]
    assert other.claim("v", 9, correlation_id="c") == []


# E. Wake-up


def nothing_came(postgres: PostgresBackend, listening: psycopg.Connection[Any], of: str) -> None:
    """No wake-up of this channel has been committed: what is sent now is the first to come."""
    postgres.admin.execute("select pg_notify(%s, 'last')", (of,))
    assert [n.payload for n in listening.notifies(timeout=10, stop_after=1)] == ["last"]


def test_e5_a_wake_up_carries_nothing(postgres: PostgresBackend) -> None:
    postgres.uncompared()
    shop = postgres.register("i" * 50)
    correlation = "😀" * 255
    listening = postgres.database.connect()
    channel = shop.listen("w", HOUR)
    listening.execute(f"listen {channel}")
    shop.enqueue("t", "k", "x" * 9000, correlation_id=correlation)
    with pytest.raises(InvalidArgument):
        shop.enqueue("t", "k2", {}, correlation_id="😀" * 256)
    (notice,) = listening.notifies(timeout=10, stop_after=1)
    assert (notice.payload, len(notice.channel)) == ("", 37)
    assert ids(shop.claim("w", correlation_id=correlation)) == [1]
    shop.unlisten("w")
    shop.enqueue("t", "k3", {})
    nothing_came(postgres, listening, channel)


def test_e5_a_rollback_wakes_nobody(postgres: PostgresBackend) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    listening = postgres.database.connect()
    channel = shop.listen("w", HOUR)
    listening.execute(f"listen {channel}")
    with postgres.rolled_back(shop):
        shop.enqueue("t", "k", {})
    shop.register_instance(**WHO, wake=False)
    shop.enqueue("t", "k2", {})
    nothing_came(postgres, listening, channel)


# G. Data values


@pytest.mark.criterion("ac-0039")
@pytest.mark.parametrize(
    "payload_json", ['{"memo": "a\\u0000b"}', '{"a\\u0000": 1}', '["\\u0000"]']
)
def test_g1_a_nul_is_refused_before_the_business_statement(
    backend: Backend, shop: Trex, payload_json: str
) -> None:
    refused: list[dict[str, Any]] = [
        {"payload": {"memo": "a\0b"}},
        {"payload": {"a\0": 1}},
        {"payload_json": payload_json},
    ]
    for arguments in refused:
        with backend.transaction(shop):
            shop.enqueue("business", "effect", {})
            with pytest.raises(InvalidArgument):
                shop.enqueue("t", "k", **arguments)
            assert shop.enqueue("business", "effect", {}).status == "duplicate"
    assert len(backend.rows("message")) == 1


@pytest.mark.criterion("ac-0039")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), Decimal("NaN"), Decimal("sNaN"),
                                    Decimal("-Infinity")], ids=repr)  # fmt: skip
def test_g2_numbers_that_are_none(backend: Backend, shop: Trex, number: Any) -> None:
    with backend.transaction(shop):
        for payload in (number, {"x": number}, [number]):
            with pytest.raises(ValueError, match="invalid argument"):
                shop.enqueue("t", "k", payload)
        with pytest.raises(ValueError, match="invalid argument"):
            shop.enqueue("t", "k", {}, account="a", currency="USD", cash_delta=number)
        shop.enqueue("t", "k", {}, **CASH)
    (claim,) = shop.claim("w")
    with pytest.raises(ValueError, match="invalid argument"):
        shop.complete(1, claim.fence, balance=number, version=1)
    shop.complete(1, claim.fence, balance=Decimal(1), version=1)


@pytest.mark.criterion("ac-0039")
@pytest.mark.criterion("ac-0042")
@pytest.mark.parametrize("amount", ["NaN", "Infinity", "-Infinity", "1e400", "0.00000001", "1e40",
                                    "1e-5"])  # fmt: skip
def test_g3_sql_itself_refuses_bad_amounts(postgres: PostgresBackend, amount: str) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    conn = postgres.connection(shop)
    with pytest.raises(psycopg.Error) as error:
        conn.execute(
            "select trex.enqueue(%s, 't', 'k', '{}', 'a', 'USD', %s::numeric)",
            (shop.instance_key, amount),
        )
    assert error.value.sqlstate == "TX400"
    conn.execute(
        "select trex.enqueue(%s, 't', 'k', '{}', 'a', 'USD', '-0'::numeric)", (shop.instance_key,)
    )
    (cash,) = shop.pending_cash_delta()
    assert (cash.pending, cash.entries) == (Decimal(0), 1)


@pytest.mark.criterion("ac-0042")
def test_g5_every_currency_has_its_own_exponent(backend: Backend, shop: Trex) -> None:
    for number, (currency, amount) in enumerate(
        [("JPY", "100"), ("KWD", "1.234"), ("CLF", "1.2345"), ("USD", "0.30")]
    ):
        shop.enqueue("t", f"k{number}", {}, account="a", currency=currency,
                     cash_delta=Decimal(amount))  # fmt: skip
    refused = [("USD", Decimal("1.005")), ("USD", 0.1 + 0.2), ("XXQ", Decimal(1)), ("JPY",
               Decimal("0.5"))]  # fmt: skip
    for currency, value in refused:
        with pytest.raises(InvalidArgument):
            shop.enqueue("t", "bad", {}, account="a", currency=currency, cash_delta=value)  # type: ignore[arg-type]
    sums = {c.currency: str(c.pending) for c in shop.pending_cash_delta()}
    assert sums == {"JPY": "100", "KWD": "1.234", "CLF": "1.2345", "USD": "0.30"}
    claims = {c.currency: c.cash_delta for c in shop.claim("w", 9)}
    assert claims["CLF"] == Decimal("1.2345")


def test_g6_one_spelling_of_a_currency(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {}, **CASH)
    for currency in ("usd", " USD", "USD ", "Usd", "U\u0405D", "US\u0044\u0301"):
        with pytest.raises(InvalidArgument):
            shop.enqueue("t", "other", {}, account="a", currency=currency, cash_delta=5)
    assert len(shop.pending_cash_delta()) == 1


def test_g9_keys_are_byte_exact(backend: Backend, shop: Trex) -> None:
    """The written rule: compared by code point, changed by nobody; blanks at the ends refused."""
    keys = ["caf\u00e9", "cafe\u0301", "KEY", "key", "k\u200bey", "\uff11\uff12", "12"]
    for key in keys:
        assert shop.enqueue("t", key, {}, account=key, currency="USD",
                            cash_delta=1).status == "enqueued"  # fmt: skip
    with pytest.raises(InvalidArgument):
        shop.enqueue("t", "key\n", {})
    assert [row["idempotency_key"] for row in backend.rows("message")] == keys
    assert len(shop.pending_cash_delta()) == len(keys)


# H. Idempotency and keys


def test_h1_another_body_under_the_same_key(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {"amount": 10}, **CASH)
    before = backend.dump()
    with pytest.raises(KeyReused) as reused:
        shop.enqueue("t", "k", {"amount": 20}, **{**CASH, "cash_delta": 20})
    # The case asks for the stored fingerprint; the error's text is constant here.
    assert str(reused.value).startswith("key reused with other content")
    assert backend.dump() == before


@pytest.mark.parametrize(
    "state", ["pending", "claimed", "retry", "unknown", "completed", "dead_letter", "purged"]
)
def test_h3_a_conflict_in_every_state(backend: Backend, shop: Trex, state: str) -> None:
    shop.enqueue("t", "k", {"amount": 10})
    if state != "pending":
        (claim,) = shop.claim("w")
        at = (1, claim.fence)
        if state == "retry":
            shop.retry(*at)
        elif state == "unknown":
            shop.mark_unknown(*at, park=True)
        elif state in ("completed", "purged"):
            shop.complete(*at)
        elif state == "dead_letter":
            shop.dead_letter(*at)
        if state == "purged":
            assert shop.purge(timedelta(0), **WHO).purged == 1
    with pytest.raises(KeyReused):
        shop.enqueue("t", "k", {"amount": 20})
    assert shop.enqueue("t", "k", {"amount": 10}).status == "duplicate"


def test_h3_an_uncommitted_winner(postgres: PostgresBackend) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    one, two = postgres.client("shop"), postgres.client("shop", "second")
    for end, expected in (("commit", KeyReused), ("rollback", "enqueued")):
        conn = postgres.connection(one)
        conn.execute("begin")
        one.enqueue("t", f"k {end}", {"amount": 10})
        call = Session(two, postgres.connection(two)).start(
            "enqueue", "t", f"k {end}", {"amount": 20}
        )
        assert waits(postgres.admin, call)
        conn.execute(end)
        answer = call.outcome()
        assert answer is expected or answer.status == expected
    assert shop.stats().ready == 2


def test_h4_the_canonical_form(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", payload_json='{"a": 1, "b": [1, 2], "c": "é"}')
    for same in ('{"c":"\\u00e9","b":[1,2],"a":1}', ' {"b": [1,2],"a":1,"a":1, "c":"é"}'):
        assert shop.enqueue("t", "k", payload_json=same).status == "duplicate"
    for other in (
        '{"a": 1.0, "b": [1, 2], "c": "é"}',
        '{"a": 1.00, "b": [1, 2], "c": "é"}',
        '{"a": 1, "b": [2, 1], "c": "é"}',
        '{"a": 1, "b": [1, 2], "c": "e\u0301"}',
        '{"a": 1, "b": [1, 2], "c": "é", "d": null}',
        '{"a": true, "b": [1, 2], "c": "é"}',
    ):
        with pytest.raises(KeyReused):
            shop.enqueue("t", "k", payload_json=other)


@pytest.mark.criterion("ac-0039")
@pytest.mark.parametrize("key", ["", " ", "\t", "\u00a0", "\u200b", "\u3000", "\u2003\u2003"])
def test_h5_nobody_shares_a_blank_key(backend: Backend, shop: Trex, key: str) -> None:
    before = backend.dump()
    for wrong in (
        {"idempotency_key": key},
        {"correlation_id": key},
        {"ordering_key": key},
        {**CASH, "account": key},
    ):
        with pytest.raises(InvalidArgument):
            shop.enqueue(**{"topic": "t", "idempotency_key": "k", "payload": {}, **wrong})
    assert backend.dump() == before
    # Words that look like nothing are keys like others.
    for word in ("null", "None", "undefined"):
        assert shop.enqueue("t", word, {}).status == "enqueued"


def test_h8_a_key_is_its_instance_s(backend: Backend, shop: Trex) -> None:
    other = backend.register("other")
    assert shop.enqueue("t", "k", {}, **CASH).status == "enqueued"
    assert other.enqueue("t", "k", {}, **CASH).status == "enqueued"
    # Two movements that look alike are two: nothing is derived from account and amount.
    assert shop.enqueue("t", "k again", {}, **CASH).status == "enqueued"


def test_h9_what_the_ledger_says_and_what_is_recorded(backend: Backend, shop: Trex) -> None:
    """exists_same, exists_different, already_failed, pending: one outcome each; and what is sent is
    byte-identical on every attempt."""
    for name in ("exists_same", "exists_different", "already_failed", "pending_expired"):
        shop.enqueue("t", name, {"b": Decimal("1.50"), "a": name})
    first = {c.idempotency_key: c for c in shop.claim("w", 9)}
    shop.complete_duplicate(1, first["exists_same"].fence)
    shop.conflict(2, first["exists_different"].fence)
    shop.fail(3, first["already_failed"].fence)
    shop.retry(4, first["pending_expired"].fence, reason="in_progress")
    backend.advance(60)
    (again,) = shop.claim("w", 9)
    assert again.payload_json == first["pending_expired"].payload_json
    assert (again.idempotency_key, again.attempt) == ("pending_expired", 2)
    assert [shop.status(n).state for n in (1, 2, 3)] == ["delivered", "conflict", "permanent"]


# I. Lost rows, ordering, fairness, rollback


@pytest.mark.criterion("ac-0031")
def test_i1_a_lower_id_that_commits_later_is_found(postgres: PostgresBackend) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    late = postgres.client("shop", "second")
    conn = postgres.connection(late)
    conn.execute("begin")
    late.enqueue("t", "first id", {})
    shop.enqueue("t", "second id", {})
    assert ids(shop.claim("w", 9)) == [2]
    conn.execute("commit")
    # The hint of a worker that was that far skips it, a sweep doesn't: correctness needs no hint.
    assert shop.claim("w", 9, after=2) == []
    assert ids(shop.claim("w", 9)) == [1]
    assert shop.pending_cash_delta() == []


def test_i3_later_messages_of_a_key_never_overtake(backend: Backend, shop: Trex) -> None:
    for name in ("debit", "credit", "close"):
        shop.enqueue("t", name, {}, ordering_key="account a")
    order = []
    failed = False
    for _ in range(20):
        for claim in shop.claim("w", 9):
            if claim.idempotency_key == "debit" and not failed:
                failed = True
                shop.retry(claim.message_id, claim.fence)
            else:
                order.append(claim.idempotency_key)
                shop.complete(claim.message_id, claim.fence)
        backend.advance(1)
    assert order == ["debit", "credit", "close"]


def test_i3_or_are_blocked_and_visible(backend: Backend, shop: Trex) -> None:
    for name in ("debit", "credit", "close"):
        shop.enqueue("t", name, {}, ordering_key="account a")
    (claim,) = shop.claim("w", 9)
    shop.dead_letter(1, claim.fence)
    assert shop.claim("w", 9) == []
    assert (shop.stats().blocked_keys, shop.stats().waiting) == (1, 2)


@pytest.mark.criterion("ac-0031")
def test_i5_failing_rows_do_not_stand_in_the_way(backend: Backend) -> None:
    shop = backend.register("shop")
    shop.enqueue_many([Movement("t", f"bad{n}", n) for n in range(100)])
    shop.enqueue_many([Movement("t", f"good{n}", n) for n in range(10)])
    sent, tries = set(), 0
    for _ in range(3):
        claims = shop.claim("w", 50)
        for claim in claims:
            if claim.idempotency_key.startswith("bad"):
                tries += 1
                shop.retry(claim.message_id, claim.fence, delay=timedelta(0))
            else:
                sent.add(claim.idempotency_key)
                shop.complete(claim.message_id, claim.fence)
    # Oldest first: the hundred are tried once each, and move to the future after it.
    assert (len(sent), tries) == (10, 100)
    backend.advance(3600)
    shop.enqueue("t", "late", {})
    # However many are due again, a fresh one waits for one claim.
    assert "late" in {c.idempotency_key for c in shop.claim("w", 50)}


def test_i7_what_is_not_committed_is_not_there(postgres: PostgresBackend) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    late = postgres.client("shop", "second")
    conn = postgres.connection(late)
    conn.execute("begin")
    late.enqueue("t", "k", {}, correlation_id="x")
    assert shop.claim("w", 9, correlation_id="x") == []
    assert shop.purge(timedelta(0), **WHO).examined == 0
    conn.execute("commit")
    assert ids(shop.claim("w", 9, correlation_id="x")) == [1]


# J. External outcome, ledger, snapshot, pending delta


@pytest.mark.criterion("ac-0033")
def test_j1_a_timeout_then_in_progress_then_duplicate(backend: Backend, shop: Trex) -> None:
    fill(shop, 1)
    (claim,) = shop.claim("w")
    key = claim.idempotency_key
    shop.mark_unknown(1, claim.fence, reason="timeout")
    backend.advance(60)
    (claim,) = shop.claim("w")
    assert (claim.idempotency_key, claim.uncertain) == (key, True)
    assert shop.retry(1, claim.fence, reason="in_progress").state == "deferred"
    backend.advance(60)
    (claim,) = shop.claim("w")
    assert claim.uncertain
    assert shop.complete_duplicate(1, claim.fence, confirmed_by="same_key").state == "delivered"
    assert shop.status(1).duplicate


@pytest.mark.criterion("ac-0033")
def test_j1_exhausted_without_an_answer_is_unknown_not_failed(backend: Backend, shop: Trex) -> None:
    """The case flags a dead letter; here it is a state of its own, that only resolve leaves."""
    fill(shop, 1)
    for _ in range(3):
        (claim,) = shop.claim("w")
        shop.mark_unknown(1, claim.fence, reason="timeout")
        backend.advance(3600)
    assert shop.status(1).state == "unknown"
    assert shop.redrive([1], **WHO)[0].status == "needs_resolve"


@pytest.mark.parametrize("how", ["fail", "conflict"])
def test_j3_a_terminal_row_stays(backend: Backend, shop: Trex, how: str) -> None:
    fill(shop, 1, correlation_id="c")
    (claim,) = shop.claim("w")
    getattr(shop, how)(1, claim.fence)
    before = backend.dump()
    assert shop.claim("w", 9) == shop.claim("w", 9, correlation_id="c") == []
    for name in ("complete", "retry", "release", "mark_sent", "hold"):
        with pytest.raises(EndedOtherwise):
            getattr(shop, name)(1, claim.fence)
    assert shop.extend([1], [claim.fence])[0].status == "ended_otherwise"
    if how == "conflict":
        assert shop.redrive([1], **WHO)[0].status == "needs_resolve"
        with pytest.raises(InvalidArgument):
            shop.resolve(1, "resend", evidence="", **WHO)
    assert backend.dump() == before


@pytest.mark.criterion("ac-0042")
def test_j4_outcome_and_write_back_are_one_transaction(backend: Backend, shop: Trex) -> None:
    fill(shop, 1, **CASH)
    (claim,) = shop.claim("w")
    before = backend.dump()
    # The ledger said OK, but its balance doesn't fit: neither is stored, and the caller knows.
    with pytest.raises(InvalidArgument):
        shop.complete(1, claim.fence, balance=Decimal("1.001"), version=1)
    assert backend.dump() == before
    shop.retry(1, claim.fence, reason="write_back_failed")
    backend.advance(60)
    (claim,) = shop.claim("w")
    shop.complete_duplicate(1, claim.fence, balance=Decimal("1.00"), version=1)
    assert backend.row("ledger_snapshot")["balance"] == "1.00"
    assert backend.row("receipt")["duplicate"] is True


@pytest.mark.criterion("ac-0042")
def test_j5_an_older_snapshot_never_wins(backend: Backend, shop: Trex) -> None:
    fill(shop, 4, **CASH)
    w1 = backend.client("shop")
    w2 = backend.client("shop", "second")
    one, two = w1.claim("w1", 2)
    three, four = w2.claim("w2", 2)
    w2.complete(3, three.fence, balance=Decimal(110), version=11)
    w1.complete(1, one.fence, balance=Decimal(100), version=10)
    w1.complete(2, two.fence, balance=Decimal(999), version=11)
    w2.complete(4, four.fence)
    row = backend.row("ledger_snapshot")
    assert (row["balance"], row["version"]) == ("110.00", 11)
    assert (row["ignored"], row["contradicted"]) == (1, 1)


@pytest.mark.criterion("ac-0042")
def test_j6_the_pending_sum_is_computed_not_counted(backend: Backend) -> None:
    shop = backend.register("shop", max_attempts=9)

    def check() -> None:
        facts = {row["message_id"]: row for row in backend.rows("message")}
        total = sum(
            (Decimal(facts[r["message_id"]]["cash_delta"]) for r in backend.rows("delivery")),
            Decimal(0),
        )
        sums = shop.pending_cash_delta()
        assert sum((c.pending + c.uncertain + c.skipped for c in sums), Decimal(0)) == total

    for number in range(8):
        shop.enqueue("t", f"k{number}", {}, account="a", currency="USD", cash_delta=number - 3)
        check()
    with backend.rolled_back(shop):
        shop.enqueue("t", "never", {}, **CASH)
    c = shop.claim("w", 8, lease=SECOND)
    shop.complete(1, c[0].fence)
    shop.complete_duplicate(2, c[1].fence)
    shop.conflict(3, c[2].fence)
    shop.fail(4, c[3].fence)
    shop.dead_letter(5, c[4].fence)
    check()
    for _ in range(3):
        shop.retry(6, shop.status(6).fence)
        backend.advance(3600)
        shop.claim("w", 8, lease=SECOND)
        check()
    backend.advance(1)
    shop.claim("w", 8, lease=SECOND)
    check()
    # A late or repeated outcome never subtracts twice.
    with pytest.raises(ClaimLost):
        shop.complete(7, c[6].fence)
    shop.complete(7, shop.status(7).fence)
    shop.complete(7, shop.status(7).fence)
    check()
    shop.redrive([4, 5], **WHO)
    check()


# N. Names


NASTY = ("x'; drop table trex.message; --", "a%sb", "a%Ib", '"q"', "$1", "\\", "{}", "';", "null")


@pytest.mark.parametrize("value", NASTY)
def test_n8_values_are_always_data(backend: Backend, shop: Trex, value: str) -> None:
    shop.enqueue("t", value, {value: [value]}, account=value, currency="USD", cash_delta=1,
                 correlation_id=value, ordering_key=value)  # fmt: skip
    (claim,) = shop.claim(value, correlation_id=value)
    assert (claim.idempotency_key, claim.payload) == (value, {value: [value]})
    shop.complete(1, claim.fence, reference=value)
    assert shop.status(idempotency_key=value).reference == value
    shop.pause(actor=value, reason=value)
    shop.bind(value, **WHO)
    assert backend.rows("audit")[-2]["actor"] == value
    for wrong in (value, value * 400):
        with pytest.raises(InvalidArgument):
            shop.enqueue(f"T{wrong}", "k", {})
        with pytest.raises(InvalidArgument):
            shop.retry(1, claim.fence, reason=wrong)


@pytest.mark.parametrize("key", ["MyInst", "myInst", "MYINST", "myinst "])
def test_n9_one_spelling_of_an_instance(backend: Backend, key: str) -> None:
    with pytest.raises(InvalidArgument):
        backend.client(key)
    assert backend.register("myinst").policy().instance_key == backend.key("myinst")


# O. Operator tools, parity


def test_o2_an_interrupted_run_is_taken_up(backend: Backend, shop: Trex) -> None:
    fill(shop, 20)
    first = shop.claim("backfill on host 1", 10, lease=60 * SECOND)
    for claim in first[:4]:
        shop.complete(claim.message_id, claim.fence)
    two = backend.client("shop", "second")
    assert len(two.claim("backfill on host 2", 100)) == 10
    backend.advance(60)
    assert len(two.claim("backfill on host 2", 100)) == 16
    assert shop.stats().leased == 16


def test_o4_redrive_is_one_atomic_call(backend: Backend, shop: Trex) -> None:
    for number in range(1, 4):
        shop.enqueue("t", f"k{number}", {})
    c = shop.claim("w", 3)
    shop.dead_letter(1, c[0].fence)
    shop.fail(2, c[1].fence)
    shop.conflict(3, c[2].fence)
    old = backend.quarantine("legacy", "1", payload="{}")
    assert old
    answers = shop.redrive([1, 2, 3], actor="ann", reason="ledger is back")
    assert [a.status for a in answers] == ["redriven", "redriven", "needs_resolve"]
    for row in backend.rows("delivery")[:2]:
        assert (row["parked"], row["tries"], row["lease_until"]) == (None, 0, None)
        assert row["deferred_until"] == text(backend.now())
    claims = shop.claim("w", 9)
    assert ids(claims) == [1, 2]
    assert all(n.fence > o.fence for n, o in zip(claims, c, strict=False))
    assert {a["actor"] for a in backend.rows("audit", action="redrive")} == {"ann"}


@pytest.mark.criterion("ac-0038")
def test_o6_the_same_script_on_both(backend: Backend, shop: Trex) -> None:
    """Every test with `backend` is one: on PostgreSQL its calls run on the simulation as well, and
    results, errors and tables are compared. Here: rollback, limits, order and the clock rule."""
    with backend.rolled_back(shop):
        fill(shop, 3)
    fill(shop, 12)
    assert len(shop.claim("w", 5)) == 5
    backend.advance(29.999999)
    assert ids(shop.claim("w", 1000)) == [9, 10, 11, 12, 13, 14, 15]
    with pytest.raises(InvalidArgument):
        shop.claim("w", 1001)
    assert [p.message_id for p in shop.list_pending(limit=3)] == []


def test_o8_every_row_is_counted_somewhere(backend: Backend, shop: Trex) -> None:
    fill(shop, 9)
    c = shop.claim("w", 6, lease=SECOND)
    for claim, result in zip(c, ("retry", "conflict", "permanent", "dead_letter"), strict=False):
        shop.record([Report(claim.message_id, claim.fence, result)])  # type: ignore[arg-type]
    shop.mark_unknown(5, c[4].fence, park=True)
    shop.enqueue("t", "o1", {}, ordering_key="o")
    shop.enqueue("t", "o2", {}, ordering_key="o")
    shop.claim("w", 20, after=9)
    backend.advance(1)
    stats = shop.stats()
    total = sum(
        getattr(stats, name)
        for name in ("ready", "due", "deferred", "waiting", "leased", "lease_ended", "dead_letter",
                     "permanent", "conflict", "unknown")
    )  # fmt: skip
    assert total == len(backend.rows("delivery")) == 11
    listed = {p.message_id for p in shop.list_pending(include_parked=True)}
    leased = {r["message_id"] for r in backend.rows("delivery")} - listed
    assert len(leased) == stats.leased


@pytest.mark.criterion("ac-0032")
@pytest.mark.parametrize("change", [
    "parked = 'weird'", "lease_until = now()", "worker = 'w'", "attempts = -1", "tries = -1",
    "parked = 'dead_letter'", "instance_key = null", "box = null", "fence = null",
])  # fmt: skip
def test_o8_rows_that_nobody_would_see_cannot_exist(postgres: PostgresBackend, change: str) -> None:
    postgres.uncompared()
    shop = postgres.register("shop")
    fill(shop, 1)
    with pytest.raises(psycopg.Error) as error:
        postgres.admin.execute(
            f"update trex.delivery set {change} where instance_key = %s", (shop.instance_key,)
        )
    assert error.value.sqlstate in ("23514", "23502", "TX902")
    assert ids(shop.claim("w")) == [1]
