"""Many histories on all cores, and what to do with one that fails: tell it, and shorten it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process
from typing import TYPE_CHECKING, Any

from trex_client.simulate.checks import Broken, require
from trex_client.simulate.history import Plan, World, plan
from trex_client.simulate.sinks import Policy, load_policy, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

CHUNK = 100

LEAST: dict[str, float] = {
    "claims": 600, "delivered": 400, "recorded": 400, "already_recorded": 10, "claim_lost": 5,
    "ended_otherwise": 6, "lease_expired": 150, "late": 15, "retry": 10, "unknown": 40,
    "conflict": 15, "permanent": 12, "redriven": 15, "resolved": 60, "resent": 30, "abandoned": 0.1,
    "parked unknown": 50, "uncertain claims": 100, "cleared": 25, "look-up True": 15,
    "look-up False": 30, "pauses": 15, "call lost_after": 10, "call lost_before": 5,
    "call error_after": 5, "call late": 5, "late arrivals": 20, "lost commits": 8,
    "lost claims": 10, "crashes": 60, "clock jumps": 2, "restarts": 20, "rollbacks": 50,
    "ordered claims": 200, "duplicate": 20, "key reused": 1, "extended": 20, "stale reports": 15,
    "at_most_once": 60, "mark recorded": 60, "handled": 1, "trespasses": 3, "purged": 0.5,
    "received": 40, "deduplicated": 4,
}  # fmt: skip
"""What a hundred histories of fifty steps must have seen at least: half of what they do see. A run
that saw less has proved less than it says."""
LEAST_STEPS = 5000
"""A run of fewer steps proves nothing, whatever it saw."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run.

    Args:
        histories: how many.
        steps: length of each, before the faults stop and everything is drained.
        seed: of the first; the n-th has seed + n.
        jobs: processes; 0 is one for each core.
        policy: `module:object` of a `Policy`; the worker's own by default.
        only: play only these steps (counted from 0) of each history.
        seconds: stop after so long; 0 is no limit.
    """

    histories: int = 1000
    steps: int = 50
    seed: int = 1
    jobs: int = 0
    policy: str | None = None
    only: tuple[int, ...] | None = None
    seconds: float = 0.0

    def plan(self, seed: int) -> Plan:
        """Return the history of a seed."""
        drawn = plan(seed, self.steps)
        return drawn if self.only is None else drawn.only(self.only)


@dataclass(frozen=True, slots=True)
class Failure:
    """A history that broke an invariant: its seed, the numbers of the steps that were played, what
    broke, the steps as text, and whether it broke like this when played again."""

    seed: int
    steps: tuple[int, ...]
    invariant: str
    text: str
    trace: tuple[str, ...]
    repeats: bool = True


@dataclass(slots=True)
class Outcome:
    """What a run has seen. `cpu_seconds`: of all processes together."""

    histories: int = 0
    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None

    def missing(self) -> dict[str, tuple[int, float]]:
        """Counters that are lower than so many histories must make them."""
        scale = self.steps / LEAST_STEPS
        return self.missing_steps() | {
            name: (self.counts[name], least * scale)
            for name, least in LEAST.items()
            if self.counts[name] < int(least * scale)
        }

    def missing_steps(self) -> dict[str, tuple[int, float]]:
        """The same for the number of steps alone: with a policy of one's own much never happens."""
        return {"steps": (self.steps, LEAST_STEPS)} if self.steps < LEAST_STEPS else {}


def play(history: Plan, policy: Policy, *, trace: bool = False) -> World:
    """Play one history to its end and return the world.

    Raises:
        Broken: an invariant doesn't hold; `world` is the attribute that holds the trace.
    """
    try:
        world = World(history.setting, policy, trace=trace)
    except Exception as error:
        raise _unexpected(error) from error
    try:
        world.play(history.steps)
        world.drain()
        require(not world.faults(), "policy", "an adapter must answer, and raise nothing")
    except Broken as broken:
        broken.world = world
        for fault, times in world.faults().most_common(1):
            broken.add(f"before that the adapter {fault}, {times} times")
        raise
    except Exception as error:
        unexpected = _unexpected(error)
        unexpected.world = world
        raise unexpected from error
    finally:
        world.close()
    return world


def _unexpected(error: Exception) -> Broken:
    return Broken("error", f"{type(error).__name__} at {place_of(error)}")


def _in_loop(function: Callable[[], Any]) -> Any:
    """Processors ask asyncio which task they run in; nothing here ever waits for the loop, and so
    `asyncio.run`, which keeps the first Ctrl-C for when it does, would keep it for ever. What a
    policy prints is no result.
    """

    async def run() -> Any:
        return function()

    loop = asyncio.new_event_loop()
    try:
        with redirect_stdout(sys.stderr):
            return loop.run_until_complete(run())
    finally:
        loop.close()


def play_many(settings: Settings, first: int, number: int) -> Outcome:
    """Play some histories one after the other, up to the first failure."""
    policy = load_policy(settings.policy)
    outcome = Outcome()

    def run() -> None:
        for seed in range(first, first + number):
            history = settings.plan(seed)
            try:
                world = play(history, policy)
            except Broken as error:
                broken = error
            else:
                outcome.histories += 1
                outcome.steps += len(history.steps)
                outcome.counts.update(world.counts)
                continue
            outcome.failure = tell(settings, history, policy, broken)
            return

    cpu = time.process_time()
    _in_loop(run)
    outcome.cpu_seconds = time.process_time() - cpu
    return outcome


