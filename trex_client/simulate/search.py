"""Every state of a small model: two messages, three workers, all orders of small steps.

Small steps are: claim one or two, mark as sent, send (the ledger takes it, or doesn't, or the
answer is lost), look up, report (the commit's answer arrives, or is lost and the report comes
again), crash, give back, let time pass to the next moment that matters, decide as an operator. A
worker that holds a claim may do its next step at any time, however late.

States that differ only in the numbers of fences, in absolute times or in which worker is which are
the same. A model with a bounded allowance and bounded decisions has finitely many, so the search
ends when it has seen them all, or at the depth that it was given.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from trex_client.errors import TrexError
from trex_client.memory import INFINITY, Clock, MemoryClient, MemoryDatabase
from trex_client.model import Report
from trex_client.simulate.checks import PARKED, Broken, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trex_client.model import Claim, EffectPolicy, Result

_START = datetime(2030, 1, 1, tzinfo=UTC)
_LEASE = timedelta(seconds=10)
_WHO: Any = {"actor": "sim", "reason": "sim"}
_KEY = "shop"
WORKERS = 3


@dataclass(frozen=True, slots=True)
class Model:
    """What is searched.

    Args:
        name: as it is told.
        policies: of the messages, in the order of enqueueing.
        ordered: both have the same ordering key.
        on_parked: of the instance.
        max_attempts: allowance.
        decisions: how often an operator may decide, for each message.
        crashes: most crashes of workers.
        batch: also claim two at once.
        workers: how many.
    """

    name: str
    policies: tuple[EffectPolicy, ...]
    ordered: bool = False
    on_parked: Any = "block"
    max_attempts: int = 2
    decisions: int = 1
    crashes: int = 1
    batch: bool = False
    workers: int = WORKERS


MODELS: tuple[Model, ...] = (
    Model("idempotent and send-once", ("idempotent", "at_most_once"), decisions=0),
    Model("look-up and idempotent, in order", ("lookup", "idempotent"), ordered=True, decisions=0),
    Model("send-once, decided", ("at_most_once", "at_most_once"), crashes=0),
    Model("in order, going on", ("lookup", "at_most_once"), ordered=True, on_parked="continue",
          crashes=0),
)  # fmt: skip
"""Those that `trex simulate --exhaustive` visits."""

LEAST = (
    "recorded", "claim_lost", "already_recorded", "expired", "delivered", "parked", "effects",
)  # fmt: skip
"""What every search must have seen."""


@dataclass(slots=True)
class Found:
    """What a search has seen. `complete`: there are no further states."""

    name: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    complete: bool = False
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    broken: str | None = None
    path: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """What should have been seen, and wasn't."""
        return [] if self.broken else [name for name in LEAST if not self.counts[name]]


# A worker's claim under way: (message, fence, deadline, uncertain, phase, report, absent).
# Phases: new -> marked -> reporting; new -> looked -> reporting.
@dataclass(slots=True)
class _Job:
    message_id: int
    fence: int
    deadline: datetime
    uncertain: bool
    phase: str = "new"
    result: Result = "completed"
    absent: bool = False
    park: bool = False
    repeated: bool = False


