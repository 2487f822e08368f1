"""All states of a small model keep every invariant, and a planted bug is found by a shortest path.

`TREX_SEARCH_DEPTH` is the length of the paths, `TREX_SEARCH_STATES` the most states of each model.
"""

from __future__ import annotations

import pytest

from tests.py.simulation.bugs import BUGS, WITHIN_REACH
from tests.support.counts import emit, scale
from trex_client.simulate.search import MODELS, Model, search

DEPTH = scale("SEARCH_DEPTH", 8)
STATES = scale("SEARCH_STATES", 1_000_000)

SMALL = (
    Model("lookup", ("lookup", "idempotent"), workers=2, crashes=0, decisions=0),
    Model("send-once", ("at_most_once", "idempotent"), workers=2, crashes=0),
    Model("in order", ("lookup", "lookup"), ordered=True, workers=2, crashes=0, decisions=0),
)  # fmt: skip


@pytest.mark.criterion("ac-0063")
@pytest.mark.timeout(300 << max(0, DEPTH - 8))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_state_keeps_every_invariant(model: Model) -> None:
    found = search(model, depth=DEPTH, most=STATES)
    cut_off = found.depth < DEPTH and not found.complete
    emit(
        "search",
        {
            "states": found.states, "transitions": found.transitions, "cut off": int(cut_off),
            **found.counts,
        },
        seconds=found.seconds, model=found.name, depth=found.depth, complete=found.complete,
    )  # fmt: skip
    assert found.broken is None, "\n".join([*found.path, found.broken or ""])
    assert not cut_off or found.states >= STATES
    assert not found.missing()


@pytest.mark.criterion("ac-0063")
@pytest.mark.parametrize("name", WITHIN_REACH)
def test_a_planted_bug_is_found(name: str) -> None:
    undo = BUGS[name]()
    try:
        found = search(SMALL[WITHIN_REACH[name]], depth=9)
    finally:
        undo()
    emit(
        "search: planted bugs", {"bugs": 1, "states": found.states}, seconds=found.seconds,
        bug=name, path=list(found.path),
    )  # fmt: skip
    assert found.broken is not None
    assert len(found.path) <= 9


def test_the_same_states_by_any_order_of_workers() -> None:
    model = Model("small", ("idempotent", "idempotent"), workers=2, crashes=0, decisions=0)
    first, second = search(model, depth=6), search(model, depth=6)
    assert (first.states, first.transitions) == (second.states, second.transitions)
    more = search(Model("small", ("idempotent", "idempotent"), workers=3, crashes=0, decisions=0),
                  depth=2)  # fmt: skip
    # With two claims at most, a third worker adds nothing.
    assert more.states == search(model, depth=2).states
