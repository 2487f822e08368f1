"""One history: a list of steps, drawn from a seed, played on a fresh model.

A step is a name and a number that all its choices are cut from, so that any part of a history can
be played alone: the same steps always do the same. That is what `--seed`, `--only` and `--shrink`
rest on.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from trex_client.adapters.base import wire_key
from trex_client.errors import ClaimLost, EndedOtherwise, KeyReused, TrexError
from trex_client.memory import INFINITY, Clock, MemoryClient, MemoryDatabase
from trex_client.model import Recorded, Report
from trex_client.simulate.checks import PARKED, Broken, Checker, require
from trex_client.simulate.sinks import (
    IN_FLIGHT,
    Answer,
    Kind,
    Policy,
    Request,
    SimSink,
    Wait,
    place_of,
    place_of_await,
)
from trex_client.telemetry import Event, Telemetry
from trex_client.worker import Held, Processor, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from trex_client.adapters.base import Adapter
    from trex_client.model import Claim, EffectPolicy, OnConflict
    from trex_client.telemetry import Level

START = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=10)
_WHO: Any = {"actor": "sim", "reason": "sim"}
_INSTANCES = ("shop", "pool")
_SHARES = {
    "enqueue": 40, "receive": 6, "claim": 40, "go": 66, "record": 26, "tick": 20,
    "crash": 5, "network": 5, "stale": 10, "extend": 6, "handle": 12, "operator": 12,
    "policy": 2, "restart": 2, "trespass": 2, "purge": 2,
}  # fmt: skip
_STEPS: tuple[str, ...] = tuple(name for name, share in _SHARES.items() for _ in range(share))
assert len(_STEPS) == 256  # noqa: S101
_TICKS = (0.1, 0.3, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 11.0, 11.0, 15.0, 30.0, 900.0)
_POLICIES: tuple[EffectPolicy, ...] = (
    "idempotent", "idempotent", "idempotent", "lookup", "lookup", "at_most_once", "at_most_once",
    "idempotent",
)  # fmt: skip
_MOST_AWAITS = 10_000
_ORDER = (None, None, None, "a", "a", "b")

Step = tuple[str, int]
Mode = Literal[
    "fine", "lost_after", "lost_before", "late", "error_after", "unavailable", "in_progress"
]
# How a call to the ledger ends, by kind; a lie is an error that says nothing of what was done.
_MODES: tuple[Mode, ...] = (
    "fine", "fine", "fine", "fine", "fine", "fine", "fine", "fine", "fine", "lost_after",
    "lost_after", "lost_before", "late", "error_after", "unavailable", "in_progress",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """A history before it is played: its seed, and its steps."""

    seed: int
    setting: int
    steps: tuple[Step, ...]

    def only(self, numbers: Iterable[int]) -> Plan:
        """Return the same history with only some of its steps, counted from 0."""
        return Plan(self.seed, self.setting, tuple(self.steps[n] for n in numbers))


def plan(seed: int, steps: int) -> Plan:
    """Draw a history."""
    dice = random.Random(seed)
    setting = dice.getrandbits(64)
    raw = dice.randbytes(8 * steps)
    drawn = tuple(
        (_STEPS[raw[at]], int.from_bytes(raw[at + 1 : at + 8], "little"))
        for at in range(0, 8 * steps, 8)
    )
    return Plan(seed, setting, drawn)


@dataclass(slots=True, eq=False)
class Flow:
    """A claim under way: the processor's coroutine, and what it waits for."""

    held: Held
    run: Coroutine[Any, Any, object] | None = None
    waits: Wait | None = None
    awaits: int = 0


@dataclass(slots=True, eq=False)
class Hand:
    """A worker process: what it holds, and what it has yet to report."""

    name: str
    side: Side
    flows: list[Flow] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    after: int = 0
    crashes: int = 0


@dataclass(slots=True, eq=False)
class Side:
    """An instance with its ledger and workers."""

    key: str
    client: MemoryClient
    sink: SimSink
    adapter: Adapter
    processor: Processor
    hands: list[Hand] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    wire: dict[int, str] = field(default_factory=dict)
    enqueued: int = 0
    events: int = 0
    spent: list[Report] = field(default_factory=list)
    handled: list[Claim] = field(default_factory=list)


def _batch(hand: Hand) -> list[Report]:
    """What one call can take: each message once."""
    return list({report.message_id: report for report in reversed(hand.reports)}.values())


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


class _Listening(Telemetry):
    """Notes what adapters did that they must not: nobody else is told what was raised."""

    def __init__(self, key: str) -> None:
        super().__init__(key, level="error", stream=_Nowhere())  # type: ignore[arg-type]
        self.faults: Counter[str] = Counter()

    def event(self, event: Event, level: Level = "info", **fields: Any) -> None:
        super().event(event, level, **fields)
        if event is Event.ADAPTER_FAILED:
            error = sys.exc_info()[1]
            told = f"raised {type(error).__name__} at {place_of(error)}" if error else ""
            self.faults[told or "answered with what is no result"] += 1


@lru_cache(maxsize=8)
def _telemetry(key: str) -> _Listening:
    return _Listening(key)