class _State:
    """The model, its workers and the ledger; cheap to copy."""

    __slots__ = (
        "clock", "counts", "crashes", "db", "decisions", "effects", "ended", "given", "jobs",
        "model", "sent",
    )  # fmt: skip

    def __init__(self, model: Model, counts: Counter[str]) -> None:
        self.model = model
        self.counts = counts
        self.clock = Clock(_START)
        self.db = MemoryDatabase(self.clock)
        self.jobs: list[list[_Job]] = [[] for _ in range(model.workers)]
        self.effects: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.given: dict[int, list[int]] = {}
        self.ended: dict[tuple[int, int], str] = {}
        self.decisions: dict[int, int] = {}
        self.crashes = 0
        client = MemoryClient(self.db, _KEY)
        client.register_instance(
            **_WHO, max_attempts=model.max_attempts, lease_default=_LEASE,
            backoff_base=timedelta(seconds=1), backoff_cap=timedelta(seconds=1),
            on_parked=model.on_parked,
        )  # fmt: skip
        client.bind("app", **_WHO)
        for number, policy in enumerate(model.policies):
            answer = client.enqueue(
                "pay", f"k{number}", payload_json="{}", effect_policy=policy,
                ordering_key="o" if model.ordered else None,
            )  # fmt: skip
            self.given[answer.message_id] = []

    @property
    def client(self) -> MemoryClient:
        """The API on this state's database."""
        return MemoryClient(self.db, _KEY)

    def copy(self) -> _State:
        """Return a state that shares nothing that changes."""
        new = object.__new__(_State)
        new.model, new.counts = self.model, self.counts
        new.clock = Clock(self.clock())
        new.db = _copy_db(self.db, new.clock)
        new.jobs = [[copy(job) for job in jobs] for jobs in self.jobs]
        new.effects = self.effects.copy()
        new.sent = self.sent.copy()
        new.given = {key: fences[:] for key, fences in self.given.items()}
        new.ended = self.ended.copy()
        new.decisions = self.decisions.copy()
        new.crashes = self.crashes
        return new

    # what may happen next

    def steps(self) -> Iterator[tuple[str, Callable[[_State], None]]]:
        """All steps that are possible here, by name."""
        claimable = any(row.parked is None for row in self.db.delivery.values())
        idle_seen = False
        for number, jobs in enumerate(self.jobs):
            if not jobs:
                if claimable and not idle_seen:  # idle workers are alike
                    idle_seen = True
                    for limit in (1, 2) if self.model.batch else (1,):
                        yield f"w{number} claim {limit}", _claim(number, limit)
                continue
            for at, job in enumerate(jobs):
                for name, step in self._job_steps(number, at, job):
                    yield f"w{number} {name} {job.message_id}", step
            if self.crashes < self.model.crashes:
                yield f"w{number} crash", _crash(number)
        if self._next_time() is not None:
            yield "time", _pass
        for (_, message_id), row in self.db.delivery.items():
            if row.parked and self.decisions.get(message_id, 0) < self.model.decisions:
                yield f"decide {message_id}", _decide(message_id)

    def _job_steps(
        self, number: int, at: int, job: _Job
    ) -> Iterator[tuple[str, Callable[[_State], None]]]:
        if job.phase == "reporting":
            yield "report", _report(number, at, lost=False)
            if not job.repeated:
                yield "report, answer lost", _report(number, at, lost=True)
            return
        policy = self.model.policies[job.message_id - 1]
        if self.clock() >= job.deadline:
            yield "give back", _end(number, at, "released")
            return
        if job.uncertain and policy == "lookup" and job.phase == "new":
            yield "look up", _look_up(number, at)
            return
        if policy == "at_most_once" and job.phase == "new":
            yield "mark", _mark(number, at)
            return
        yield "send", _send(number, at, arrives=True, answered=True)
        yield "send, answer lost", _send(number, at, arrives=True, answered=False)
        yield "send, request lost", _send(number, at, arrives=False, answered=False)
        yield "send, refused for now", _send(number, at, arrives=False, answered=True)

    def _next_time(self) -> datetime | None:
        now = self.clock()
        times = [
            until
            for row in self.db.delivery.values()
            if (until := row.lease_until or row.deferred_until) is not None
            and until != INFINITY
            and until > now
        ]
        return min(times, default=None)

    # canonical form

    def digest(self) -> bytes:
        """The same for states that differ in names only."""
        now = self.clock()
        fences = sorted({f for given in self.given.values() for f in given})
        rank = {fence: number for number, fence in enumerate(fences)}

        def when(at: datetime | None) -> object:
            if at is None or at == INFINITY:
                return str(at is None)
            return max(0.0, (at - now).total_seconds())

        db = self.db
        rows = [
            (
                i, d.deferred_until is None, when(d.deferred_until), when(d.lease_until),
                rank.get(d.fence, -1), d.attempts, d.tries, rank.get(d.sent_fence or 0, -1),
                d.uncertain, d.parked,
            )
            for (_, i), d in sorted(db.delivery.items())
        ]  # fmt: skip
        receipts = [
            (i, rank.get(r.fence, -1), r.duplicate, r.confirmed_by)
            for (_, i), r in sorted(db.receipt.items())
        ]
        ends = sorted((i, rank[f], kind) for (i, f), kind in self.ended.items())
        rest = (
            rows, receipts, ends, sorted(self.effects.items()), sorted(self.sent.items()),
            sorted(self.decisions.items()), self.crashes, db.fence_seq % 2,
            [(i, len(given)) for i, given in self.given.items()],
        )  # fmt: skip
        jobs = sorted(
            repr([
                (j.message_id, rank[j.fence], when(j.deadline), j.uncertain, j.phase, j.result,
                 j.absent, j.park, j.repeated)
                for j in held
            ])
            for held in self.jobs
        )  # fmt: skip
        return hashlib.blake2b(repr((rest, jobs)).encode(), digest_size=16).digest()

    # invariants

    def check(self) -> None:
        """What must hold in every state."""
        db = self.db
        fences = [fence for given in self.given.values() for fence in given]
        require(len(fences) == len(set(fences)), "I4", "a fence given twice")
        for message_id in self.given:
            key = (_KEY, message_id)
            row, receipt = db.delivery.get(key), db.receipt.get(key)
            require((row is None) != (receipt is None), "I3", "in neither or both", message_id)
            given = self.given[message_id]
            require(given == sorted(set(given)), "I4", "fences don't rise", message_id)
            outcomes = [o for (_, i, _), o in db.outcome.items() if i == message_id]
            if row is not None:
                is_open = row.lease_until is not None
                require(row.fence == (given[-1] if given else 0), "I4", "last fence", message_id)
                require(row.attempts == len(given), "I6", "attempts", message_id)
                require(len(given) == len(outcomes) + is_open, "I6", "ends", message_id)
                require(not (row.parked and is_open), "I10", "parked and leased", message_id)
                if row.uncertain and self.model.policies[message_id - 1] == "at_most_once":
                    require(row.parked is not None, "I13", "live and uncertain", message_id)
                if row.uncertain:
                    require(row.parked not in ("dead_letter", "conflict"), "I14", "", message_id)
            if receipt is not None:
                worker = receipt.confirmed_by != "operator"
                require(receipt.fence == given[-1] if given else not worker, "I2", "", message_id)
                require(len(given) == len(outcomes) + worker, "I6", "ends", message_id)
                require(self.effects.get(message_id, 0) >= 1, "I3", "delivered, not there")
            policy = self.model.policies[message_id - 1]
            effects, sent = self.effects.get(message_id, 0), self.sent.get(message_id, 0)
            decisions = self.decisions.get(message_id, 0)
            require(effects <= 1, "I14", "two effects", message_id)
            if policy == "at_most_once":
                require(sent <= 1 + decisions, "I13", "sent again", message_id, sent)
        if self.model.ordered:
            now = self.clock()
            held = [d for d in db.delivery.values() if d.lease_until and d.lease_until > now]
            require(len(held) <= 1, "I20", "two of a key in flight")


