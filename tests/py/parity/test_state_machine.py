"""The simulation equals every server, step by step.

Hypothesis chooses some histories and shortens one that fails; most come from a seeded generator,
whose draws are spread more evenly. `TREX_PARITY_HISTORIES` is the number of histories of a shard,
`TREX_PARITY_SEED` the seed of the first one. A failure prints the calls that lead to it.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.py.parity.machine import Machine
from tests.support.backends import Sessions
from tests.support.databases import server_specs

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = [spec.version for spec in server_specs()]
HISTORIES = int(os.environ.get("TREX_PARITY_HISTORIES", "160"))
SEED = int(os.environ.get("TREX_PARITY_SEED", "20300101"))
STEPS = 50
SHARDS = 4

# What a hundred seeded histories must at least have seen.
LEAST = {
    "steps": 2500,
    "claims": 250,
    "uncertain claims": 20,
    "late": 10,
    "status recorded": 120,
    "status already_recorded": 8,
    "status ended_otherwise": 40,
    "status claim_lost": 60,
    "status not_found": 20,
    "status conflict": 6,
    "status redriven": 3,
    "status extended": 10,
    "ClaimLost": 40,
    "EndedOtherwise": 10,
    "KeyReused": 6,
    "InvalidArgument": 80,
    "WrongTransaction": 20,
    "state unknown": 10,
    "state dead_letter": 10,
    "state conflict": 10,
    "state permanent": 10,
    "state deferred": 50,
    "commits": 20,
    "rollbacks": 20,
    "restarts": 20,
}


@pytest.fixture
def houses(request: pytest.FixtureRequest) -> Iterator[list[Sessions]]:
    made = []
    for version in VERSIONS:
        server = request.getfixturevalue(f"server_{version}")
        template = request.getfixturevalue(f"template_{version}").template_dbname
        made.append(Sessions(server, template))
        request.node.user_properties.append(("postgresql", version))
    yield made
    for house in made:
        house.close()


def _machine(houses: list[Sessions]) -> type[Machine]:
    return type("Shard", (Machine,), {"houses": houses, "counts": Counter()})


@pytest.mark.criterion("ac-0038")
@pytest.mark.timeout(max(300, HISTORIES))
def test_histories_of_hypothesis(houses: list[Sessions]) -> None:
    machine = _machine(houses)
    how = settings(
        max_examples=max(20, HISTORIES // 5),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(SEED)(machine), settings=how)
    print(f"seed {SEED}: {dict(sorted(machine.counts.items()))}")
    assert machine.counts["steps"] > 5 * machine.counts["histories"]


@pytest.mark.criterion("ac-0038")
@pytest.mark.criterion("ac-0032")
@pytest.mark.timeout(max(300, HISTORIES * 4))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_seeded_histories(houses: list[Sessions], shard: int) -> None:
    machine = _machine(houses)
    started = time.monotonic()
    for number in range(HISTORIES):
        one = SEED + shard * 1_000_000 + number
        rng = random.Random(one)
        draws = [rng.randbytes(5) for _ in range(STEPS)]
        try:
            machine().play(draws)
        except AssertionError as error:
            error.add_note(f"seed {one}")
            raise
    counts = machine.counts
    rate = counts["steps"] / (time.monotonic() - started)
    print(f"seed {SEED}, shard {shard}: {rate:.0f} steps/s, {dict(sorted(counts.items()))}")
    # Fewer histories than CI has may miss what is rare.
    share = counts["histories"] if counts["histories"] >= 40 else 0
    least = {name: number * share // 100 for name, number in LEAST.items()}
    too_few = {name: (counts[name], n) for name, n in least.items() if counts[name] < n}
    assert not too_few
