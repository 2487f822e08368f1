"""Transactions: undone to the last index, spoiled by an error, and never around a claim."""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from trex_client.errors import DatabaseError, KeyReused, TrexError, WrongTransaction
from trex_client.memory import Clock, MemoryClient, MemoryDatabase
from trex_client.model import RESULTS, Movement, Report

if TYPE_CHECKING:
    from collections.abc import Callable

WHO: dict[str, Any] = {"actor": "test", "reason": "test"}


class Undo(Exception):
    pass


def undone(db: MemoryDatabase, act: Callable[[], object]) -> None:
    """Do it in a transaction that is rolled back."""
    try:
        with db.transaction():
            act()
            raise Undo
    except Undo:
        pass


def state(db: MemoryDatabase) -> tuple[Any, ...]:
    """All tables and all indexes."""
    indexes = {
        name: {key: list(ids) for key, ids in getattr(db, name).items() if ids}
        for name in ("message_correlation", "outcome_fences", "delivery_claim", "delivery_lane")
    }
    return db.dump(), indexes, dict(db.message_key)


def indexes_agree(db: MemoryDatabase) -> bool:
    claim: dict[Any, list[Any]] = {}
    lane: dict[Any, list[int]] = {}
    for row in db.delivery.values():
        entry = (row.deferred_until, row.message_id)
        claim.setdefault((row.instance_key, row.box), []).append(entry)
        if row.ordering_key is not None:
            lane.setdefault((row.instance_key, row.box, row.ordering_key), []).append(
                row.message_id
            )
    _, indexes, _ = state(db)
    kept = {
        key: sorted(
            (message_id, None if until.year == 1 else until) for until, message_id in entries
        )
        for key, entries in indexes["delivery_claim"].items()
    }
    wanted = {
        key: sorted((message_id, until) for until, message_id in entries)
        for key, entries in claim.items()
    }
    ordered = all(entries == sorted(entries) for entries in indexes["delivery_claim"].values())
    lanes = {key: sorted(ids) for key, ids in lane.items()}
    return ordered and kept == wanted and indexes["delivery_lane"] == lanes


def busy(shop: MemoryClient) -> None:
    """Two claimed messages, a deferred, a parked, an unknown, a waiting and two ready ones."""
    for number in range(8):
        shop.enqueue(
            "t",
            f"key {number}",
            {"n": number},
            account="a",
            currency="USD",
            cash_delta=number,
            correlation_id="c" if number % 2 else None,
            ordering_key="lane" if number in (0, 6) else None,
        )
    for report in ("retry", "permanent", "unknown"):
        claim = shop.claim("worker")[0]
        if report == "retry":
            shop.retry(claim.message_id, claim.fence)
        elif report == "permanent":
            shop.fail(claim.message_id, claim.fence)
        else:
            shop.mark_unknown(claim.message_id, claim.fence, park=True)
    shop.listen("worker", timedelta(seconds=1))
    shop.claim("worker", 2)


def held(shop: MemoryClient) -> list[Report]:
    rows = [row for row in shop.db.delivery.values() if row.lease_until is not None]
    return [Report(row.message_id, row.fence, "completed") for row in rows]


def complete(shop: MemoryClient) -> None:
    report = held(shop)[0]
    shop.complete(report.message_id, report.fence, balance=Decimal(5), version=1)