def _copy_db(db: MemoryDatabase, clock: Clock) -> MemoryDatabase:
    new = copy(db)
    new.now = clock
    for name in ("instance", "delivery", "ledger_skip", "ledger_snapshot"):
        setattr(new, name, {key: copy(row) for key, row in getattr(db, name).items()})
    for name in ("binding", "message", "lane", "receipt", "outcome", "stale_report", "audit",
                 "message_key"):  # fmt: skip
        setattr(new, name, getattr(db, name).copy())
    for name in ("outcome_fences", "message_correlation", "delivery_claim", "delivery_lane"):
        setattr(new, name, {key: rows[:] for key, rows in getattr(db, name).items()})
    new.epoch = copy(db.epoch)
    return new


# Steps: each changes a copy.


def _claim(number: int, limit: int) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        before = len(state.db.outcome)
        claims: list[Claim] = state.client.claim(f"w{number}", limit)
        state.counts["expired"] += len(state.db.outcome) - before
        for outcome in list(state.db.outcome.values())[before:]:
            state.ended[outcome.message_id, outcome.fence] = outcome.kind
        require(len(claims) <= limit, "I10", "more than the limit", len(claims))
        for claim in claims:
            for (_, other), row in state.db.delivery.items():
                if state.model.ordered and other < claim.message_id:
                    passed = row.parked is not None and state.model.on_parked == "continue"
                    require(passed, "I20", "overtook an earlier one of its key", other)
            held = state.given[claim.message_id]
            require(not held or claim.fence > held[-1], "I4", "a fence that falls")
            held.append(claim.fence)
            state.jobs[number].append(
                _Job(claim.message_id, claim.fence, claim.lease_until, claim.uncertain)
            )
        state.counts["claims"] += len(claims)

    return step


def _crash(number: int) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        state.crashes += 1
        state.jobs[number].clear()
        state.counts["crashes"] += 1

    return step


def _pass(state: _State) -> None:
    until = state._next_time()
    assert until is not None  # noqa: S101
    state.clock.set(until)


def _end(
    number: int, at: int, result: Result, *, absent: bool = False, park: bool = False
) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        job = state.jobs[number][at]
        job.phase, job.result, job.absent, job.park = "reporting", result, absent, park

    return step


def _mark(number: int, at: int) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        job = state.jobs[number][at]
        answer = state.client.mark_sent(job.message_id, job.fence, on_lost="report")
        if answer.status in ("recorded", "already_recorded"):
            job.phase = "marked"
        else:
            _end(number, at, "released")(state)
        state.counts[f"mark {answer.status}"] += 1

    return step


