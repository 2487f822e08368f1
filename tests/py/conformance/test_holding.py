"""extend, mark_sent, hold, listen: what a worker does while it holds a claim."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support.backends import WHO, text
from trex_client.errors import ClaimLost, EndedOtherwise, InvalidArgument, NotFound
from trex_client.model import Extended, Recorded

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0029"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)


def test_a_heartbeat_prolongs_and_never_shortens(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w", lease=20 * SECOND)
    backend.advance(5)
    (same,) = shop.extend([1], [claim.fence], lease=SECOND)
    assert same == Extended(1, claim.fence, "extended", claim.lease_until)
    (longer,) = shop.extend([1], [claim.fence])
    assert longer.lease_until == backend.now() + 30 * SECOND
    row = backend.row("delivery")
    assert row["lease_until"] == text(longer.lease_until)
    assert (row["fence"], row["attempts"]) == (claim.fence, 1)


def test_a_heartbeat_that_is_undone_prolongs_nothing(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w", lease=2 * SECOND)
    with backend.rolled_back(shop):
        (answer,) = shop.extend([1], [claim.fence], lease=60 * SECOND)
        assert answer.status == "extended"
    assert backend.row("delivery", message_id=1)["lease_until"] == text(claim.lease_until)


def test_a_heartbeat_keeps_others_away(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w", lease=2 * SECOND)
    for _ in range(5):
        backend.advance(1)
        shop.extend([1], [claim.fence], lease=2 * SECOND)
        assert shop.claim("v") == []
    backend.advance(2)
    # Ended, but nobody was there: the holder may go on.
    (late,) = shop.extend([1], [claim.fence], lease=2 * SECOND)
    assert late.status == "extended"
    backend.advance(2)
    (new,) = shop.claim("v")
    (lost,) = shop.extend([1], [claim.fence], lease=60 * SECOND)
    assert lost == Extended(1, claim.fence, "claim_lost", None)
    assert backend.row("delivery")["lease_until"] == text(new.lease_until)


def test_a_batch_of_heartbeats(backend: Backend, shop: Trex) -> None:
    for number in range(1, 6):
        shop.enqueue("t", f"k{number}", {})
    claims = shop.claim("w", 4)
    shop.complete(2, claims[1].fence)
    shop.retry(3, claims[2].fence)
    backend.advance(1)
    answers = shop.extend(
        [4, 99, 3, 5, 2, 1],
        [claims[3].fence, 7, claims[2].fence, 7, claims[1].fence, claims[0].fence],
        lease=60 * SECOND,
    )
    until = backend.now() + 60 * SECOND
    assert [(a.message_id, a.status, a.lease_until) for a in answers] == [
        (4, "extended", until),
        (99, "not_found", None),
        (3, "ended_otherwise", None),
        (5, "claim_lost", None),
        (2, "ended_otherwise", None),
        (1, "extended", until),
    ]
    assert shop.extend([], []) == []
    assert backend.rows("stale_report") == []


def test_a_lapsed_claim_of_an_ordering_key_is_not_revived_beside_another(
    backend: Backend,
) -> None:
    shop = backend.register("shop", on_parked="continue")
    for number in (1, 2):
        shop.enqueue("t", f"k{number}", {}, ordering_key="o")
    (one,) = shop.claim("w", lease=2 * SECOND)
    backend.advance(2)
    (answer,) = shop.extend([1], [one.fence], lease=2 * SECOND)
    assert answer.status == "extended"
    shop.fail(1, one.fence)
    (two,) = shop.claim("w", lease=2 * SECOND)
    shop.redrive([1], **WHO)
    backend.advance(2)
    (again,) = shop.claim("w", lease=2 * SECOND)
    assert (two.message_id, again.message_id) == (2, 1)
    answers = shop.extend([2, 1], [two.fence, again.fence], lease=5 * SECOND)
    assert [answer.status for answer in answers] == ["claim_lost", "extended"]
    assert answers[0].lease_until is None


def test_mark_sent(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {}, effect_policy="at_most_once")
    (claim,) = shop.claim("w")
    assert shop.mark_sent(1, claim.fence) == Recorded(
        1, claim.fence, "recorded", "leased", False, None
    )
    assert backend.row("delivery")["sent_fence"] == claim.fence
    assert shop.mark_sent(1, claim.fence).status == "already_recorded"
    shop.complete(1, claim.fence)
    with pytest.raises(EndedOtherwise):
        shop.mark_sent(1, claim.fence)
    assert shop.mark_sent(1, claim.fence, on_lost="report").status == "ended_otherwise"


def test_mark_sent_needs_a_lease_that_runs(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w", lease=SECOND)
    backend.advance(1)
    before = backend.dump()
    with pytest.raises(ClaimLost):
        shop.mark_sent(1, claim.fence)
    assert shop.mark_sent(1, claim.fence, on_lost="report") == Recorded(
        1, claim.fence, "claim_lost", None, False, None
    )
    with pytest.raises(NotFound):
        shop.mark_sent(9, claim.fence)
    assert backend.dump() == before
    (new,) = shop.claim("v")
    with pytest.raises(ClaimLost):
        shop.mark_sent(1, claim.fence)
    assert shop.mark_sent(1, new.fence).status == "recorded"


def test_hold(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w", lease=SECOND)
    with backend.transaction(shop):
        assert shop.hold(1, claim.fence) == Recorded(
            1, claim.fence, "recorded", "leased", False, None
        )
    backend.advance(1)
    with backend.transaction(shop):
        held = shop.hold(1, claim.fence, timeout=SECOND)
        assert (held.state, held.late) == ("lease_ended", True)
        shop.complete(1, claim.fence)
    with pytest.raises(EndedOtherwise):
        shop.hold(1, claim.fence)
    with pytest.raises(NotFound):
        shop.hold(2, claim.fence)
    shop.enqueue("t", "k2", {})
    with pytest.raises(ClaimLost):
        shop.hold(2, claim.fence)
    with pytest.raises(InvalidArgument):
        shop.hold(2, claim.fence, timeout=timedelta(0))


def test_listen(backend: Backend, shop: Trex) -> None:
    channel = "trex_" + hashlib.md5(shop.instance_key.encode()).hexdigest()
    assert shop.listen("w1", 5 * SECOND) == channel
    assert shop.listen("w2", 9 * SECOND) == channel
    assert shop.listen("w1", 7 * SECOND) == channel
    rows = {row["worker"]: row["until"] for row in backend.rows("listener")}
    now = backend.now()
    assert rows == {"w1": text(now + 7 * SECOND), "w2": text(now + 9 * SECOND)}
    shop.unlisten("w1")
    shop.unlisten("w1")
    assert [row["worker"] for row in backend.rows("listener")] == ["w2"]
    with backend.rolled_back(shop):
        shop.listen("w2", 60 * SECOND)
        shop.unlisten("w2")
    assert backend.row("listener", worker="w2")["until"] == text(now + 9 * SECOND)
    with backend.rolled_back(shop):
        shop.listen("w2", 60 * SECOND)
    assert backend.row("listener", worker="w2")["until"] == text(now + 9 * SECOND)
    # Rows of workers that are long gone are removed by others.
    backend.advance(3600 + 10)
    shop.listen("w3", SECOND)
    assert [row["worker"] for row in backend.rows("listener")] == ["w3"]
