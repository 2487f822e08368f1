"""Threads: of two at a barrier one wins, and nobody sees a transaction that is still open."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from trex_client.errors import TrexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trex_client.memory import MemoryClient, MemoryDatabase
    from trex_client.model import Enqueued

T = TypeVar("T")
ROUNDS = 200


def at_once(count: int, act: Callable[[int], T]) -> list[T]:
    """What `act` returned in each of `count` threads that start together."""
    barrier = threading.Barrier(count)
    results: list[T] = []

    def run(number: int) -> None:
        barrier.wait(10)
        results.append(act(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(results) == count
    return results


def test_one_claim_wins(shop: MemoryClient) -> None:
    for round_number in range(ROUNDS):
        shop.enqueue("t", f"key {round_number}", payload_json="{}")
        claims = at_once(2, lambda number: shop.claim(f"worker {number}"))
        assert sorted(map(len, claims)) == [0, 1]


def test_threads_share_out_all_messages_with_rising_fences(shop: MemoryClient) -> None:
    for number in range(400):
        shop.enqueue("t", f"key {number}", payload_json="{}")

    def drain(number: int) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        while claims := shop.claim(f"worker {number}", 7):
            taken += [(claim.message_id, claim.fence) for claim in claims]
        return taken

    shares = at_once(4, drain)
    ids = [message_id for share in shares for message_id, _ in share]
    fences = {fence for share in shares for _, fence in share}
    assert sorted(ids) == list(range(1, 401))
    assert len(fences) == 400


def test_one_of_two_outcomes_is_recorded(shop: MemoryClient) -> None:
    def end(number: int, message_id: int, fence: int) -> str:
        try:
            if number == 0:
                return shop.complete(message_id, fence).status
            return shop.retry(message_id, fence).status
        except TrexError as error:
            return error.sqlstate

    seen: Counter[tuple[str, ...]] = Counter()
    for round_number in range(ROUNDS):
        shop.enqueue("t", f"key {round_number}", payload_json="{}")
        claim = shop.claim("worker")[0]
        act = partial(end, message_id=claim.message_id, fence=claim.fence)
        answers = at_once(2, act)
        seen[tuple(sorted(answers))] += 1
        if shop.status(claim.message_id).state != "delivered":
            shop.db.now.advance(shop.policy().backoff_cap)  # type: ignore[attr-defined]
            again = shop.claim("worker")[0]
            shop.complete(again.message_id, again.fence)
    assert seen == {("TX410", "recorded"): ROUNDS}


def test_one_of_many_enqueues_of_a_key_is_new(shop: MemoryClient) -> None:
    def enqueue(_: int, key: str) -> Enqueued:
        return shop.enqueue("t", key, payload_json="{}")

    for round_number in range(50):
        act = partial(enqueue, key=f"key {round_number}")
        answers = at_once(4, act)
        assert Counter(answer.status for answer in answers) == {"enqueued": 1, "duplicate": 3}
        assert len({answer.message_id for answer in answers}) == 1


def test_nobody_sees_an_open_transaction(db: MemoryDatabase, shop: MemoryClient) -> None:
    written, checked = threading.Event(), threading.Event()

    def write() -> None:
        try:
            with db.transaction():
                shop.enqueue("t", "key", payload_json="{}")
                written.set()
                checked.wait(0.05)
                raise RuntimeError
        except RuntimeError:
            pass

    thread = threading.Thread(target=write)
    thread.start()
    assert written.wait(10)
    assert shop.claim("worker") == []
    checked.set()
    thread.join(10)
    assert db.dump()["message"] == []