def _look_up(number: int, at: int) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        job = state.jobs[number][at]
        if job.message_id in state.effects:
            _end(number, at, "completed")(state)
        else:
            job.phase, job.absent = "looked", True
        state.counts["look-ups"] += 1

    return step


def _send(number: int, at: int, *, arrives: bool, answered: bool) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        job = state.jobs[number][at]
        policy = state.model.policies[job.message_id - 1]
        there = state.effects.get(job.message_id, 0)
        state.sent[job.message_id] = state.sent.get(job.message_id, 0) + 1
        if arrives:
            again = policy == "idempotent" and there > 0
            state.effects[job.message_id] = there + (not again)
            state.counts["effects"] += not again
            result: Result = "duplicate" if again else "completed"
        else:
            result = "retry"
        if answered:
            sure = job.absent or (policy == "at_most_once" and not job.uncertain)
            _end(number, at, result, absent=sure and result == "retry")(state)
        else:
            _end(number, at, "unknown", park=policy == "at_most_once")(state)
        state.counts["calls"] += 1

    return step


def _report(number: int, at: int, *, lost: bool) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        job = state.jobs[number][at]
        name = (job.message_id, job.fence)
        end = state.ended.get(name)
        if end is None:
            live = (_KEY, job.message_id) in state.db.delivery
            wanted = "claim_lost"
            if live and state.given[job.message_id][-1] == job.fence:
                wanted = "recorded"
        elif end == "lease_expired":
            wanted = "claim_lost"
        else:
            wanted = "already_recorded" if end == job.result else "ended_otherwise"
        absent = job.absent and job.result != "completed"
        report = Report(job.message_id, job.fence, job.result, absent=absent, park=job.park)
        answer = state.client.record([report])[0]
        require(answer.status == wanted, "I11", f"{answer.status} instead of {wanted}", name)
        if answer.status == "recorded":
            state.ended[name] = job.result
            state.counts["delivered"] += answer.state == "delivered"
            state.counts["parked"] += answer.state in PARKED
        state.counts[answer.status] += 1
        if lost:
            job.repeated = True
        else:
            del state.jobs[number][at]

    return step


def _decide(message_id: int) -> Callable[[_State], None]:
    def step(state: _State) -> None:
        row = state.db.delivery[_KEY, message_id]
        state.decisions[message_id] = state.decisions.get(message_id, 0) + 1
        if row.parked in ("dead_letter", "permanent"):
            state.client.redrive([message_id], **_WHO)
        elif message_id in state.effects:
            state.client.resolve(message_id, "delivered", evidence="books", **_WHO)
        else:
            state.client.resolve(message_id, "resend", evidence="books", **_WHO)
        state.counts["decisions"] += 1

    return step


def search(
    model: Model,
    *,
    depth: int = 0,
    most: int = 0,
    seconds: float = 0.0,
    progress: Callable[[int], None] = lambda _: None,
) -> Found:
    """Visit all states breadth first, so that what breaks is reached by a shortest path.

    Args:
        model: what to search.
        depth: longest path; 0 is no bound.
        most: most states; 0 is no bound.
        seconds: longest time; 0 is no bound.
        progress: called with the number of states.
    """
    started = time.monotonic()
    found = Found(model.name)
    first = _State(model, found.counts)
    origin: dict[bytes, tuple[bytes | None, str]] = {first.digest(): (None, "")}
    level = deque([(first, first.digest())])
    try:
        while level and (not depth or found.depth < depth):
            following: deque[tuple[_State, bytes]] = deque()
            while level:
                state, digest = level.popleft()
                if (most and len(origin) >= most) or (
                    seconds and time.monotonic() - started > seconds
                ):
                    return found
                for name, step in state.steps():
                    after = state.copy()
                    found.transitions += 1
                    try:
                        step(after)
                        after.check()
                    except (Broken, TrexError) as broken:
                        found.broken = str(broken) or type(broken).__name__
                        found.path = (*_path(origin, digest), name)
                        return found
                    key = after.digest()
                    if key not in origin:
                        origin[key] = (digest, name)
                        following.append((after, key))
                        if len(origin) % 1000 == 0:
                            progress(len(origin))
            level = following
            found.depth += 1
        found.complete = not level
    finally:
        found.states = len(origin)
        found.seconds = time.monotonic() - started
    return found


def _path(origin: dict[bytes, tuple[bytes | None, str]], digest: bytes | None) -> list[str]:
    steps: list[str] = []
    while digest is not None:
        digest, name = origin[digest]
        steps.append(name)
    return steps[-2::-1]