ACTS: dict[str, Callable[[MemoryClient], object]] = {
    "enqueue": lambda s: s.enqueue("t", "new", {}, ordering_key="lane", correlation_id="c"),
    "enqueue_many": lambda s: s.enqueue_many(
        [Movement("t", "new", {}, ordering_key="other"), Movement("t", "key 1", {"n": 1})],
        on_conflict="report",
    ),
    "extend": lambda s: s.extend([r.message_id for r in held(s)], [r.fence for r in held(s)]),
    "mark_sent": lambda s: s.mark_sent(held(s)[0].message_id, held(s)[0].fence),
    "listen": lambda s: s.listen("other", timedelta(seconds=1)),
    "unlisten": lambda s: s.unlisten("worker"),
    "complete": complete,
    "retry": lambda s: s.retry(held(s)[0].message_id, held(s)[0].fence),
    "dead_letter": lambda s: s.dead_letter(held(s)[0].message_id, held(s)[0].fence),
    "record": lambda s: s.record(held(s)),
    "lost": lambda s: s.record([Report(1, held(s)[0].fence, "completed")]),
    "register_instance": lambda s: s.register_instance(max_attempts=3, **WHO),
    "register_currency": lambda s: s.register_currency("ZZZ", 5, **WHO),
    "bind": lambda s: s.bind("other", **WHO),
    "unbind": lambda s: s.unbind("app", **WHO),
    "pause": lambda s: s.pause(**WHO),
    "redrive": lambda s: s.redrive([1, 2, 3], **WHO),
    "resolve": lambda s: s.resolve(3, "delivered", evidence="seen", **WHO),
    "abandon": lambda s: s.resolve(3, "abandon", evidence="seen", **WHO),
    "expedite": lambda s: s.expedite([1, 2, 3], **WHO),
    "purge": lambda s: s.purge(timedelta(0), **WHO),
    "bump_epoch": lambda s: s.bump_epoch(**WHO),
}


@pytest.mark.parametrize("name", ACTS)
def test_an_exception_undoes_all_of_it(db: MemoryDatabase, shop: MemoryClient, name: str) -> None:
    busy(shop)
    before = state(db)
    undone(db, lambda: ACTS[name](shop))
    assert state(db) == before


def test_acts_change_something_when_committed(clock: Clock) -> None:
    idle = set()
    for name, act in ACTS.items():
        db = MemoryDatabase(clock)
        shop = MemoryClient(db, "shop")
        shop.register_instance(**WHO)
        shop.bind("app", **WHO)
        busy(shop)
        before = state(db)
        clock.advance(timedelta(milliseconds=1))
        with shop.transaction():
            act(shop)
        if state(db) == before:
            idle.add(name)
    # Nothing to purge, and a fence that was never given out for that message.
    assert idle == {"purge", "lost"}


def test_a_purge_that_is_undone_gives_the_payload_back(
    db: MemoryDatabase, shop: MemoryClient
) -> None:
    shop.enqueue("t", "key", {"n": 1})
    (claim,) = shop.claim("w")
    shop.complete(claim.message_id, claim.fence)
    before = state(db)
    undone(db, lambda: shop.purge(timedelta(0), **WHO))
    assert state(db) == before
    assert shop.purge(timedelta(0), **WHO).purged == 1
    assert db.dump()["message"][0]["payload"] is None


def test_an_inner_block_is_a_savepoint(db: MemoryDatabase, shop: MemoryClient) -> None:
    with db.transaction():
        shop.enqueue("t", "kept", {})
        undone(db, lambda: shop.enqueue("t", "undone", {}))
        shop.enqueue("t", "kept too", {})
    keys = [row["idempotency_key"] for row in db.dump()["message"]]
    assert keys == ["kept", "kept too"]


def test_an_error_spoils_the_transaction_up_to_its_savepoint(
    db: MemoryDatabase, shop: MemoryClient
) -> None:
    shop.enqueue("t", "key", {})
    with db.transaction():
        with pytest.raises(KeyReused), db.transaction():
            shop.enqueue("t", "key", [])
        shop.enqueue("t", "kept", {})
    with db.transaction():
        shop.enqueue("t", "lost", {})
        with pytest.raises(KeyReused):
            shop.enqueue("t", "key", [])
        with pytest.raises(DatabaseError) as spoiled:
            shop.stats()
        assert spoiled.value.code == "25P02"
        with pytest.raises(DatabaseError) as spoiled, db.transaction():
            pass
        assert spoiled.value.code == "25P02"
    keys = [row["idempotency_key"] for row in db.dump()["message"]]
    assert keys == ["key", "kept"]