def tell(settings: Settings, history: Plan, policy: Policy, broken: Broken) -> Failure:
    """Play a failing history again with its steps told. Not while `broken` is being handled: it
    would be taken for what an adapter raises.
    """
    numbers = settings.only or tuple(range(settings.steps))
    again = _try(history, numbers, policy)
    if again is not None and again.text == str(broken):
        return again
    world = broken.world
    if world is None:
        place = "before the first step"
    else:
        place = "at the end" if world.step is None else f"at step {numbers[world.step]}"
    broken.add(
        f"that was {place}, and did not come again when played again: the policy is random or keeps"
        " state between histories"
    )
    return Failure(history.seed, numbers, broken.invariant, str(broken), (), repeats=False)


def follow(settings: Settings) -> tuple[str | None, list[str]]:
    """Play the first history and tell its steps: what broke, or None, and the steps as text."""
    policy = load_policy(settings.policy)
    history = settings.plan(settings.seed)

    def one() -> tuple[str | None, list[str]]:
        try:
            return None, play(history, policy, trace=True).trace or []
        except Broken as broken:
            return str(broken), (broken.world.trace if broken.world else None) or []

    told: tuple[str | None, list[str]] = _in_loop(one)
    return told


def _try(history: Plan, numbers: Sequence[int], policy: Policy) -> Failure | None:
    try:
        play(history, policy, trace=True)
    except Broken as broken:
        trace = tuple((broken.world.trace if broken.world else None) or ())
        return Failure(history.seed, tuple(numbers), broken.invariant, str(broken), trace)
    return None


def shrink(
    settings: Settings, failure: Failure, progress: Callable[[int], None] = lambda _: None
) -> Failure:
    """Leave out steps as long as the same invariant breaks; return the shortest history found. One
    that doesn't repeat is returned as it is."""
    if not failure.repeats:
        return failure
    policy = load_policy(settings.policy)
    whole = plan(failure.seed, settings.steps)

    def attempt(numbers: Sequence[int]) -> Failure | None:
        found = _try(whole.only(numbers), numbers, policy)
        return found if found is not None and found.invariant == failure.invariant else None

    def run() -> Failure:
        best = attempt(failure.steps) or failure
        size = max(1, len(best.steps) // 2)
        while True:
            at, smaller = 0, False
            while at < len(best.steps):
                found = attempt(best.steps[:at] + best.steps[at + size :])
                if found is not None:
                    best, smaller = found, True
                    progress(len(best.steps))
                else:
                    at += size
            if size == 1 and not smaller:
                return best
            size = max(1, size // 2)

    shortest: Failure = _in_loop(run)
    return shortest


def run(settings: Settings, progress: Callable[[Outcome], None] = lambda _: None) -> Outcome:
    """Play all histories, up to the first failure; with any number of jobs that is the one with
    the lowest seed.

    Args:
        settings: what to run.
        progress: called with what was seen so far.

    Raises:
        ProcessEnded: a process that played ended.
    """
    started = time.monotonic()
    total = Outcome()
    for part in _parts(settings, started):
        total.histories += part.histories
        total.steps += part.steps
        total.cpu_seconds += part.cpu_seconds
        total.counts.update(part.counts)
        failures = [one for one in (total.failure, part.failure) if one is not None]
        total.failure = min(failures, key=lambda one: one.seed, default=None)
        total.seconds = time.monotonic() - started
        progress(total)
    if total.failure is None and not settings.seconds and total.histories != settings.histories:
        raise RuntimeError(f"played {total.histories} of {settings.histories} histories")
    total.seconds = time.monotonic() - started
    return total


class ProcessEnded(Exception):  # noqa: N818
    """A process that played histories ended before it had an answer."""


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Processes that are begun here never hear of Ctrl-C: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_child() -> None:
    # What is imported stays: no collection looks at it again.
    gc.freeze()
    parent = parent_process()

    def watch() -> None:
        """Nobody waits for the results of a parent that was killed."""
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _parts(settings: Settings, started: float) -> Iterator[Outcome]:
    jobs = settings.jobs or os.cpu_count() or 1
    chunk = max(1, min(CHUNK, -(-settings.histories // jobs)))
    chunks = iter([
        (settings.seed + at, min(chunk, settings.histories - at))
        for at in range(0, settings.histories, chunk)
    ])  # fmt: skip

    def over() -> bool:
        return 0 < settings.seconds <= time.monotonic() - started

    if jobs == 1:
        for first, number in chunks:
            if over():
                return
            part = play_many(settings, first, number)
            yield part
            if part.failure is not None:
                return
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin_child)
    pending: dict[Future[Outcome], int] = {}
    lowest: int | None = None  # of the failures
    try:
        while True:
            while len(pending) < 2 * jobs and lowest is None and not over():
                following = next(chunks, None)
                if following is None:
                    break
                with _interrupts_later():
                    begun = pool.submit(play_many, settings, *following)
                pending[begun] = following[0]
            # After a failure, only those that may have one with a lower seed.
            wanted = [one for one, first in pending.items() if lowest is None or first < lowest]
            if not wanted:
                return
            for one in wait(wanted, return_when=FIRST_COMPLETED).done:
                del pending[one]
                part = one.result()
                if part.failure is not None:
                    seed = part.failure.seed
                    lowest = seed if lowest is None else min(seed, lowest)
                yield part
    except BrokenProcessPool:
        raise ProcessEnded(
            "a process that played ended without an answer: the policy ended it, as os._exit does,"
            " or the system killed it"
        ) from None
    finally:
        if pending:  # nobody wants these, and a policy may never come back
            for child in set(active_children()) - others:
                child.kill()
        pool.shutdown(wait=True, cancel_futures=True)
