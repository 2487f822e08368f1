"""ac-0029, line by line: instance ownership and lease fencing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import WHO, PostgresBackend
from trex_client.errors import ClaimLost, InvalidArgument, NotFound
from trex_client.memory import MemoryClient, MemoryDatabase
from trex_client.model import Report
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0029"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)
CASH: dict[str, Any] = {"account": "a", "currency": "USD", "cash_delta": Decimal(5)}


def test_the_owner_is_stored_at_enqueue(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    assert backend.row("message")["instance_key"] == shop.instance_key
    assert backend.row("delivery")["instance_key"] == shop.instance_key


def test_every_way_to_a_message_leaves_foreign_and_ownerless_rows_out(
    backend: Backend, shop: Trex
) -> None:
    other = backend.register("other")
    mine = shop.enqueue("t", "k", {}, correlation_id="c", **CASH).message_id
    theirs = other.enqueue("t", "k", {}, correlation_id="c", **CASH).message_id
    backend.quarantine("old", "1", topic="t", idempotency_key="k2", correlation_id="c",
                       payload="{}", **CASH)  # fmt: skip
    assert [p.message_id for p in shop.list_pending()] == [mine]
    (cash,) = shop.pending_cash_delta()
    assert (cash.pending, cash.entries) == (Decimal(5), 1)
    (claim,) = shop.claim("w", 1000, correlation_id="c")
    assert claim.message_id == mine
    assert shop.claim("w", 1000) == []
    (foreign,) = other.claim("w", 1000)
    assert foreign.message_id == theirs
    # No outcome, however right its fence, reaches a foreign row.
    before = backend.dump()
    with pytest.raises(NotFound):
        shop.complete(theirs, foreign.fence)
    assert shop.record([Report(theirs, foreign.fence, "completed")])[0].status == "not_found"
    assert shop.extend([theirs], [foreign.fence])[0].status == "not_found"
    assert shop.redrive([theirs], **WHO)[0].status == "not_found"
    assert backend.dump() == before


@pytest.mark.parametrize("key", [None, "", " "])
def test_a_missing_key_is_refused_before_anything_happens(key: Any) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"touched: {name}")

    untouched: Any = Untouched()
    with pytest.raises(InvalidArgument):
        PostgresClient(untouched, key)
    db = MemoryDatabase()
    before = db.dump()
    with pytest.raises(InvalidArgument):
        MemoryClient(db, key)
    assert db.dump() == before


def test_a_claim_takes_pending_due_unclaimed_and_expired_rows(backend: Backend, shop: Trex) -> None:
    for name in ("expired", "retried", "leased", "parked", "done"):
        shop.enqueue("t", name, {}, correlation_id=name)
    claims = {
        name: shop.claim("w", correlation_id=name, lease=(99 if name == "leased" else 2) * SECOND)[
            0
        ]
        for name in ("expired", "retried", "leased", "parked", "done")
    }
    shop.retry(2, claims["retried"].fence)
    shop.fail(4, claims["parked"].fence)
    shop.complete(5, claims["done"].fence)
    shop.enqueue("t", "pending", {})
    shop.enqueue("t", "deferred", {}, delay=3600 * SECOND)
    assert [c.idempotency_key for c in shop.claim("v", 9)] == ["pending"]
    backend.advance(2)
    taken = shop.claim("v", 9, lease=5 * SECOND)
    assert [c.idempotency_key for c in taken] == ["retried", "expired"]
    assert {c.lease_until for c in taken} == {backend.now() + 5 * SECOND}


def test_recovery_after_a_crash(backend: Backend, shop: Trex) -> None:
    """Before expiry no, after expiry yes, for another worker of the same instance."""
    shop.enqueue("t", "k", {})
    (dead,) = shop.claim("crashed", lease=10 * SECOND)
    second = backend.client("shop", "second")
    backend.advance(9.999999)
    assert second.claim("survivor") == []
    backend.restart()
    assert second.claim("survivor") == []
    backend.advance(0.000001)
    (claim,) = second.claim("survivor")
    assert claim.message_id == dead.message_id
    assert claim.fence > dead.fence


@pytest.mark.parametrize("result", ["complete", "complete_duplicate", "retry", "conflict", "fail",
                                    "dead_letter"])  # fmt: skip
def test_every_outcome_needs_the_fence_of_its_claim(
    backend: Backend, shop: Trex, result: str
) -> None:
    shop.enqueue("t", "k", {}, **CASH)
    (old,) = shop.claim("w", lease=SECOND)
    backend.advance(1)
    (new,) = shop.claim("v", lease=60 * SECOND)
    before = backend.dump()
    with pytest.raises(ClaimLost) as lost:
        getattr(shop, result)(1, old.fence)
    assert lost.value.sqlstate == "TX409"
    after = backend.dump()
    assert [r["result"] for r in after.pop("stale_report")] != []
    del before["stale_report"]
    assert after == before
    assert getattr(shop, result)(1, new.fence).status == "recorded"
    # An outcome releases the lease.
    for row in backend.rows("delivery"):
        assert (row["lease_until"], row["worker"]) == (None, None)


def test_a_duplicate_answer_completes_at_once_and_for_good(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w", lease=60 * SECOND)
    assert shop.complete_duplicate(1, claim.fence).state == "delivered"
    assert backend.row("receipt")["duplicate"] is True
    assert backend.rows("delivery") == []
    backend.advance(timedelta(days=365))
    assert shop.claim("w", 1000) == []
    assert shop.status(1).duplicate is True


def test_of_two_claims_at_once_only_one_wins(backend: Backend) -> None:
    """Threads at a barrier: the simulation's lock, or the row locks of PostgreSQL."""
    if isinstance(backend, PostgresBackend):
        backend.uncompared()
    shop = backend.register("shop", max_attempts=1000)
    clients = [backend.client("shop", ("full", "second")[i % 2]) for i in range(4)]
    rounds, wins = 15, 0
    shop.enqueue("t", "k", {})
    for _ in range(rounds):
        barrier = threading.Barrier(len(clients))

        def race(client: Trex, barrier: threading.Barrier = barrier) -> list[int]:
            barrier.wait()
            return [claim.fence for claim in client.claim("w", lease=SECOND)]

        with ThreadPoolExecutor(len(clients)) as pool:
            won = [fence for fences in pool.map(race, clients) for fence in fences]
        assert len(won) == 1
        wins += 1
        assert backend.row("delivery")["fence"] == won[0]
        assert shop.list_pending() == []
        # The token of the round before can't record.
        backend.advance(1)
        assert [p.state for p in shop.list_pending()] == ["lease_ended"]
    assert wins == rounds
    fences = [row["fence"] for row in backend.rows("outcome")]
    assert fences == sorted(fences)
    for fence in fences:
        with pytest.raises(ClaimLost):
            shop.complete(1, fence)
