"""Seeded histories of the in-memory model, and an exhaustive search of a small one.

    from trex_client.simulate import Settings, run
    result = run(Settings(histories=1000, seed=1))
    assert result.failure is None

The model is `trex_client.memory`, the decisions are those of the worker's own processor, and the
ledgers are models that lose, repeat, delay and misreport. `Policy` is the hook for your own adapter
model and processor.
"""

from trex_client.simulate.checks import Broken
from trex_client.simulate.history import Plan, World, plan
from trex_client.simulate.runner import (
    LEAST,
    Failure,
    Outcome,
    ProcessEnded,
    Settings,
    play,
    play_many,
    run,
    shrink,
)
from trex_client.simulate.sinks import (
    Answer,
    Policy,
    PolicyNotFound,
    SimAdapter,
    SimSink,
    load_policy,
)

__all__ = [
    "LEAST",
    "Answer",
    "Broken",
    "Failure",
    "Outcome",
    "Plan",
    "Policy",
    "PolicyNotFound",
    "ProcessEnded",
    "Settings",
    "SimAdapter",
    "SimSink",
    "World",
    "load_policy",
    "plan",
    "play",
    "play_many",
    "run",
    "shrink",
]
