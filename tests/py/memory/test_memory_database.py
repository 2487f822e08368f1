"""What only the simulation has: roles by name, a movable clock, restarts, standby, plain dumps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from trex_client.errors import AccessDenied, InvalidArgument, NotPrimary
from trex_client.memory import MemoryClient, MemoryDatabase

if TYPE_CHECKING:
    from trex_client.memory import Clock

WHO: dict[str, Any] = {"actor": "test", "reason": "test"}


@pytest.mark.parametrize("key", ["", "A", "a b", None, 7])
def test_a_client_without_a_good_instance_key_is_refused(db: MemoryDatabase, key: str) -> None:
    with pytest.raises(InvalidArgument):
        MemoryClient(db, key)


@pytest.mark.parametrize("role", ["", "a" * 64, "a\0", 7])
def test_a_client_without_a_good_role_is_refused(db: MemoryDatabase, role: Any) -> None:
    with pytest.raises(InvalidArgument, match="role"):
        MemoryClient(db, "shop", role=role)


def test_a_role_acts_only_where_it_is_bound(db: MemoryDatabase, shop: MemoryClient) -> None:
    shop.enqueue("t", "key", {})
    for stranger in (MemoryClient(db, "shop", role="other"), MemoryClient(db, "unknown")):
        before = db.dump()
        with pytest.raises(AccessDenied):
            stranger.enqueue("t", "key", {})
        with pytest.raises(AccessDenied):
            stranger.claim("worker")
        with pytest.raises(AccessDenied):
            stranger.stats()
        assert db.dump() == before
    assert shop.unbind("app", **WHO)
    with pytest.raises(AccessDenied):
        shop.stats()


def test_instances_do_not_meet(db: MemoryDatabase, shop: MemoryClient) -> None:
    shop.enqueue("t", "key", {}, correlation_id="c", ordering_key="o")
    other = MemoryClient(db, "other")
    other.register_instance(**WHO)
    other.bind("app", **WHO)
    assert other.enqueue("t", "key", [], correlation_id="c", ordering_key="o").status == "enqueued"
    assert [claim.message_id for claim in other.claim("worker", 5)] == [2]
    assert [claim.message_id for claim in shop.claim("worker", correlation_id="c")] == [1]


def test_a_restart_raises_the_epoch_at_the_next_claim(
    db: MemoryDatabase, shop: MemoryClient
) -> None:
    for number in range(3):
        shop.enqueue("t", f"key {number}", {})
    first = shop.claim("worker")[0].fence
    db.restart()
    assert db.dump()["epoch"] == [{"singleton": True, "epoch": 1}]
    second = shop.claim("worker")[0].fence
    assert (first >> 42, second >> 42) == (1, 2)
    assert second & (2**42 - 1) == 2
    assert shop.bump_epoch(**WHO) == 3
    assert shop.claim("worker")[0].fence >> 42 == 3


def test_writers_refuse_a_standby_and_readers_do_not(
    db: MemoryDatabase, shop: MemoryClient
) -> None:
    db.standby = True
    with pytest.raises(NotPrimary):
        shop.enqueue("t", "key", {})
    with pytest.raises(NotPrimary):
        shop.claim("worker")
    assert shop.stats().ready == 0


def test_any_callable_is_a_clock(db: MemoryDatabase, shop: MemoryClient) -> None:
    seoul = timezone(timedelta(hours=9))
    db.now = lambda: datetime(2031, 1, 1, 9, 0, 0, 7, tzinfo=seoul)
    shop.enqueue("t", "key", {})
    enqueued_at = shop.status(1).enqueued_at
    assert enqueued_at == datetime(2031, 1, 1, 0, 0, 0, 7, tzinfo=UTC)
    assert enqueued_at.tzinfo is UTC


def test_the_real_clock_is_the_default() -> None:
    db = MemoryDatabase()
    shop = MemoryClient(db, "shop")
    before = datetime.now(UTC)
    shop.register_instance(**WHO)
    shop.bind("app", **WHO)
    assert before <= shop.policy().registered_at <= datetime.now(UTC)


def test_dumps_are_plain_and_do_not_follow_later_changes(
    db: MemoryDatabase, shop: MemoryClient, clock: Clock
) -> None:
    shop.enqueue("t", "b", {"x": 1, "a": 2})
    shop.enqueue("t", "a", {})
    claim = shop.claim("worker")[0]
    before = db.dump()
    shop.fail(claim.message_id, claim.fence)
    after = db.dump()
    assert [row["payload"] for row in before["message"]] == ['{"a": 2, "x": 1}', "{}"]
    assert before["delivery"][0]["deferred_until"] is None
    assert after["delivery"][0]["deferred_until"] == "infinity"
    assert before["delivery"][0]["lease_until"] == clock() + timedelta(seconds=30)
    assert (len(before["ledger_skip"]), len(after["ledger_skip"])) == (0, 1)
