"""Ordering keys: one in flight, in the order of enqueue, through everything, none stranded."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import WHO
from trex_client.model import Movement, Report

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex
    from trex_client.model import Claim

pytestmark = [pytest.mark.criterion("ac-0031"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)


def lane(shop: Trex, key: str, count: int) -> None:
    shop.enqueue_many([Movement("t", f"{key}{n}", n, ordering_key=key) for n in range(count)])


def names(claims: list[Claim]) -> list[str]:
    return [claim.idempotency_key for claim in claims]


def test_further_rounds_of_a_claim_take_only_what_is_left_of_its_limit(
    backend: Backend, shop: Trex
) -> None:
    lane(shop, "a", 1)
    assert names(shop.claim("v", 1)) == ["a0"]
    shop.enqueue("t", "b", {})
    shop.enqueue("t", "a1", {}, ordering_key="a")
    for key in "cdef":
        shop.enqueue("t", key, {})
    # The first round takes b, and puts a1 aside.
    assert names(shop.claim("w", 2)) == ["b", "c"]
    assert backend.row("delivery", deferred_until="infinity")["message_id"] == 3


def test_a_parked_message_that_blocks_its_key_lets_none_go_on(backend: Backend) -> None:
    shop = backend.register("blocked", max_attempts=3, on_parked="block")
    lane(shop, "a", 2)
    (first,) = shop.claim("w", 5)
    assert shop.claim("w", 5) == []
    assert shop.retry(1, first.fence).state == "deferred"
    assert shop.status(2).state == "waiting"
    backend.advance(3600)
    (first,) = shop.claim("w", 5)
    assert shop.dead_letter(1, first.fence).state == "dead_letter"
    assert shop.status(2).state == "waiting"
    assert shop.claim("w", 5) == []


def test_one_in_flight_per_key_in_order(backend: Backend, shop: Trex) -> None:
    lane(shop, "a", 4)
    lane(shop, "b", 2)
    shop.enqueue("t", "free", {})
    claims = shop.claim("w", 10)
    assert names(claims) == ["a0", "b0", "free"]
    assert shop.claim("v", 10) == []
    assert {r["message_id"] for r in backend.rows("delivery", deferred_until="infinity")} == {
        2, 3, 4, 6,
    }  # fmt: skip
    assert [p.state for p in shop.list_pending()] == ["waiting"] * 4
    sent = []
    while claims:
        for claim in claims:
            sent.append(claim.idempotency_key)
            shop.complete(claim.message_id, claim.fence)
        claims = shop.claim("w", 10)
    assert [name for name in sent if name[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert [name for name in sent if name[0] == "b"] == ["b0", "b1"]


def test_a_retry_keeps_its_place(backend: Backend, shop: Trex) -> None:
    lane(shop, "a", 3)
    (claim,) = shop.claim("w", 10)
    shop.retry(claim.message_id, claim.fence, delay=10 * SECOND)
    assert shop.claim("w", 10) == []
    backend.advance(10)
    (claim,) = shop.claim("w", 10)
    assert claim.idempotency_key == "a0"
    shop.complete(claim.message_id, claim.fence)
    assert names(shop.claim("w", 10)) == ["a1"]


@pytest.mark.parametrize("end", ["released", "postponed", "unknown", "lease"])
def test_every_end_without_a_delivery_keeps_the_place(
    backend: Backend, shop: Trex, end: str
) -> None:
    lane(shop, "a", 2)
    (claim,) = shop.claim("w", 10)
    if end == "released":
        shop.release(1, claim.fence)
    elif end == "postponed":
        shop.postpone(1, claim.fence, SECOND)
    elif end == "unknown":
        shop.mark_unknown(1, claim.fence)
    backend.advance(60)
    assert names(shop.claim("w", 10)) == ["a0"]


def test_a_parked_message_blocks_its_key(backend: Backend, shop: Trex) -> None:
    lane(shop, "a", 3)
    lane(shop, "b", 1)
    for claim in shop.claim("w", 10):
        shop.fail(claim.message_id, claim.fence)
    assert shop.claim("w", 10) == []
    stats = shop.stats()
    assert (stats.blocked_keys, stats.waiting, stats.permanent) == (2, 2, 2)
    shop.redrive([1], **WHO)
    (claim,) = shop.claim("w", 10)
    assert claim.idempotency_key == "a0"
    shop.complete(claim.message_id, claim.fence)
    assert names(shop.claim("w", 10)) == ["a1"]
    assert shop.stats().blocked_keys == 1


@pytest.mark.parametrize("how", ["retry", "fail", "conflict", "dead_letter", "unknown", "lease"])
def test_or_lets_the_key_go_on(backend: Backend, how: str) -> None:
    shop = backend.register("shop", max_attempts=1, on_parked="continue")
    lane(shop, "a", 3)
    (claim,) = shop.claim("w", 10)
    at = (claim.message_id, claim.fence)
    if how == "unknown":
        shop.mark_unknown(*at, park=True)
    elif how == "lease":
        backend.advance(60)
    else:
        getattr(shop, how)(*at)
    (claim,) = shop.claim("w", 10)
    assert claim.idempotency_key == "a1"
    assert shop.stats().blocked_keys == 0
    assert shop.status(1).state in ("dead_letter", "permanent", "conflict", "unknown")


def test_resolve_frees_the_key(backend: Backend, shop: Trex) -> None:
    lane(shop, "a", 2)
    lane(shop, "b", 2)
    for claim in shop.claim("w", 10):
        shop.conflict(claim.message_id, claim.fence)
    shop.resolve(1, "delivered", evidence="e", **WHO)
    assert names(shop.claim("w", 10)) == ["a1"]
    shop.resolve(3, "resend", evidence="e", **WHO)
    assert names(shop.claim("w", 10)) == ["b0"]


@pytest.mark.parametrize("how", ["fail", "dead_letter", "conflict", "mark_unknown"])
def test_what_an_operator_gave_up_holds_up_nobody(backend: Backend, shop: Trex, how: str) -> None:
    lane(shop, "a", 3)
    (claim,) = shop.claim("w", 10)
    options: dict[str, Any] = {"park": True} if how == "mark_unknown" else {}
    getattr(shop, how)(claim.message_id, claim.fence, **options)
    assert shop.claim("w", 10) == []
    shop.resolve(1, "abandon", evidence="e", **WHO)
    stats = shop.stats()
    assert (stats.blocked_keys, stats.permanent, stats.abandoned) == (0, 0, 1)
    assert stats.oldest_parked_at is None
    (second,) = shop.claim("w", 10)
    assert second.idempotency_key == "a1"
    # Only that one: what is parked now, and may be redriven, blocks as ever.
    shop.fail(2, second.fence)
    assert shop.claim("w", 10) == []
    assert shop.stats().blocked_keys == 1
    assert [row.abandoned for row in shop.list_parked()] == [True, False]
    shop.resolve(2, "abandon", evidence="e", **WHO)
    (third,) = shop.claim("w", 10)
    # Brought back, it takes its place again, beside nobody.
    assert [o.status for o in shop.redrive([1], **WHO)] == ["redriven"]
    assert shop.claim("w", 10) == []
    shop.complete(3, third.fence)
    assert names(shop.claim("w", 10)) == ["a0"]
    assert [row.abandoned for row in shop.list_parked()] == [True]


def test_what_was_given_up_is_nobodys_task(backend: Backend, shop: Trex) -> None:
    lane(shop, "a", 1)
    (claim,) = shop.claim("w", 10)
    shop.fail(1, claim.fence)
    shop.resolve(1, "abandon", evidence="e", **WHO)
    backend.advance(timedelta(days=30))
    assert shop.overdue() == []
    assert shop.reconcile(**WHO).state == "clean"


def test_a_changed_policy_frees_what_waits(backend: Backend, shop: Trex) -> None:
    lane(shop, "a", 2)
    (claim,) = shop.claim("w", 10)
    shop.fail(1, claim.fence)
    assert shop.claim("w", 10) == []
    shop.register_instance(**WHO, on_parked="continue")
    assert names(shop.claim("w", 10)) == ["a1"]
    # Back to its place: not beside the one that is in flight.
    shop.redrive([1], **WHO)
    assert shop.claim("w", 10) == []


def test_a_redriven_message_waits_for_the_one_in_flight(backend: Backend) -> None:
    shop = backend.register("shop", on_parked="continue")
    lane(shop, "a", 3)
    (first,) = shop.claim("w", 10)
    shop.fail(1, first.fence)
    (second,) = shop.claim("w", 10)
    assert second.idempotency_key == "a1"
    assert [o.status for o in shop.redrive([1], **WHO)] == ["redriven"]
    assert shop.claim("w", 10) == []
    shop.complete(2, second.fence)
    assert names(shop.claim("w", 10)) == ["a0"]


def test_a_batch_frees_each_key_once(backend: Backend, shop: Trex) -> None:
    for key in "abc":
        lane(shop, key, 2)
    claims = shop.claim("w", 10)
    assert names(claims) == ["a0", "b0", "c0"]
    shop.record([Report(c.message_id, c.fence, "completed") for c in reversed(claims)])
    rows = [r["message_id"] for r in backend.rows("delivery", deferred_until="infinity")]
    assert rows == []
    assert names(shop.claim("w", 10)) == ["a1", "b1", "c1"]


def test_a_message_that_is_due_later_holds_its_key(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "later", {}, ordering_key="a", delay=10 * SECOND)
    shop.enqueue("t", "now", {}, ordering_key="a")
    assert shop.claim("w", 10) == []
    backend.advance(10)
    assert names(shop.claim("w", 10)) == ["later"]


def test_targeted_claims_keep_the_order(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k1", {}, ordering_key="a")
    shop.enqueue("t", "k2", {}, ordering_key="a", correlation_id="c")
    assert shop.claim("w", 10, correlation_id="c") == []
    (claim,) = shop.claim("w", 10)
    assert shop.claim("w", 10, correlation_id="c") == []
    shop.complete(1, claim.fence)
    assert names(shop.claim("w", 10, correlation_id="c")) == ["k2"]


def test_keys_of_instances_do_not_meet(backend: Backend, shop: Trex) -> None:
    other = backend.register("other")
    lane(shop, "a", 2)
    lane(other, "a", 2)
    assert names(shop.claim("w", 10)) == ["a0"]
    assert names(other.claim("w", 10)) == ["a0"]
    assert shop.claim("w", 10) == other.claim("w", 10) == []


def test_many_behind_one_do_not_stop_the_rest(backend: Backend, shop: Trex) -> None:
    """Rows that stand behind another are set aside within the call, up to ten times its limit."""
    lane(shop, "a", 30)
    shop.enqueue_many([Movement("t", f"free{n}", n) for n in range(3)])
    assert names(shop.claim("w", 4)) == ["a0", "free0", "free1", "free2"]
    assert shop.stats().waiting == 29
