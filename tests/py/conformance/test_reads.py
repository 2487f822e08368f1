"""Reads: what they show of each state, pages, and that they change nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from tests.support.backends import ROLES, START, WHO
from trex_client.errors import NotFound
from trex_client.model import InstancePolicy, InstanceStats, MessageStatus, ParkedMessage, Pending

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0029"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)


@pytest.fixture
def zoo(backend: Backend, shop: Trex) -> dict[str, int]:
    """One message in every state, and those of another instance."""
    other = backend.register("other")
    other.enqueue("t", "ready", {}, account="a", currency="USD", cash_delta=5)
    names = ["delivered", "duplicate", "deferred", "dead_letter", "permanent", "conflict",
             "unknown", "lease_ended", "leased"]  # fmt: skip
    for name in names:
        shop.enqueue("t", name, {}, correlation_id=f"c-{name}", account="a", currency="USD",
                     cash_delta=1)  # fmt: skip
    fences = {c.idempotency_key: (c.message_id, c.fence) for c in shop.claim("w", 8, lease=SECOND)}
    backend.advance(0.5)
    shop.complete(*fences["delivered"], reference="r")
    shop.complete_duplicate(*fences["duplicate"], confirmed_by="lookup")
    shop.retry(*fences["deferred"], delay=600 * SECOND, reason="unavailable")
    shop.dead_letter(*fences["dead_letter"], reason="expired")
    shop.fail(*fences["permanent"])
    shop.conflict(*fences["conflict"])
    shop.mark_unknown(*fences["unknown"], park=True, reason="timeout")
    backend.advance(0.5)
    shop.claim("w2", 1, correlation_id="c-leased", lease=60 * SECOND)
    shop.enqueue("t", "due", {}, delay=SECOND)
    shop.enqueue("t", "head", {}, ordering_key="o", delay=900 * SECOND)
    shop.enqueue("t", "waiting", {}, ordering_key="o", correlation_id="c-waiting")
    backend.advance(1)
    assert shop.claim("w", 1, correlation_id="c-waiting") == []
    shop.enqueue("t", "ready", {})
    return {
        row["idempotency_key"]: row["message_id"]
        for row in backend.rows("message", instance_key=shop.instance_key)
    }


def test_pending_is_undelivered_and_not_leased(backend: Backend, shop: Trex, zoo: object) -> None:
    before = backend.dump()
    states = [(p.idempotency_key, p.state) for p in shop.list_pending()]
    assert states == [
        ("deferred", "deferred"),
        ("lease_ended", "lease_ended"),
        ("due", "ready"),
        ("head", "deferred"),
        ("waiting", "waiting"),
        ("ready", "ready"),
    ]
    parked = [p.state for p in shop.list_pending(include_parked=True) if p.attempts and p.tries]
    assert {"dead_letter", "permanent", "conflict", "unknown"} < set(parked)
    assert backend.dump() == before


def test_a_row_of_list_pending(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {}, account="a", currency="JPY", cash_delta=7, correlation_id="c",
                 ordering_key="o", delay=SECOND)  # fmt: skip
    assert shop.list_pending() == [
        Pending(1, "outbox", "deferred", "t", "k", "c", "o", "a", "JPY", Decimal(7),
                START + SECOND, 0, 0, False, START)
    ]  # fmt: skip


def test_pages(backend: Backend, shop: Trex) -> None:
    for number in range(7):
        shop.enqueue("t", f"k{number}", {})
    seen, after = [], 0
    while page := shop.list_pending(limit=3, after=after):
        seen += [p.message_id for p in page]
        after = page[-1].message_id
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    for claim in shop.claim("w", 7):
        shop.fail(claim.message_id, claim.fence)
    assert [p.message_id for p in shop.list_parked(limit=3)] == [1, 2, 3]
    assert [p.message_id for p in shop.list_parked(limit=9, after=3)] == [4, 5, 6, 7]


def test_parked_and_why(backend: Backend, shop: Trex, zoo: dict[str, int]) -> None:
    parked = {p.parked: p for p in shop.list_parked()}
    assert {p: (m.reason, m.uncertain) for p, m in parked.items()} == {
        "dead_letter": ("expired", False),
        "permanent": ("rejected", False),
        "conflict": ("key_conflict", False),
        "unknown": ("timeout", True),
    }
    at = START + SECOND / 2
    assert parked["permanent"] == ParkedMessage(
        zoo["permanent"], "outbox", "permanent", "rejected", "t", "permanent", "c-permanent", None,
        "a", "USD", Decimal(1), 1, False, False, at, START,
    )  # fmt: skip


def test_status_of_every_state(backend: Backend, shop: Trex, zoo: dict[str, int]) -> None:
    states = {name: shop.status(number).state for name, number in zoo.items()}
    assert states == {
        **{name: name for name in zoo},
        "duplicate": "delivered",
        "due": "ready",
        "head": "deferred",
    }
    for name, number in zoo.items():
        assert shop.status(idempotency_key=name) == shop.status(number)
    one = shop.status(zoo["duplicate"])
    assert one == MessageStatus(
        3, "outbox", "delivered", None, "t", "duplicate", 1, 0, one.fence, False, None, None, None,
        START, START + SECOND / 2, True, "lookup", None,
    )  # fmt: skip
    leased = shop.status(zoo["leased"])
    assert (leased.worker, leased.lease_until) == ("w2", START + 61 * SECOND)
    assert shop.status(zoo["deferred"]).reason == "unavailable"
    assert shop.status(zoo["deferred"]).due_at == START + 600.5 * SECOND
    assert shop.status(zoo["unknown"]).reason == "timeout"
    assert shop.status(zoo["ready"]).reason is None


def test_status_knows_only_its_own(backend: Backend, shop: Trex) -> None:
    other = backend.register("other")
    number = other.enqueue("t", "k", {}).message_id
    for arguments in ({"message_id": number}, {"idempotency_key": "k"}, {"message_id": 99}):
        with pytest.raises(NotFound):
            shop.status(**arguments)
    with pytest.raises(NotFound):
        other.status(idempotency_key="k", box="inbox")


def test_stats(backend: Backend, shop: Trex, zoo: dict[str, int]) -> None:
    assert shop.stats() == InstanceStats(
        box="outbox", ready=1, due=1, deferred=2, waiting=1, leased=1, lease_ended=1,
        dead_letter=1, permanent=1, conflict=1, unknown=1, abandoned=0, blocked_keys=0,
        oldest_due_at=START + 2 * SECOND, oldest_parked_at=START + SECOND / 2, capped=False,
    )  # fmt: skip
    counts = shop.stats()
    total = sum(
        getattr(counts, name)
        for name in ("ready", "due", "deferred", "waiting", "leased", "lease_ended",
                     "dead_letter", "permanent", "conflict", "unknown", "abandoned")
    )  # fmt: skip
    assert total == len(backend.rows("delivery", instance_key=shop.instance_key))
    assert shop.stats(cap=1).capped
    empty = shop.stats(box="inbox")
    assert (empty.box, empty.ready, empty.oldest_due_at, empty.capped) == ("inbox", 0, None, False)


def test_policy(backend: Backend) -> None:
    shop = backend.register("shop")
    roles = sorted([ROLES["full"], ROLES["second"]])
    default = InstancePolicy(
        shop.instance_key, False, 12, 30 * SECOND, 900 * SECOND, SECOND, 3600 * SECOND, "block",
        True, 1_048_576, roles, START,
    )  # fmt: skip
    assert shop.policy() == default
    backend.advance(5)
    shop.pause(**WHO)
    assert shop.policy().paused
    assert shop.policy().registered_at == START


def test_the_clock_decides_what_is_pending(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    shop.claim("w", lease=5 * SECOND)
    assert shop.list_pending() == []
    backend.advance(4.999999)
    assert shop.list_pending() == []
    assert shop.stats().leased == 1
    backend.advance(0.000001)
    assert [p.state for p in shop.list_pending()] == ["lease_ended"]
    assert shop.stats().lease_ended == 1
    backend.advance(-1)
    assert shop.list_pending() == []