def test_claim_and_exchange_want_a_transaction_of_their_own(
    db: MemoryDatabase, shop: MemoryClient
) -> None:
    shop.enqueue("t", "key", {})
    with db.transaction():
        with pytest.raises(WrongTransaction):
            shop.claim("worker")
        with pytest.raises(WrongTransaction):
            shop.exchange([], "worker")
        shop.enqueue("t", "other", {})
    assert [claim.message_id for claim in shop.claim("worker", 5)] == [1, 2]


def test_what_sequences_gave_out_is_not_given_back(db: MemoryDatabase, shop: MemoryClient) -> None:
    undone(db, lambda: shop.enqueue("t", "key", {}))
    assert shop.enqueue("t", "key", {}).message_id == 2


def test_evidence_of_a_lost_claim_stays_only_without_a_transaction(
    db: MemoryDatabase, shop: MemoryClient, clock: Clock
) -> None:
    shop.enqueue("t", "key", {})
    old = shop.claim("worker")[0]
    clock.advance(timedelta(minutes=1))
    shop.claim("worker")
    with pytest.raises(TrexError), db.transaction():
        shop.complete(old.message_id, old.fence)
    assert db.dump()["stale_report"] == []
    with pytest.raises(TrexError):
        shop.complete(old.message_id, old.fence)
    assert len(db.dump()["stale_report"]) == 1


def test_random_transactions_undo_to_the_same_state() -> None:
    random_ = random.Random(20300101)
    rolled_back = rejected = 0
    for _ in range(150):
        clock = Clock()
        db = MemoryDatabase(clock)
        shop = MemoryClient(db, "shop")
        shop.register_instance(
            **WHO, max_attempts=3, on_parked=random_.choice(["block", "continue"])
        )
        shop.bind("app", **WHO)
        for step in range(12):
            before = state(db)
            try:
                with db.transaction():
                    for _ in range(4):
                        rejected += act_at_random(shop, random_, step)
                    if random_.random() < 0.5:
                        raise Undo
            except Undo:
                rolled_back += 1
                assert state(db) == before
            assert indexes_agree(db)
            shop.claim("worker", random_.choice([1, 2, 5]))
            clock.advance(timedelta(seconds=random_.choice([0, 1, 20])))
            assert indexes_agree(db)
    assert rolled_back > 500
    assert rejected > 50


def act_at_random(shop: MemoryClient, random_: random.Random, step: int) -> int:
    """One call in a savepoint; 1 if it was refused."""
    ids = [message_id for _, message_id in shop.db.message]
    try:
        with shop.transaction():
            match random_.randrange(6 if ids else 1):
                case 0:
                    shop.enqueue(
                        "t",
                        f"key {random_.randrange(40)}",
                        {"step": step % 2},
                        ordering_key=random_.choice([None, "a", "b"]),
                        correlation_id=random_.choice([None, "c"]),
                    )
                case 1 | 2:
                    message_id = random_.choice(ids)
                    row = shop.db.delivery.get(("shop", message_id))
                    fence = row.fence if row is not None else 1
                    result = random_.choice(RESULTS)
                    delay = timedelta(seconds=1) if result == "postponed" else None
                    shop.record([Report(message_id, max(fence, 1), result, delay=delay)])
                case 3:
                    shop.redrive(random_.sample(ids, min(3, len(ids))), **WHO)
                case 4:
                    shop.expedite(random_.sample(ids, min(3, len(ids))), **WHO)
                case 5:
                    shop.resolve(
                        random_.choice(ids),
                        random_.choice(["delivered", "resend", "absent", "abandon"]),
                        evidence="seen",
                        **WHO,
                    )
    except TrexError:
        return 1
    return 0
