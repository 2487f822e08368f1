"""Many sessions at once: no deadlock in any order of a batch, no row claimed twice."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import WHO
from tests.support.invariants import violations
from tests.support.sessions import Session, waits
from trex_client.errors import SerializationFailure, TrexError
from trex_client.model import RESULTS, Movement, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.backends import PostgresBackend
    from trex_client.api import Trex

SECOND = timedelta(seconds=1)
ROUNDS = int(os.environ.get("TREX_DEADLOCK_ROUNDS", "30"))


def together(*works: Callable[[], None]) -> list[BaseException]:
    """Run all at a barrier; the errors that came out."""
    barrier = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            errors.append(error)

    with ThreadPoolExecutor(len(works)) as pool:
        list(pool.map(run, works))
    return errors


@pytest.mark.criterion("ac-0031")
@pytest.mark.parametrize("ordered", [False, True], ids=["free", "ordered"])
def test_d4_no_deadlock_in_any_order(postgres: PostgresBackend, ordered: bool) -> None:
    """Batches of outcomes, heartbeats, sweeps, redrives, resolves and enqueues on the same rows,
    each in an order of its own."""
    postgres.uncompared()
    postgres.register("shop", max_attempts=2, on_parked="continue", backoff_base=SECOND / 1000,
                      backoff_cap=SECOND / 1000)  # fmt: skip
    clients = [postgres.client("shop", ("full", "second")[n % 2]) for n in range(6)]
    lanes = "abc" if ordered else (None,)
    clients[0].enqueue_many(
        [Movement("t", f"k{n}", n, ordering_key=lanes[n % len(lanes)], account=f"a{n % 3}",
                  currency="USD", cash_delta=1) for n in range(40)]
    )  # fmt: skip
    counts: Counter[str] = Counter()
    lock = threading.Lock()
    rounds = ROUNDS

    def count(found: Any) -> None:
        with lock:
            for item in found:
                counts[getattr(item, "status", "claimed")] += 1

    def outcomes(client: Trex, rng: random.Random) -> Callable[[], None]:
        def work() -> None:
            for _ in range(rounds):
                claims = client.claim("w", 12, lease=SECOND / 10)
                count(claims)
                rng.shuffle(claims)
                reports = []
                for c in claims:
                    result = rng.choice(RESULTS)
                    reports.append(
                        Report(c.message_id, c.fence, result,
                               delay=timedelta(0) if result == "postponed" else None)
                    )  # fmt: skip
                count(client.extend([c.message_id for c in claims], [c.fence for c in claims]))
                count(client.record(reports))

        return work

    def operator(client: Trex, rng: random.Random) -> Callable[[], None]:
        def work() -> None:
            for number in range(rounds):
                ids = rng.sample(range(1, 41), 20)
                count(client.redrive(ids, **WHO))
                for message_id in ids[:6]:
                    try:
                        how: Any = rng.choice(["resend", "absent", "abandon"])
                        count([client.resolve(message_id, how, evidence="e", **WHO)])
                    except SerializationFailure:
                        raise
                    except TrexError:
                        counts["refused"] += 1
                rng.shuffle(ids)
                count(client.expedite(ids, **WHO))
                client.enqueue_many(
                    [Movement("t", f"k{n}", n, ordering_key=lanes[n % len(lanes)], account="a0",
                              currency="USD", cash_delta=1)
                     for n in rng.sample(range(1000 * number + 100, 1000 * number + 130), 9)],
                    on_conflict="report",
                )  # fmt: skip
                postgres_clock()

        return work

    def postgres_clock() -> None:
        with lock:
            postgres.advance(0.2)

    works = [outcomes(c, random.Random(i)) for i, c in enumerate(clients[:4])]
    works += [operator(c, random.Random(9 + i)) for i, c in enumerate(clients[4:])]
    errors = together(*works)
    assert not errors, errors
    print(dict(counts))
    assert counts["claimed"] > 30
    assert counts["recorded"] > 30
    assert counts["redriven"] > 3
    broken = violations(postgres.admin, postgres.instances)
    assert not broken, "\n".join(broken)


@pytest.mark.criterion("ac-0031")
@pytest.mark.parametrize("settings", ["", "set enable_hashjoin = off; set enable_mergejoin = off"],
                         ids=["default", "nested loops"])  # fmt: skip
def test_d5_sixteen_claimers_with_stale_statistics(
    postgres: PostgresBackend, settings: str
) -> None:
    """Analyzed while there was one row; then three thousand arrive. Nobody gets more than the
    limit, no row is given twice, and every row that was returned is the caller's in the table."""
    postgres.uncompared()
    shop = postgres.register("shop")
    shop.enqueue("t", "first", {})
    postgres.admin.execute("vacuum analyze trex.delivery, trex.message")
    shop.enqueue_many([Movement("t", f"k{n}", n) for n in range(2999)])
    clients = [postgres.client("shop", ("full", "second")[n % 2]) for n in range(16)]
    for client in clients:
        if settings:
            postgres.connection(client).execute(settings)
    got: dict[int, list[tuple[int, int, str]]] = {}

    def claimer(number: int, client: Trex) -> Callable[[], None]:
        def work() -> None:
            mine = got[number] = []
            worker = f"w{number}"
            empty = 0
            while empty < 2:
                limit = 1 + len(mine) % 7
                claims = client.claim(worker, limit, lease=900 * SECOND)
                assert len(claims) <= limit
                mine += [(c.message_id, c.fence, worker) for c in claims]
                empty = 0 if claims else empty + 1

        return work

    errors = together(*(claimer(n, client) for n, client in enumerate(clients)))
    assert not errors, errors
    every = [claim for mine in got.values() for claim in mine]
    assert len(every) == 3000
    assert len({message_id for message_id, _, _ in every}) == 3000
    assert len({fence for _, fence, _ in every}) == 3000
    held = {(r["message_id"], r["fence"], r["worker"]) for r in postgres.rows("delivery")}
    assert held == set(every)
    assert sum(len(mine) > 0 for mine in got.values()) >= 8
    for client in clients:
        postgres.connection(client).execute("reset all")


