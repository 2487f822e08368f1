"""Seeded histories keep every invariant, and a model with a planted bug doesn't.

`TREX_SIMULATE_HISTORIES` and `TREX_SIMULATE_SEED` choose others; a failure prints the command that
plays it again.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.py.simulation.bugs import BUGS, EXPECTED, WITHIN_REACH
from tests.support.counts import emit, scale
from trex_client.simulate import Broken, Policy, Settings, World, plan, play, play_many, run, shrink
from trex_client.simulate.checks import Account
from trex_client.simulate.runner import _in_loop, follow

ROOT = Path(__file__).resolve().parents[3]
HISTORIES = scale("SIMULATE_HISTORIES", 100_000)
SEED = scale("SIMULATE_SEED", 20300101)
JOBS = scale("SIMULATE_JOBS", 1)
SHARDS = 4


@pytest.mark.criterion("ac-0062")
@pytest.mark.timeout(max(300, HISTORIES // 20))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_invariant_holds(shard: int) -> None:
    part = HISTORIES // SHARDS
    outcome = run(Settings(histories=part, seed=SEED + shard * part, jobs=JOBS))
    emit(
        "simulate",
        {"histories": outcome.histories, "steps": outcome.steps, **outcome.counts},
        seconds=outcome.seconds,
        cpu_seconds=round(outcome.cpu_seconds, 2),
        seed=SEED + shard * part,
    )
    failure = outcome.failure
    assert failure is None, "\n".join(
        [*failure.trace, failure.text, f"trex simulate --seed {failure.seed} -n 1 --trace"]
    )
    assert outcome.histories == part
    assert not outcome.missing()


@pytest.mark.criterion("ac-0062")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    started = time.monotonic()
    undo = BUGS[name]()
    try:
        found = run(Settings(histories=4000, seed=1, jobs=1))
        assert found.failure is not None
        assert found.failure.invariant == EXPECTED[name], found.failure.text
        if name == "no fence check":
            shortest = shrink(Settings(), found.failure)
            assert len(shortest.steps) < 12
            assert shortest.invariant == found.failure.invariant
            again = follow(Settings(seed=shortest.seed, only=shortest.steps))
            assert again[0] == shortest.text
            assert again[1] == list(shortest.trace)
    finally:
        undo()
    emit(
        "simulate: planted bugs", {"bugs": 1, "histories": found.histories},
        seconds=time.monotonic() - started, bug=name, invariant=found.failure.invariant,
    )  # fmt: skip


@pytest.mark.criterion("ac-0062")
def test_a_seed_replays_exactly() -> None:
    def tell(seed: int) -> tuple[list[str] | None, object, object]:
        world = _in_loop(lambda: play(plan(seed, 80), Policy(), trace=True))
        return world.trace, world.db.dump(), dict(world.counts)

    for seed in range(30):
        assert tell(seed) == tell(seed)
    assert tell(1)[0] != tell(2)[0]


def test_a_history_is_the_same_alone_and_among_others() -> None:
    alone = [play_many(Settings(), seed, 1).counts for seed in range(40, 60)]
    together = play_many(Settings(), 40, 20).counts
    assert sum(alone, type(together)()) == together
    spread = run(Settings(histories=20, seed=40, jobs=2)).counts
    assert spread == together


def test_a_run_that_saw_too_little_says_so() -> None:
    outcome = run(Settings(histories=300, steps=50, jobs=1))
    assert not outcome.missing()
    outcome.counts["claim_lost"] = 0
    assert "claim_lost" in outcome.missing()


def test_every_planted_bug_has_its_invariant_and_the_page_their_number() -> None:
    assert set(EXPECTED) == set(BUGS)
    page = " ".join((ROOT / "docs/proof.md").read_text(encoding="utf-8").split())
    assert f"finds {len(BUGS)} of {len(BUGS)} bugs planted in the model" in page
    assert f"the search {len(WITHIN_REACH)} of the {len(WITHIN_REACH)} that its" in page


def test_only_a_message_leased_at_a_clock_jump_may_have_two_effects() -> None:
    world = World(0, Policy())
    assert world.skewed
    side = world.sides[0]
    leased, ready = (side.client.enqueue("pay", key, payload_json="{}").message_id for key in "ab")
    side.client.claim("w", 1)
    forward = 15 * 3
    assert world._do_tick(forward) == "database's clock +12.0 s"
    assert world.cut_short == {(side.key, leased)}
    side.sink.dedups = False
    world.check.accounts.update(
        {(side.key, number): Account("lookup", "outbox") for number in (leased, ready)}
    )
    side.sink.effects.update(a=2, b=2)
    world._check_sink(side, leased, "a")
    assert world.counts["two effects after a clock jump"] == 1
    with pytest.raises(Broken, match="I14: two effects for one key"):
        world._check_sink(side, ready, "b")
