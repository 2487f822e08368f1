"""claim: what is taken, in which order, under which lease, and what it does to the rest."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import WHO, text
from trex_client.errors import ClaimLost, InvalidArgument, WrongTransaction
from trex_client.model import Movement, Report

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex
    from trex_client.model import Claim

pytestmark = [pytest.mark.criterion("ac-0031"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)


def ids(claims: list[Claim]) -> list[int]:
    return [claim.message_id for claim in claims]


def fill(shop: Trex, count: int, **columns: Any) -> None:
    shop.enqueue_many([Movement("t", f"k{n}", n, **columns) for n in range(1, count + 1)])


def test_a_claim_hands_out_the_message(backend: Backend, shop: Trex) -> None:
    shop.enqueue(
        "t", "k", {"a": 1}, account="acct", currency="USD", cash_delta=5, correlation_id="c",
        ordering_key="o", effect_policy="at_most_once",
    )  # fmt: skip
    enqueued_at = backend.now()
    now = backend.advance(3)
    (claim,) = shop.claim("worker-1", lease=7 * SECOND)
    assert claim.message_id == 1
    assert claim.fence == (1 << 42) + 1
    assert (claim.attempt, claim.tries, claim.uncertain) == (1, 1, False)
    assert claim.lease_until == now + 7 * SECOND
    assert (claim.box, claim.topic, claim.idempotency_key) == ("outbox", "t", "k")
    assert (claim.correlation_id, claim.ordering_key) == ("c", "o")
    assert (claim.account, claim.currency, str(claim.cash_delta)) == ("acct", "USD", "5.00")
    assert (claim.payload_json, claim.payload) == ('{"a": 1}', {"a": 1})
    assert (claim.effect_policy, claim.enqueued_at) == ("at_most_once", enqueued_at)
    row = backend.row("delivery")
    assert row["fence"] == claim.fence
    assert (row["attempts"], row["tries"], row["worker"]) == (1, 1, "worker-1")
    assert row["lease_until"] == text(claim.lease_until)
    assert (row["deferred_until"], row["sent_fence"], row["parked"]) == (None, None, None)
    assert backend.row("epoch")["epoch"] == 1


def test_nothing_to_claim_is_no_error(backend: Backend, shop: Trex) -> None:
    assert shop.claim("w") == []
    assert shop.claim("w", 1000, correlation_id="nobody") == []
    assert shop.claim("w", box="inbox") == []


def test_the_oldest_first_and_never_more_than_the_limit(backend: Backend, shop: Trex) -> None:
    fill(shop, 7)
    assert ids(shop.claim("w", 3)) == [1, 2, 3]
    assert ids(shop.claim("v", 3)) == [4, 5, 6]
    assert ids(shop.claim("w", 3)) == [7]
    assert shop.claim("w", 3) == []


def test_nobody_else_gets_a_leased_message(backend: Backend, shop: Trex) -> None:
    second = backend.client("shop", "second")
    fill(shop, 1)
    (claim,) = shop.claim("w", lease=10 * SECOND)
    for client in (shop, second):
        assert client.claim("v") == []
        assert client.claim("w") == []
    backend.advance(9.999999)
    assert second.claim("v") == []
    backend.advance(0.000001)
    (again,) = second.claim("v", lease=SECOND)
    assert again.fence > claim.fence
    assert (again.attempt, again.tries, again.uncertain) == (2, 2, True)
    (end,) = backend.rows("outcome")
    assert (end["fence"], end["kind"], end["state"]) == (claim.fence, "lease_expired", "ready")
    assert (end["reason"], end["attempt"], end["late"]) == ("lease_expired", 1, False)


def test_a_claim_that_finds_nothing_leaves_everything(backend: Backend, shop: Trex) -> None:
    fill(shop, 2)
    shop.claim("w", 2)
    before = backend.dump()
    assert shop.claim("v", 5) == []
    assert backend.dump() == before


def test_fences_rise_in_the_order_of_the_messages(backend: Backend, shop: Trex) -> None:
    fill(shop, 5)
    fences = [claim.fence for claim in shop.claim("w", 3)] + [
        claim.fence for claim in shop.claim("w", 3)
    ]
    assert fences == sorted(set(fences))
    assert len(fences) == 5
    # Whatever the order in which they became due.
    for message_id, seconds in ((1, 5), (2, 4)):
        shop.retry(message_id, fences[message_id - 1], delay=timedelta(seconds=seconds))
    backend.advance(5)
    again = {claim.message_id: claim.fence for claim in shop.claim("w", 4)}
    assert fences[-1] < again[1] < again[2]


def test_default_and_longest_lease(backend: Backend) -> None:
    shop = backend.register("shop", lease_default=5 * SECOND, lease_max=60 * SECOND)
    fill(shop, 3)
    (claim,) = shop.claim("w")
    assert claim.lease_until == backend.now() + 5 * SECOND
    (claim,) = shop.claim("w", lease=60 * SECOND)
    assert claim.lease_until == backend.now() + 60 * SECOND
    with pytest.raises(InvalidArgument):
        shop.claim("w", lease=60 * SECOND + timedelta(microseconds=1))
    (claim,) = shop.claim("w", lease=timedelta(milliseconds=100))
    assert claim.lease_until == backend.now() + timedelta(milliseconds=100)


def test_due_messages_get_half_of_the_limit_first(backend: Backend, shop: Trex) -> None:
    fill(shop, 12)
    first = shop.claim("w", 6)
    shop.record([Report(c.message_id, c.fence, "released") for c in reversed(first)])
    # Six due (1 to 6, at one time), six ready (7 to 12).
    assert ids(shop.claim("w", 5)) == [1, 2, 3, 7, 8]
    assert ids(shop.claim("w", 4)) == [4, 5, 9, 10]
    assert ids(shop.claim("w", 4)) == [6, 11, 12]


def test_what_one_source_lacks_goes_to_the_other(backend: Backend, shop: Trex) -> None:
    fill(shop, 6)
    first = shop.claim("w", 5)
    for claim in first:
        shop.release(claim.message_id, claim.fence)
        backend.advance(1)
    # Five due, one ready: due ones fill what the ready one leaves, in order of time.
    assert ids(shop.claim("w", 6)) == [1, 2, 3, 4, 5, 6]


def test_one_at_a_time_alternates(backend: Backend, shop: Trex) -> None:
    fill(shop, 8)
    for claim in shop.claim("w", 4):
        shop.release(claim.message_id, claim.fence)
    order = [shop.claim("w")[0].message_id for _ in range(8)]
    assert sorted(order) == list(range(1, 9))
    due = [number for number in order if number <= 4]
    ready = [number for number in order if number > 4]
    assert (due, ready) == ([1, 2, 3, 4], [5, 6, 7, 8])
    # Neither waits for more than one claim while both have something.
    kinds = [number <= 4 for number in order]
    assert all(a != b for a, b in pairwise(kinds))


def test_due_messages_in_the_order_of_their_time(backend: Backend, shop: Trex) -> None:
    for number, seconds in enumerate([30, 10, 20, 10], 1):
        shop.enqueue("t", f"k{number}", {}, delay=seconds * SECOND)
    backend.advance(20)
    assert ids(shop.claim("w", 9)) == [2, 4, 3]
    backend.advance(10)
    assert ids(shop.claim("w", 9)) == [1]


def test_hints_only_skip(backend: Backend, shop: Trex) -> None:
    fill(shop, 4)
    assert ids(shop.claim("w", 9, after=2)) == [3, 4]
    assert shop.claim("w", 9, after=4) == []
    assert ids(shop.claim("w", 9)) == [1, 2]
    for number in range(5, 8):
        shop.enqueue("t", f"k{number}", {}, delay=number * SECOND)
    backend.advance(7)
    assert ids(shop.claim("w", 9, due_after=backend.now() - 2 * SECOND)) == [6, 7]
    # A hint for one source doesn't touch the other.
    assert ids(shop.claim("w", 9, after=99)) == [5]


def test_released_messages_are_beyond_the_message_hint(backend: Backend, shop: Trex) -> None:
    fill(shop, 3)
    (claim,) = shop.claim("w")
    shop.release(claim.message_id, claim.fence)
    assert ids(shop.claim("w", 9, after=3)) == [1]


def test_targeted_claims_follow_the_same_rules(backend: Backend, shop: Trex) -> None:
    for number in range(1, 9):
        shop.enqueue(
            "t", f"k{number}", {}, correlation_id="odd" if number % 2 else "even",
            delay=5 * SECOND if number in (1, 2) else None,
        )  # fmt: skip
    assert ids(shop.claim("w", 2, correlation_id="odd")) == [3, 5]
    assert ids(shop.claim("w", 9, correlation_id="odd")) == [7]
    assert shop.claim("w", 9, correlation_id="odd") == []
    backend.advance(5)
    # In the order of their ids, due or ready alike.
    assert ids(shop.claim("w", 9, correlation_id="even")) == [2, 4, 6, 8]
    assert ids(shop.claim("w", 9, correlation_id="odd")) == [1]
    backend.advance(30)
    (again, *_) = shop.claim("w", 9, correlation_id="odd")
    assert (again.message_id, again.uncertain) == (1, True)


def test_boxes_do_not_meet(backend: Backend, shop: Trex) -> None:
    fill(shop, 1, correlation_id="c")
    assert shop.claim("w", box="inbox") == []
    assert shop.claim("w", box="inbox", correlation_id="c") == []
    assert shop.list_pending(box="inbox") == []


def test_a_paused_instance_hands_out_nothing(backend: Backend, shop: Trex) -> None:
    fill(shop, 2, correlation_id="c")
    (claim,) = shop.claim("w")
    assert shop.pause(**WHO)
    before = backend.dump()
    assert shop.claim("w", 9) == []
    assert shop.claim("w", 9, correlation_id="c") == []
    assert shop.exchange([], "w", 9).claims == []
    assert backend.dump() == before
    shop.complete(claim.message_id, claim.fence)
    assert shop.resume(**WHO)
    assert ids(shop.claim("w", 9)) == [2]


def test_a_used_up_allowance_is_parked_by_the_retry(backend: Backend, shop: Trex) -> None:
    fill(shop, 1)
    for number in (1, 2, 3):
        (claim,) = shop.claim("w")
        assert (claim.attempt, claim.tries) == (number, number)
        recorded = shop.retry(1, claim.fence, reason="unavailable")
        assert recorded.state == ("dead_letter" if number == 3 else "deferred")
        backend.advance(3600)
    assert shop.claim("w") == []
    skip = backend.row("ledger_skip")
    assert (skip["parked"], skip["reason"]) == ("dead_letter", "attempts_exhausted")
    assert backend.rows("outcome")[-1]["reason"] == "unavailable"


def test_a_batch_steps_over_exhausted_rows(backend: Backend) -> None:
    shop = backend.register("shop", max_attempts=1)
    fill(shop, 5)
    dead = shop.claim("w", 3, lease=SECOND)
    backend.advance(1)
    # Limit 2: the three exhausted rows are parked, and two fresh ones are handed out.
    assert ids(shop.claim("v", 2)) == [4, 5]
    for claim in dead:
        row = backend.row("delivery", message_id=claim.message_id)
        # The lease ended after the call may have left: unknown, never dead_letter.
        assert (row["parked"], row["uncertain"], row["attempts"]) == ("unknown", True, 1)
        assert (row["fence"], row["lease_until"], row["worker"]) == (claim.fence, None, None)
        assert row["deferred_until"] == "infinity"
        (end,) = backend.rows("outcome", message_id=claim.message_id)
        assert (end["kind"], end["state"], end["fence"]) == (
            "lease_expired",
            "unknown",
            claim.fence,
        )
        (skip,) = backend.rows("ledger_skip", message_id=claim.message_id)
        assert (skip["parked"], skip["reason"]) == ("unknown", "lease_expired")
    with pytest.raises(ClaimLost):
        shop.complete(dead[0].message_id, dead[0].fence)


def test_one_call_parks_at_most_ten_times_its_limit(backend: Backend) -> None:
    shop = backend.register("shop", max_attempts=1)
    fill(shop, 25)
    shop.claim("w", 25, lease=SECOND)
    backend.advance(1)
    fill(shop, 26)
    assert shop.claim("w", 1) == []
    assert shop.stats().unknown == 10
    assert shop.claim("w", 1) == []
    assert shop.stats().unknown == 20
    assert ids(shop.claim("w", 1)) == [51]
    assert shop.stats().unknown == 25


def test_a_lowered_allowance_parks_without_an_end(backend: Backend, shop: Trex) -> None:
    fill(shop, 2)
    for claim in shop.claim("w", 2):
        shop.retry(claim.message_id, claim.fence, reason="unavailable")
    shop.register_instance(**WHO, max_attempts=1)
    backend.advance(10)
    assert shop.claim("w", 5) == []
    assert [row["parked"] for row in backend.rows("delivery")] == ["dead_letter"] * 2
    assert [row["kind"] for row in backend.rows("outcome")] == ["retry"] * 2
    assert [row["reason"] for row in backend.rows("ledger_skip")] == ["attempts_exhausted"] * 2


def test_the_epoch_is_above_every_fence_before(backend: Backend, shop: Trex) -> None:
    fill(shop, 4)
    fences = []
    for number in range(4):
        (claim,) = shop.claim("w")
        fences.append(claim.fence)
        if number == 1:
            backend.restart()
        if number == 2:
            assert shop.bump_epoch(**WHO) == 3
    assert [fence >> 42 for fence in fences] == [1, 1, 2, 3]
    assert [fence & (2**42 - 1) for fence in fences] == [1, 2, 3, 4]


@pytest.mark.criterion("ac-0029")
def test_claim_and_exchange_refuse_an_open_transaction(backend: Backend, shop: Trex) -> None:
    fill(shop, 1)
    before = backend.dump()
    with backend.transaction(shop):
        shop.stats()
        with pytest.raises(WrongTransaction):
            shop.claim("w")
        with pytest.raises(WrongTransaction):
            shop.exchange([], "w")
        # Refused before anything was sent: the transaction still works.
        shop.enqueue("t", "other", {})
    assert backend.dump()["delivery"] != before["delivery"]
    assert ids(shop.claim("w", 5)) == [1, 2]


def test_exchange_records_and_claims(backend: Backend, shop: Trex) -> None:
    fill(shop, 5)
    first = shop.exchange([], "w", 3)
    assert (first.recorded, ids(first.claims)) == ([], [1, 2, 3])
    one, two, three = first.claims
    backend.advance(1)
    second = shop.exchange(
        [
            Report(three.message_id, three.fence, "completed"),
            Report(one.message_id, one.fence, "released", "shutdown"),
            Report(two.message_id, one.fence, "completed"),
            Report(99, 1, "completed"),
        ],
        "w",
        2,
        lease=2 * SECOND,
    )
    assert [(r.message_id, r.status) for r in second.recorded] == [
        (3, "recorded"),
        (1, "recorded"),
        (2, "claim_lost"),
        (99, "not_found"),
    ]
    # What was released in the same call is due at once.
    assert ids(second.claims) == [1, 4]
    assert {c.lease_until for c in second.claims} == {backend.now() + 2 * SECOND}
    third = shop.exchange([Report(3, three.fence, "completed")], "w", 1, after=4)
    assert (third.recorded[0].status, ids(third.claims)) == ("already_recorded", [5])


def test_leases_of_every_state_of_a_message(backend: Backend, shop: Trex) -> None:
    """Only live rows are claimable: none that is delivered or parked, however due."""
    fill(shop, 8)
    c = {claim.message_id: claim for claim in shop.claim("w", 7)}
    shop.complete(1, c[1].fence)
    shop.complete_duplicate(2, c[2].fence)
    shop.fail(3, c[3].fence)
    shop.conflict(4, c[4].fence)
    shop.dead_letter(5, c[5].fence)
    shop.mark_unknown(6, c[6].fence, park=True)
    backend.advance(timedelta(days=400))
    assert ids(shop.claim("w", 20)) == [7, 8]


def test_due_messages_alone_fill_a_claim_and_no_more(backend: Backend, shop: Trex) -> None:
    for key in "abcde":
        shop.enqueue("t", key, {}, delay=timedelta(seconds=1))
    backend.advance(2)
    assert [c.idempotency_key for c in shop.claim("w", 2)] == ["a", "b"]
    assert [c.idempotency_key for c in shop.claim("w", 2)] == ["c", "d"]