@pytest.mark.criterion("ac-0031")
@pytest.mark.case("D6")
def test_eight_claimers_of_one_correlation(postgres: PostgresBackend) -> None:
    """Six of them ask for the correlation, and two for anything: no live lease is given twice."""
    postgres.uncompared()
    shop = postgres.register("shop")
    clients = [postgres.client("shop", ("full", "second")[n % 2]) for n in range(8)]
    claims: list[tuple[int, int]] = []

    def claimer(client: Trex, correlation_id: str | None) -> Callable[[], None]:
        def work() -> None:
            while found := client.claim("w", 5, lease=900 * SECOND, correlation_id=correlation_id):
                claims.extend([(c.message_id, c.fence) for c in found])

        return work

    for round_ in range(5):
        name = f"c{round_}"
        shop.enqueue_many([Movement("t", f"{name}-{n}", n, correlation_id=name) for n in range(60)])
        works = [claimer(c, name if n % 4 else None) for n, c in enumerate(clients)]
        errors = together(*works)
        assert not errors, errors
        got = Counter(message_id for message_id, _ in claims)
        assert max(got.values()) == 1, f"given twice: {+(got - Counter(set(got)))}"
    assert len(claims) == 300
    assert {(r["message_id"], r["fence"]) for r in postgres.rows("delivery")} == set(claims)
    print({"claimed": len(claims)})


@pytest.mark.criterion("ac-0030")
@pytest.mark.parametrize("ordering_key", [None, "lane"])
def test_two_enqueuers_of_one_key(postgres: PostgresBackend, ordering_key: str | None) -> None:
    """One enqueues, all others get the same message; a rollback lets another one in."""
    postgres.uncompared()
    postgres.register("shop")
    clients = [postgres.client("shop", ("full", "second")[n % 2]) for n in range(8)]
    for round_ in range(8):
        answers: list[Any] = []

        def work(client: Trex, key: str = f"k{round_}", answers: list[Any] = answers) -> None:
            answers.append(client.enqueue("t", key, {}, ordering_key=ordering_key))

        assert not together(*(lambda c=c: work(c) for c in clients))
        assert Counter(a.status for a in answers) == {"enqueued": 1, "duplicate": 7}
        assert len({a.message_id for a in answers}) == 1
    assert len(postgres.rows("message")) == 8


@pytest.mark.criterion("ac-0031")
def test_ids_of_one_key_commit_in_order(postgres: PostgresBackend) -> None:
    """Enqueuers of one key take turns from before the id is drawn until they commit."""
    postgres.uncompared()
    shop = postgres.register("shop")
    one, two = postgres.client("shop"), postgres.client("shop", "second")
    mine = postgres.connection(one)
    mine.execute("begin")
    first = one.enqueue("t", "first", {}, ordering_key="o")
    call = Session(two, postgres.connection(two)).start(
        "enqueue", "t", "second", {}, ordering_key="o"
    )
    assert waits(postgres.admin, call)
    # Other keys and messages without one aren't held up.
    assert shop.enqueue("t", "free", {}, ordering_key="p").status == "enqueued"
    assert shop.enqueue("t", "none", {}).status == "enqueued"
    mine.execute("commit")
    assert call.outcome().message_id > first.message_id
    order = [c.idempotency_key for c in shop.claim("w", 9)]
    assert order == ["first", "free", "none"]