@lru_cache(maxsize=4096)
def _wire_key(instance: str, key: str) -> str:
    return wire_key(instance, "outbox", key)


_NO_TRANSACTION = nullcontext()


class _RolledBack(Exception):  # noqa: N818
    """The caller's transaction ends without a commit."""


class World:
    """A model with its surroundings. `play` runs a plan, `drain` ends it without faults."""

    def __init__(self, setting: int, policy: Policy, *, trace: bool = False) -> None:
        self.clock = Clock(START)
        self.db = MemoryDatabase(self.clock)
        self.check = Checker(self.db)
        self.counts: Counter[str] = self.check.counts
        self.seconds = 0.0
        self.trace: list[str] | None = [] if trace else None
        self.step: int | None = None  # that is played
        self.effects: dict[tuple[str, int], int] = {}
        self.healthy = False
        self._runtime = Runtime(monotonic=lambda: self.seconds, wall=lambda: self.seconds)
        # A clock of the database that jumps ahead of the workers' takes away a promise, for what
        # was leased then: a look-up may come before the call that it looks for.
        self._salt = setting
        self.skewed = setting % 4 == 0
        self.cut_short: set[tuple[str, int]] = set()
        setting //= 4
        self.sides: list[Side] = []
        for key in _INSTANCES:
            kinds = policy.kinds
            kind: Kind = kinds[setting % len(kinds)]
            setting //= len(kinds)
            sink = policy.sink(kind)
            adapter = policy.adapter(sink)
            telemetry = _telemetry(key)
            telemetry.faults.clear()
            client = MemoryClient(self.db, key)
            client.register_instance(
                **_WHO, max_attempts=2 + setting % 3, lease_default=LEASE,
                backoff_base=timedelta(seconds=1), backoff_cap=timedelta(seconds=20),
                on_parked="block" if setting // 3 % 2 else "continue",
            )  # fmt: skip
            setting //= 6
            client.bind("app", **_WHO)
            side = Side(
                key, client, sink, adapter,
                policy.processor(key, adapter, telemetry, self._runtime),
            )  # fmt: skip
            side.hands = [Hand(f"{key}{number}", side) for number in range(2)]
            self.sides.append(side)
        self.hands = [hand for side in self.sides for hand in side.hands]
        self._steps: dict[str, Callable[[int], str | None]] = {
            name: getattr(self, f"_do_{name}") for name in _SHARES
        }

    def faults(self) -> Counter[str]:
        """What the adapters did that an adapter must not, so far."""
        return sum((_telemetry(side.key).faults for side in self.sides), Counter())

    # play

    def play(self, steps: Sequence[Step]) -> None:
        """Play steps, and check after each.

        Raises:
            Broken: an invariant doesn't hold.
        """
        check = self.check.step
        for number, (name, dice) in enumerate(steps):
            self.step = number
            try:
                said = self._steps[name](dice)
                check()
            except Broken:
                self._tell(number, name, "BROKEN")
                raise
            except TrexError as error:
                self._tell(number, name, "ERROR")
                raise Broken("answer", f"{name}: {type(error).__name__}") from error
            if self.trace is not None:
                self._tell(number, name, said)

    def _tell(self, number: int, name: str, said: str | None) -> None:
        if self.trace is not None:
            self.trace.append(f"{number:3} {self.seconds:9.1f}s  {name:9} {said or '-'}")

    @property
    def now(self) -> datetime:
        """The database's clock."""
        return self.clock()

    def _side(self, dice: int) -> Side:
        return self.sides[dice % 3 // 2]

    def _hand(self, dice: int) -> Hand:
        return self.hands[dice % 4]

    # enqueue and receive

    def _do_enqueue(self, dice: int) -> str:
        side = self._side(dice)
        dice //= 3
        again = dice % 8 == 0 and side.enqueued > 0
        dice //= 8
        number = dice % max(1, side.enqueued) if again else side.enqueued
        content = self._content(side, number, dice // 16 % 8 == 0 and again)
        policy, ordering_key, cash, topic = content
        rolled_back = dice % 8 == 1
        on_conflict: OnConflict = "report" if dice % 2 else "raise"
        delay = timedelta(seconds=3) if dice // 128 % 8 == 0 else None
        key = f"k{number}"
        in_transaction = rolled_back or dice % 4 == 0
        try:
            with self.db.transaction() if in_transaction else _NO_TRANSACTION:
                answer = side.client.enqueue(
                    topic, key, payload_json=f'{{"n": {number}}}', ordering_key=ordering_key,
                    effect_policy=policy, delay=delay, on_conflict=on_conflict,
                    account="a" if cash else None, currency="USD" if cash else None,
                    cash_delta=cash, correlation_id=f"c{number % 3}",
                )  # fmt: skip
                if rolled_back:
                    raise _RolledBack
        except _RolledBack:
            self.counts["rollbacks"] += 1
            return f"{side.key} {key} rolled back"
        except KeyReused:
            known = self.check.keys.get((side.key, "outbox", key))
            require(
                known is not None and known[1] != content, "I16", "refused the same content", key
            )
            self.counts["key reused"] += 1
            return f"{side.key} {key} refused"
        if answer.status == "enqueued":
            side.enqueued += 1
            side.ids.append(answer.message_id)
            side.wire[answer.message_id] = _wire_key(side.key, key)
            if dice // 1024 % 16 == 0:
                side.sink.refused.add(side.wire[answer.message_id])
            elif dice // 1024 % 16 == 1:
                side.sink.strangers.add(side.wire[answer.message_id])
        self.check.enqueued(side.key, "outbox", key, content, answer.message_id, answer.status)
        return f"{side.key} {key} {answer.status} as {answer.message_id} {policy} {ordering_key}"

    def _content(
        self, side: Side, number: int, other: bool
    ) -> tuple[EffectPolicy, str | None, Decimal | None, str]:
        mixed = (self._salt + number * 7919) * 2654435761 % 2**32 >> 8
        policy = _POLICIES[mixed % 8]
        return (
            policy, _ORDER[mixed // 8 % 6], Decimal(number + 1) if mixed // 64 % 2 else None,
            "other" if other else "pay",
        )  # fmt: skip

    def _do_receive(self, dice: int) -> str:
        side = self._side(dice)
        dice //= 3
        again = dice % 3 == 0 and side.events > 0
        number = dice // 3 % side.events if again else side.events
        event = f"e{number}"
        answer = side.client.receive(
            "stripe", "acct", event, "paid", f"o{number % 2}", b"{}", payload_json=f"[{number}]"
        )
        key = self.db.message[side.key, answer.message_id].idempotency_key
        if answer.status == "received":
            side.events += 1
        elif answer.status == "revived":
            self.check.decide(side.key, answer.message_id)
        self.check.enqueued(side.key, "inbox", key, (event,), answer.message_id, answer.status)
        return f"{side.key} {event} {answer.status} as {answer.message_id}"

    # claim

    def _do_claim(self, dice: int) -> str:
        hand = self._hand(dice)
        dice //= 4
        limit = (1, 2, 3, 4, 1, 10)[dice % 6]
        dice //= 6
        correlation = f"c{dice // 8 % 3}" if dice % 8 == 0 else None
        lost = dice // 24 % 16 == 0
        after = hand.after if dice // 384 % 4 == 0 and correlation is None else 0
        reports = _batch(hand) if correlation is None and dice // 2048 % 2 else []
        side = hand.side
        instance = self.db.instance[side.key]
        eligible = self.check.eligible(instance, "outbox", self.now, after, correlation)
        if reports:
            for report in reports:
                eligible.pop(report.message_id, None)
            answer = side.client.exchange(
                reports, hand.name, limit, lease=self._lease(dice), after=after
            )
            claims = answer.claims
            self._settle(hand, reports, answer.recorded, lost=lost)
        else:
            claims = side.client.claim(
                hand.name, limit, lease=self._lease(dice), after=after, correlation_id=correlation
            )
        self.check.claimed(instance, limit, eligible, claims, self.now, freed=bool(reports))
        if lost:
            # The commit's answer never came: nobody may use these fences.
            self.counts["lost claims"] += len(claims)
        else:
            self._hold(hand, claims)
        if self.trace is None:
            return ""
        which = " ".join(f"{c.message_id}/{c.attempt}{'?' if c.uncertain else ''}" for c in claims)
        return f"{hand.name} limit {limit}: {which or 'nothing'}{' (answer lost)' if lost else ''}"

    def _lease(self, dice: int) -> timedelta | None:
        return timedelta(seconds=4) if dice // 8192 % 4 == 0 else None

    def _hold(self, hand: Hand, claims: Sequence[Claim]) -> None:
        for claim in claims:
            lease = (claim.lease_until - self.now).total_seconds()
            held = Held(claim, received=self.seconds, deadline=self.seconds + lease)
            hand.flows.append(Flow(held))
            if claim.attempt == 1:
                hand.after = max(hand.after, claim.message_id)

    # what a processor may ask; a Desk for each call would cost more than the call

    def may_send(self, held: Held) -> bool:
        """Whether the lease has a second left, by the worker's own clock."""
        return not held.lost and self.seconds < held.deadline - 1.0

    async def mark_sent(self, held: Held) -> bool:
        """Commit that this message is about to be sent."""
        claim = held.claim
        side = self.sides[self._owner(held)]
        answer = side.client.mark_sent(claim.message_id, claim.fence, on_lost="report")
        wanted = self.check.expected(side.key, claim.message_id, claim.fence, "")
        if answer.status in ("recorded", "already_recorded"):
            require(wanted == "recorded", "I11", "marked a lost claim", claim.message_id)
        self.counts[f"mark {answer.status}"] += 1
        return answer.status in ("recorded", "already_recorded")

    async def will_hold(self, held: Held) -> None:
        """Keep the claim out of extensions while a transaction holds its row."""
        held.holding = True

    def _owner(self, held: Held) -> int:
        assert held.context is not None  # noqa: S101
        return _INSTANCES.index(held.context.instance_key)

    async def pause(self, held: Held, seconds: float) -> bool:
        """Wait; the flow goes on when the time has come."""
        del held
        self.counts["pauses"] += 1
        await Wait(until=self.seconds + seconds)
        return True

    # deliver

    def _do_go(self, dice: int) -> str | None:
        ready = [
            (hand, flow)
            for hand in self.hands
            for flow in hand.flows
            if flow.waits is None or flow.waits.until <= self.seconds
        ]
        if not ready:
            return None
        hand, flow = ready[dice % len(ready)]
        return self._go(hand, flow, dice // 256)

    def _go(self, hand: Hand, flow: Flow, dice: int) -> str:
        claim, side = flow.held.claim, hand.side
        said = f"{hand.name} {claim.message_id}/{claim.attempt}: "
        wait = flow.waits
        side.sink.now = self.seconds
        if flow.run is None:
            side.sink.unreachable = dice % 16 == 0 and not self.healthy
            if not self.may_send(flow.held):
                report = Report(claim.message_id, claim.fence, "released", "not_started")
                return said + self._ended(hand, flow, report)
            flow.run = self._process(side, flow)
        elif wait is not None and isinstance(wait.call, Request):
            mode: Mode = "fine" if self.healthy else _MODES[dice % 16]
            wait.answer = self._answer(side, wait.call, mode, dice)
            said += f"{mode} {wait.answer.status}; "
        elif wait is not None and wait.call is not None:
            sure = self.healthy or dice % 4 > 0
            wait.answer = wait.call in side.sink.effects if sure else None
            said += f"look-up {wait.answer}; "
            self.counts[f"look-up {wait.answer}"] += 1
        flow.waits = None
        try:
            asked: object = flow.run.send(None)
        except StopIteration as stop:
            return said + self._ended(hand, flow, stop.value)
        flow.awaits += 1
        if not isinstance(asked, Wait):
            raise Broken(
                "policy",
                f"awaits something else at {place_of_await(flow.run)}; a model of an adapter may"
                " await only sink.post(), sink.get() and context.sending()",
            )
        if flow.awaits > _MOST_AWAITS:
            raise Broken("policy", f"asks without end at {place_of_await(flow.run)}")
        flow.waits = asked
        return said + ("sent" if isinstance(asked.call, Request) else "waits")

    async def _process(self, side: Side, flow: Flow) -> object:
        return await side.processor.process(flow.held, self)

    def _answer(self, side: Side, request: Request, mode: Mode, dice: int) -> Answer:
        sink = side.sink
        self.counts[f"call {mode}"] += 1
        known = any(one is request for one in sink.flying)
        if mode == "late":
            request.may_arrive = dice // 16 % 2 == 0
            return Answer("lost")
        if mode == "lost_before" or not known:
            sink.drop(request)
            return Answer("lost")
        if mode == "unavailable":
            sink.drop(request)
            return Answer("unavailable")
        if mode == "in_progress":
            # What is in progress with this key is another call that left; there is none otherwise.
            sink.drop(request)
            return Answer("in_progress" if sink.is_flying(request.key) else "unavailable")
        answer = sink.arrive(request)
        if mode == "lost_after":
            return Answer("lost")
        if mode == "error_after":
            return Answer("error")
        return answer

    def _ended(self, hand: Hand, flow: Flow, outcome: object) -> str:
        hand.flows.remove(flow)
        require(isinstance(outcome, Report), "policy", "a processor returned no report")
        assert isinstance(outcome, Report)  # noqa: S101
        hand.reports.append(outcome)
        self.counts[f"report {outcome.result}"] += 1
        return f"{outcome.result} {outcome.reason}" + (" absent" if outcome.absent else "")

    # record

    def _do_record(self, dice: int) -> str | None:
        full = [hand for hand in self.hands if hand.reports]
        if not full:
            return None
        hand = full[dice % len(full)]
        dice //= 16
        lost = dice % 8 == 0
        single = dice // 8 % 4 == 0
        rolled_back = dice // 32 % 16 == 0
        reports = hand.reports[:1] if single else _batch(hand)
        if rolled_back:
            # The caller's transaction fails after the call: nothing may be left of it.
            try:
                with self.db.transaction():
                    hand.side.client.record(reports)
                    raise _RolledBack
            except _RolledBack:
                self.counts["rollbacks"] += 1
                return f"{hand.name} rolled back"
        if single:
            answers = [self._record_one(hand.side.client, reports[0])]
        else:
            answers = hand.side.client.record(reports)
        self._settle(hand, reports, answers, lost=lost)
        if self.trace is None:
            return ""
        words = " ".join(f"{a.message_id}:{a.status}={a.state}" for a in answers)
        return f"{hand.name} {words}{' (answer lost)' if lost else ''}"

    def _record_one(self, client: MemoryClient, report: Report) -> Recorded:
        """Through the function of the outcome, that raises."""
        r = report
        try:
            match r.result:
                case "completed" | "duplicate":
                    call = client.complete if r.result == "completed" else client.complete_duplicate
                    return call(
                        r.message_id, r.fence, reference=r.reference, confirmed_by=r.confirmed_by,
                        balance=r.balance, version=r.version,
                    )  # fmt: skip
                case "retry":
                    return client.retry(
                        r.message_id, r.fence, reason=r.reason, delay=r.delay, absent=r.absent
                    )
                case "unknown":
                    return client.mark_unknown(
                        r.message_id, r.fence, reason=r.reason, delay=r.delay, park=r.park
                    )
                case _:
                    return client.record([r])[0]
        except ClaimLost:
            self.counts["ClaimLost"] += 1
            return Recorded(r.message_id, r.fence, "claim_lost", None, False, None)
        except EndedOtherwise:
            return Recorded(r.message_id, r.fence, "ended_otherwise", None, False, None)

    def _settle(
        self, hand: Hand, reports: Sequence[Report], answers: Sequence[Recorded], *, lost: bool
    ) -> None:
        self.check.recorded(hand.side.key, reports, answers)
        if lost:
            # They stay, and are reported again with the same fences.
            self.counts["lost commits"] += 1
            return
        side = hand.side
        for report, answer in zip(reports, answers, strict=True):
            hand.reports.remove(report)
            side.spent.append(report)
            if answer.status == "recorded" and report.result in ("completed", "duplicate"):
                self._check_effect(side, report.message_id)

    def _check_effect(self, side: Side, message_id: int) -> None:
        key = side.wire[message_id]
        require(key in side.sink.effects, "I3", "delivered, and the ledger has nothing", message_id)

    # time, crashes, the network

    def _do_tick(self, dice: int) -> str:
        dice, which = divmod(dice, len(_TICKS))
        seconds = _TICKS[which]
        if self.skewed and dice % 3 == 0:
            jump = 12.0 if dice // 3 % 4 else -12.0
            if jump > 0:
                self._cut_leases()
            self.clock.advance(timedelta(seconds=jump))
            self.counts["clock jumps"] += 1
            return f"database's clock {jump:+} s"
        self._pass(seconds)
        return f"{seconds} s"

    def _cut_leases(self) -> None:
        now = self.now
        for key, row in self.db.delivery.items():
            if row.lease_until is not None and row.lease_until > now:
                self.cut_short.add(key)
                self.counts["leases cut short"] += 1

    def _pass(self, seconds: float) -> None:
        self.seconds += seconds
        self.clock.advance(timedelta(seconds=seconds))
        for side in self.sides:
            if side.sink.flying:
                self.counts["late arrivals"] += side.sink.settle(self.seconds)

    def _do_crash(self, dice: int) -> str:
        hand = self._hand(dice)
        self._crash(hand)
        return hand.name

    def _crash(self, hand: Hand) -> None:
        """The process is gone; what it sent may still arrive."""
        self.counts["crashes"] += bool(hand.flows or hand.reports)
        for flow in hand.flows:
            if flow.run is not None:
                flow.run.close()
        hand.flows.clear()
        hand.side.spent.extend(hand.reports)
        hand.reports.clear()
        hand.after = 0
        hand.crashes += 1
        hand.name = f"{hand.side.key}{hand.side.hands.index(hand)}x{hand.crashes}"

    def _do_network(self, dice: int) -> str | None:
        side = self._side(dice)
        # Only what nobody waits for any more; the others arrive when their answer is drawn.
        waiting = [f.waits.call for h in side.hands for f in h.flows if f.waits is not None]
        loose = [r for r in side.sink.flying if not any(r is w for w in waiting)]
        if not loose:
            return None
        request = loose[dice // 3 % len(loose)]
        if request.may_arrive:
            self.counts["late arrivals"] += 1
            return f"{side.key} late: {side.sink.arrive(request).status}"
        side.sink.drop(request)
        return f"{side.key} lost"

    # stale workers, heartbeats, other instances

    def _do_stale(self, dice: int) -> str | None:
        """A report that was made before comes again, perhaps as something else."""
        side = self._side(dice)
        if not side.spent:
            return None
        dice //= 3
        old = side.spent[dice % len(side.spent)]
        other: Report = old
        if dice // 64 % 3 == 0:
            other = Report(old.message_id, old.fence, "retry", "timeout")
        elif dice // 64 % 3 == 1:
            given = self.check.accounts[side.key, old.message_id].given
            fence = given[dice // 192 % len(given)]
            if self._is_held(side, fence):
                return None
            other = Report(old.message_id, fence, "completed")
            if self.check.expected(side.key, old.message_id, fence, "completed") == "recorded":
                return None  # nobody knows this one: a crashed worker's open claim
        wanted = self.check.expected(side.key, other.message_id, other.fence, other.result)
        if wanted == "recorded" and other is not old:
            return None  # only a crashed worker's own report may come late
        before = self._rows(side, old.message_id)
        if wanted != "recorded":
            self._probe(side, other)
        answers = side.client.record([other])
        self.check.recorded(side.key, [other], answers)
        status = answers[0].status
        if status != "recorded":
            require(
                self._rows(side, old.message_id) == before, "I15", f"{status} changed something"
            )
            self.counts["stale reports"] += 1
        elif other.result in ("completed", "duplicate"):
            self._check_effect(side, other.message_id)
        return f"{side.key} {other.message_id} {other.result}: {status}"

    def _probe(self, side: Side, report: Report) -> None:
        """A claim that isn't open any more can be neither marked nor held."""
        message_id, fence = report.message_id, report.fence
        marked = side.client.mark_sent(message_id, fence, on_lost="report")
        require(marked.status in ("claim_lost", "ended_otherwise"), "I11", "marked a lost claim")
        try:
            side.client.hold(message_id, fence)
        except (ClaimLost, EndedOtherwise):
            return
        raise Broken("I11", f"held a lost claim {message_id}")

    def _is_held(self, side: Side, fence: int) -> bool:
        return any(f.held.claim.fence == fence for h in side.hands for f in h.flows)

    def _rows(self, side: Side, message_id: int) -> tuple[Any, ...]:
        key = (side.key, message_id)
        row = self.db.delivery.get(key)
        held = None
        if row is not None:
            held = (row.fence, row.attempts, row.tries, row.lease_until, row.parked, row.uncertain,
                    row.deferred_until, row.worker)  # fmt: skip
        skip = self.db.ledger_skip.get(key)
        return (
            held, key in self.db.receipt, len(self.db.outcome),
            None if skip is None else (skip.parked, skip.resolved_at),
            [(s.balance, s.version, s.ignored) for s in self.db.ledger_snapshot.values()],
        )  # fmt: skip

    def _do_extend(self, dice: int) -> str | None:
        busy = [hand for hand in self.hands if hand.flows]
        if not busy:
            return None
        hand = busy[dice % len(busy)]
        # As the worker does: of one message only the newest claim is extended.
        newest = {flow.held.claim.message_id: flow.held for flow in hand.flows}
        for flow in hand.flows:
            flow.held.lost = flow.held.lost or newest[flow.held.claim.message_id] is not flow.held
        held = [one for one in newest.values() if not one.lost]
        if not held:
            return None
        rows = [self.db.delivery.get((hand.side.key, h.claim.message_id)) for h in held]
        before = [None if row is None else row.lease_until for row in rows]
        answers = hand.side.client.extend(
            [h.claim.message_id for h in held], [h.claim.fence for h in held]
        )
        lease = LEASE.total_seconds()
        for one, answer, until in zip(held, answers, before, strict=True):
            wanted = self.check.expected(hand.side.key, answer.message_id, answer.fence, "")
            if answer.status == "extended":
                require(wanted == "recorded", "I11", "extended a lost claim", answer.message_id)
                require(
                    answer.lease_until is not None
                    and until is not None
                    and answer.lease_until >= until,
                    "I5", "a heartbeat shortened a lease", answer.message_id,
                )  # fmt: skip
                one.deadline = max(one.deadline, self.seconds + lease)
                self.counts["extended"] += 1
            elif answer.status != "ended_otherwise":
                one.lost = True
                self.counts["heartbeat lost"] += 1
        return hand.name

    def _do_trespass(self, dice: int) -> str | None:
        """I7: another instance's ids are unknown here."""
        side = self._side(dice)
        other = self.sides[1 - self.sides.index(side)]
        if not other.spent:
            return None
        report = other.spent[dice // 3 % len(other.spent)]
        before = self._rows(other, report.message_id)
        answer = side.client.record([report])[0]
        require(answer.status == "not_found", "I7", "another's message", report.message_id)
        acted = side.client.redrive([report.message_id], **_WHO)[0]
        require(acted.status == "not_found", "I7", "another's message", report.message_id)
        require(self._rows(other, report.message_id) == before, "I7", "changed another's message")
        self.counts["trespasses"] += 1
        return f"{side.key} on {report.message_id}"

    # the same database: effect and completion in one transaction

    def _do_handle(self, dice: int) -> str | None:
        """I12: an inbox handler claims, writes its effect and completes; or dies on the way."""
        side = self._side(dice)
        dice //= 3
        if dice % 2 == 0 or not side.handled:
            instance = self.db.instance[side.key]
            eligible = self.check.eligible(instance, "inbox", self.now)
            claims = side.client.claim("handler", 2, box="inbox")
            self.check.claimed(instance, 2, eligible, claims, self.now)
            side.handled.extend(claims)
            return f"{side.key} took {[c.message_id for c in claims]}"
        claim = side.handled.pop(dice // 2 % len(side.handled))
        how = dice // 32 % 6
        message_id, fence = claim.message_id, claim.fence
        if how == 0:
            self.counts["handler crashes"] += 1
            return f"{side.key} {message_id} crashed"
        if how == 1:
            report = Report(message_id, fence, "postponed", "not_paid", timedelta(seconds=2))
            self.check.recorded(side.key, [report], side.client.record([report]))
            return f"{side.key} {message_id} postponed"
        if how == 2:
            report = Report(message_id, fence, "dead_letter", "handler_error")
            self.check.recorded(side.key, [report], side.client.record([report]))
            return f"{side.key} {message_id} dead letter"
        report = Report(message_id, fence, "completed", confirmed_by="handler")
        wanted = self.check.expected(side.key, message_id, fence, "completed")
        try:
            with self.db.transaction():
                self.db.put(self.effects, (side.key, message_id, fence), 1)
                side.client.hold(message_id, fence)
                answer = side.client.complete(message_id, fence, confirmed_by="handler")
                if how == 3:
                    raise _RolledBack
        except _RolledBack:
            self.counts["rollbacks"] += 1
            return f"{side.key} {message_id} rolled back"
        except (ClaimLost, EndedOtherwise):
            require(wanted != "recorded", "I11", "refused its own claim", message_id)
            self.counts["ClaimLost"] += 1
            return f"{side.key} {message_id} lost"
        self.check.recorded(side.key, [report], [answer])
        self.counts["handled"] += 1
        return f"{side.key} {message_id} handled"

    # operators

    def _do_operator(self, dice: int) -> str | None:
        side = self._side(dice)
        dice //= 3
        rows = [row for row in self.db.delivery.values() if row.instance_key == side.key]
        what = dice % 8
        if what == 0:
            paused = self.db.instance[side.key].paused
            (side.client.resume if paused else side.client.pause)(**_WHO)
            return f"{side.key} {'resumed' if paused else 'paused'}"
        if what == 1:
            ids = [row.message_id for row in rows if row.lease_until is None]
            done = side.client.expedite(ids, **_WHO) if ids else []
            self.counts["expedited"] += sum(one.status == "expedited" for one in done)
            return f"{side.key} expedited"
        parked = [row for row in rows if row.parked is not None]
        if not parked:
            return None
        row = parked[dice // 8 % len(parked)]
        return self._decide(side, row.message_id, str(row.parked), dice // 256)

    def _decide(self, side: Side, message_id: int, parked: str, dice: int) -> str:
        once = self.db.message[side.key, message_id].effect_policy == "at_most_once"
        in_doubt = once and self.db.delivery[side.key, message_id].uncertain
        if parked in ("dead_letter", "permanent") and not in_doubt:
            done = side.client.redrive([message_id], **_WHO)
            require(done[0].status == "redriven", "I22", f"redrive of {parked}", message_id)
            self.check.decide(side.key, message_id)
            self.counts["redriven"] += 1
            return f"{side.key} {message_id} redriven"
        refused = side.client.redrive([message_id], **_WHO)
        require(refused[0].status == "needs_resolve", "I14", f"redrive of {parked}", message_id)
        key = side.wire.get(message_id, "")
        if side.sink.is_flying(key):
            return f"{side.key} {message_id}: the operator waits"
        there = side.sink.effects.get(key, 0) > 0
        given_up = "absent" if dice % 8 else "abandon"
        done_one = "delivered" if there else "resend" if dice % 4 else given_up
        if parked == "conflict":
            side.sink.strangers.discard(key)
        side.client.resolve(
            message_id, done_one, evidence="the ledger's books", **_WHO,  # type: ignore[arg-type]
        )  # fmt: skip
        self.check.decide(
            side.key, message_id, afresh=done_one == "resend", evidence=done_one != "abandon",
            abandoned=done_one in ("absent", "abandon"),
        )  # fmt: skip
        self.counts["abandoned"] += done_one in ("absent", "abandon")
        self.counts["resent"] += done_one == "resend"
        self.counts["resolved"] += 1
        return f"{side.key} {message_id} resolved: {done_one}"

    def _do_policy(self, dice: int) -> str:
        side = self._side(dice)
        parked: Literal["block", "continue"] = "block" if dice // 3 % 2 else "continue"
        least = self.db.instance[side.key].max_attempts
        side.client.register_instance(
            **_WHO, on_parked=parked, max_attempts=max(least, 2 + dice // 6 % 3)
        )
        return f"{side.key} {parked}"

    def _do_restart(self, dice: int) -> str:
        del dice
        self.db.restart()
        self.counts["restarts"] += 1
        return "server"

    def _do_purge(self, dice: int) -> str:
        side = self._side(dice)
        done = side.client.purge(timedelta(0), **_WHO)
        self.counts["purged"] += done.purged
        return f"{side.key} {done.purged}"

    # the end

    def close(self) -> None:
        """End what is still under way."""
        for hand in self.hands:
            for flow in hand.flows:
                if flow.run is not None:
                    flow.run.close()

    def drain(self) -> None:
        """I19: without further faults, everything ends within leases and backoffs; then an operator
        decides what is parked, and everything is delivered.

        Raises:
            Broken: it doesn't.
        """
        self.healthy, self.step = True, None
        for hand in self.hands:
            self._crash(hand)
        for side in self.sides:
            side.handled.clear()
            side.sink.unreachable = False
            if self.db.instance[side.key].paused:
                side.client.resume(**_WHO)
        self._run_dry()
        for side in self.sides:
            for row in self.db.delivery.values():
                if row.instance_key == side.key and row.parked is None:
                    self._check_blocked(row.instance_key, row.message_id)
        self._tell(-1, "drain", f"{len(self.db.delivery)} parked or behind parked ones")
        for _ in range(4 + len(self.db.delivery)):
            if not self.db.delivery:
                break
            for side in self.sides:
                side.sink.refused.clear()
                side.sink.strangers.clear()
                for (owner, message_id), row in list(self.db.delivery.items()):
                    if owner == side.key and row.parked is not None:
                        self._decide(side, message_id, row.parked, 1)
                        self.check.step()
            self._run_dry()
        require(not self.db.delivery, "I19", "not delivered after all was decided")
        self._check_end()

    def _run_dry(self) -> None:
        end = self.seconds + self._bound()
        while True:
            moved = False
            for side in self.sides:
                moved |= self._run_once(side)
            if moved:
                continue
            wait = self._next_time()
            if wait is None:
                return
            self._pass(wait)
            require(self.seconds <= end, "I19", "not ended within leases and backoffs")

    def _bound(self) -> float:
        """Seconds until everything has ended: open leases and delays, then the allowance of
        each."""
        latest = 0.0
        for row in self.db.delivery.values():
            until = row.lease_until or row.deferred_until
            if until is not None and until is not INFINITY and until != INFINITY:
                latest = max(latest, (until - self.now).total_seconds())
        turns = max(instance.max_attempts for instance in self.db.instance.values()) + 1
        longest = LEASE.total_seconds() + 20.0 + 2 * IN_FLIGHT
        keyed = 1 + sum(row.ordering_key is not None for row in self.db.delivery.values())
        return latest + 1.0 + longest * turns * keyed

    def _next_time(self) -> float | None:
        """Seconds to the next moment at which something may be claimed, or a flow goes on. What is
        due already, and was passed over, waits for one of these."""
        now = self.now
        times = []
        for row in self.db.delivery.values():
            until = row.lease_until or row.deferred_until
            if until is not None and now < until and until is not INFINITY:
                times.append((until - now).total_seconds())
        for hand in self.hands:
            times += [f.waits.until - self.seconds for f in hand.flows if f.waits is not None]
        times += [IN_FLIGHT for side in self.sides if side.sink.flying]
        if not times:
            return None
        return max(0.001, min(times))

    def _run_once(self, side: Side) -> bool:
        hand = side.hands[0]
        instance = self.db.instance[side.key]
        now = self.now
        moved = False
        open_boxes = {
            row.box
            for row in self.db.delivery.values()
            if row.parked is None and row.instance_key == side.key
        }
        for box in sorted(open_boxes, reverse=True):
            eligible = self.check.eligible(instance, box, now)
            claims = side.client.claim(hand.name, 50, box=box)
            self.check.claimed(instance, 50, eligible, claims, now)
            self.check.step()
            moved |= bool(claims)
            if box == "outbox":
                self._hold(hand, claims)
                continue
            reports = [
                Report(c.message_id, c.fence, "completed", confirmed_by="handler") for c in claims
            ]
            if reports:
                with self.db.transaction():
                    for c in claims:
                        self.db.put(self.effects, (side.key, c.message_id, c.fence), 1)
                    answers = side.client.record(reports)
                self.check.recorded(side.key, reports, answers)
                self.check.step()
        for flow in list(hand.flows):
            while flow in hand.flows and (flow.waits is None or flow.waits.until <= self.seconds):
                self._go(hand, flow, 1)
                moved = True
        if hand.reports:
            reports = _batch(hand)
            self._settle(hand, reports, side.client.record(reports), lost=False)
            self.check.step()
            moved = True
        return moved

    def _check_blocked(self, owner: str, message_id: int) -> None:
        row = self.db.delivery[owner, message_id]
        blocks = self.db.instance[owner].on_parked == "block"
        blocked = (
            blocks
            and row.ordering_key is not None
            and any(
                other.parked in PARKED
                and not self.check.accounts[owner, other.message_id].abandoned
                for other in self.db.delivery.values()
                if other.instance_key == owner
                and other.ordering_key == row.ordering_key
                and other.message_id < message_id
            )
        )
        require(blocked, "I19", "neither delivered nor parked after the faults", owner, message_id)

    def _check_end(self) -> None:
        self.check.end()
        for side in self.sides:
            sink = side.sink
            require(sink.other_bodies == 0, "I14", "another body for the same key")
            strange = sink.calls.keys() - side.wire.values()
            require(not strange, "I14", "sent with a key that no message has", len(strange))
            for message_id, key in side.wire.items():
                self._check_sink(side, message_id, key)
        for (owner, message_id), message in self.db.message.items():
            if message.box == "inbox":
                effects = sum(k[:2] == (owner, message_id) for k in self.effects)
                require(effects == 1, "I12", "effects of a delivered event", message_id, effects)

    def _check_sink(self, side: Side, message_id: int, key: str) -> None:
        """I13, and one effect for each key as far as the adapter can promise it."""
        sink, account = side.sink, self.check.accounts[side.key, message_id]
        calls, effects = sink.calls.get(key, 0), sink.effects.get(key, 0)
        self.counts["calls"] += calls
        self.counts["effects"] += effects
        self.counts["called again"] += calls > 1
        if account.policy == "at_most_once":
            require(
                calls <= 1 + account.decisions,
                "I13", "an at_most_once sink called again without a decision", message_id, calls,
            )  # fmt: skip
            self.counts["at_most_once"] += 1
        if sink.dedups:
            require(effects <= 1, "I11", "two effects at a ledger that deduplicates", message_id)
        elif (side.key, message_id) not in self.cut_short:
            require(effects <= 1, "I14", "two effects for one key", message_id, effects)
        else:
            self.counts["excused from one effect"] += 1
            self.counts["two effects after a clock jump"] += effects > 1
