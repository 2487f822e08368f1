"""What is reported for each answer of an adapter: the table at the top of `worker/delivery.py`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from trex_client.adapters.base import (
    Absent,
    BaseAdapter,
    Conflict,
    Delivered,
    Duplicate,
    Found,
    NotSent,
    NotSure,
    Permanent,
    Retryable,
    Snapshot,
    Unknown,
)
from trex_client.model import Report
from trex_client.telemetry import Alert, Event
from trex_client.testing import make_claim
from trex_client.worker import AdapterProcessor, Held, Runtime
from trex_client.worker.plans import Once, Plan

pytestmark = pytest.mark.criterion("ac-0047")
SECOND = timedelta(seconds=1)
TICK = 0.001


class Desk:
    """A worker at one moment; says what it was asked."""

    def __init__(self, *, sends: tuple[bool, ...] = (), marks: bool = True, waits: bool = True):
        self.sends = list(sends)
        self.marks = marks
        self.waits = waits
        self.marked = 0
        self.paused: list[float] = []

    def may_send(self, held: Held) -> bool:
        del held
        return self.sends.pop(0) if self.sends else True

    async def mark_sent(self, held: Held) -> bool:
        del held
        self.marked += 1
        return self.marks

    async def will_hold(self, held: Held) -> None:
        held.holding = True

    async def pause(self, held: Held, seconds: float) -> bool:
        del held
        self.paused.append(seconds)
        return self.waits


class Sink(BaseAdapter):
    """Gives the answers that it was made with; an exception is raised."""

    announces_sending = True

    def __init__(
        self, answer: Any = None, found: Any = (), policy: Any = "idempotent", *,
        can_lookup: bool = False, window: float = 5.0, sends: int = 1,
    ):  # fmt: skip
        self.answer = answer
        self.found = list(found)
        self.policy = policy
        self.can_lookup = can_lookup
        self.in_flight = timedelta(seconds=window)
        self.sends = sends
        self.calls = 0

    async def deliver(self, claim: Any, context: Any) -> Any:
        del claim
        for _ in range(self.sends):
            await context.sending()
        self.calls += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    async def lookup(self, wire_key: str) -> Any:
        del wire_key
        answer = self.found.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Told:
    """Telemetry that keeps what it is told."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def event(self, event: Event, level: str, *, reason: str) -> None:
        self.all.append((event, level, reason))

    def alert(self, alert: Alert, *, reason: str) -> None:
        self.all.append((alert, reason))


FAILED = [
    (Event.ADAPTER_FAILED, "error", "adapter_error"), (Alert.ADAPTER_FAILED, "adapter_error"),
]  # fmt: skip


def processor(sink: Sink, told: Told | None = None, now: float = 100.0) -> AdapterProcessor:
    telemetry: Any = told or Told()
    return AdapterProcessor("shop", sink, telemetry, Runtime(monotonic=lambda: now))


def decide(
    sink: Sink, *, desk: Desk | None = None, now: float = 100.0, told: Told | None = None,
    **claim: Any,
) -> Report:  # fmt: skip
    """The report for one claim that came at 0.0, decided at `now`."""
    held = Held(make_claim(**claim), received=0.0, deadline=1000.0)
    report: Report = asyncio.run(processor(sink, told, now).process(held, desk or Desk()))
    return report


@pytest.mark.parametrize(
    ("reason", "result"),
    [("shutdown", "released"), ("not_started", "released"), ("timeout", "unknown")],
)
def test_a_look_up_that_was_not_made_costs_nothing(reason: str, result: str) -> None:
    sink = Sink(found=[NotSure(reason)], policy="lookup", can_lookup=True)
    report = decide(sink, uncertain=True, effect_policy="lookup")
    assert (report.result, report.reason, sink.calls) == (result, reason, 0)


def said(report: Report) -> tuple[Any, ...]:
    return report.result, report.reason, report.absent, report.park


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Retryable("timeout", SECOND), ("retry", "timeout", False, False)),
        (Retryable("timeout", absent=True), ("retry", "timeout", True, False)),
        (Retryable("in_progress"), ("unknown", "in_progress", False, False)),
        (Retryable("no such reason"), ("retry", "unspecified", False, False)),
        (Retryable(["timeout"]), ("retry", "unspecified", False, False)),  # type: ignore[arg-type]
        (Conflict(), ("conflict", "key_conflict", False, False)),
        (Conflict("rejected"), ("conflict", "rejected", False, False)),
        (Conflict("no such reason"), ("conflict", "key_conflict", False, False)),
        (Permanent(), ("permanent", "rejected", False, False)),
        (Permanent("no such reason", absent=True), ("permanent", "rejected", True, False)),
        (Unknown("timeout"), ("unknown", "timeout", False, False)),
        (Unknown("no such reason"), ("unknown", "unspecified", False, False)),
        ("nothing of the kind", ("unknown", "response_invalid", False, False)),
        (RuntimeError(), ("unknown", "adapter_error", False, False)),
        (NotSent("connect_failed"), ("retry", "connect_failed", False, False)),
        (NotSent("no such reason"), ("retry", "adapter_error", False, False)),
        # Not ours: this task isn't being cancelled.
        (asyncio.CancelledError(), ("unknown", "adapter_error", False, False)),
    ],
    ids=repr,
)
def test_a_first_attempt(answer: Any, told: tuple[Any, ...]) -> None:
    assert said(decide(Sink(answer))) == told


def test_a_faulty_adapter_is_told() -> None:
    for answer in (RuntimeError(), "nonsense"):
        told = Told()
        decide(Sink(answer), told=told)
        assert told.all == FAILED
    told = Told()
    decide(Sink(Retryable("timeout")), told=told)
    assert told.all == []

    class Stuck(Sink):
        async def close(self) -> None:
            raise RuntimeError

    asyncio.run(processor(Stuck(), told).close())
    assert told.all == [(Event.ADAPTER_FAILED, "warning", "adapter_error")]


@pytest.mark.parametrize("uncertain", [False, True], ids=["sending", "asking"])
def test_ctrl_c_is_no_fault_of_an_adapter(uncertain: bool) -> None:
    told = Told()
    sink = Sink(KeyboardInterrupt(), [KeyboardInterrupt()], can_lookup=True)
    with pytest.raises(KeyboardInterrupt):
        decide(sink, told=told, uncertain=uncertain)
    assert told.all == []


@pytest.mark.parametrize("uncertain", [False, True], ids=["sending", "asking"])
def test_a_cancelled_delivery_reports_nothing(uncertain: bool) -> None:
    class Slow(Sink):
        async def deliver(self, claim: Any, context: Any) -> Any:
            await context.sending()
            await asyncio.Event().wait()

        async def lookup(self, wire_key: str) -> Any:
            await asyncio.Event().wait()

    async def run() -> None:
        held = Held(make_claim(uncertain=uncertain), received=0.0, deadline=1000.0)
        told = Told()
        task = asyncio.create_task(processor(Slow(can_lookup=True), told).process(held, Desk()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told.all == []

    asyncio.run(run())


def test_a_failure_before_anything_left_is_no_doubt() -> None:
    report = decide(Sink(RuntimeError(), sends=0))
    assert said(report) == ("retry", "adapter_error", False, False)


@pytest.mark.parametrize(
    ("delay", "kept"),
    [
        (SECOND, SECOND), (-SECOND, timedelta(0)), (timedelta(days=40), timedelta(days=30)),
        (5, None), (None, None),
    ],
)  # fmt: skip
def test_delays_are_made_storable(delay: Any, kept: timedelta | None) -> None:
    assert decide(Sink(Retryable("timeout", delay))).delay == kept
    assert decide(Sink(Unknown("timeout", delay))).delay == kept


def test_who_confirmed_it() -> None:
    snapshot = Snapshot(Decimal("1.50"), 7)
    first = decide(Sink(Delivered("ref", snapshot)), amount=Decimal(1))
    assert (first.result, first.confirmed_by, first.reference) == ("completed", "answer", "ref")
    assert (first.balance, first.version) == (Decimal("1.50"), 7)
    again = decide(Sink(Duplicate("ref", snapshot)), uncertain=True)
    assert (again.result, again.confirmed_by, again.reference) == ("duplicate", "same_key", "ref")
    assert (again.balance, again.version) == (None, None)  # a message without cash
    found = decide(Sink(found=[Found("ref")], can_lookup=True), uncertain=True)
    assert (found.result, found.confirmed_by, found.reference) == ("completed", "lookup", "ref")
    foreign = Found(account="somebody")
    assert said(decide(Sink(found=[foreign], can_lookup=True), uncertain=True)) == (
        "conflict", "key_conflict", False, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "kept"),
    [
        ("x", "x"), ("x" * 255, "x" * 255), ("x" * 256, None), ("", None), (" x", None),
        ("x\u2003", None), ("a\nb", None),
        ("a b", "a b"), ("a\x1f", None), ("a\x7f", None), ("a\x9f", None), ("a\xa1", "a\xa1"),
        ("a~", "a~"), ("\ud800", None), ("a\udfff", None), ("a\ue000", "a\ue000"), (5, None),
    ],
)  # fmt: skip
def test_a_reference_that_is_no_key_is_left_out(reference: Any, kept: str | None) -> None:
    assert decide(Sink(Delivered(reference))).reference == kept


@pytest.mark.parametrize(
    ("balance", "version", "kept"),
    [
        (Decimal(1), 0, True), (Decimal(1), 2**63 - 1, True), (Decimal(1), 2**63, False),
        (Decimal(1), -1, False), (Decimal("NaN"), 1, False), (1.5, 1, False),
        (Decimal(1), "1", False),
    ],
)  # fmt: skip
def test_a_balance_that_cannot_be_stored_is_left_out(
    balance: Any, version: Any, kept: bool
) -> None:
    report = decide(Sink(Delivered("r", Snapshot(balance, version))), amount=Decimal(1))
    assert report.result == "completed"
    junk: Any = "no snapshot"
    assert decide(Sink(Delivered("r", junk)), amount=Decimal(1)).version is None
    assert (report.version is not None) == kept
    assert (report.balance is not None) == kept


def test_after_doubt_the_sink_is_asked_before_it_is_called() -> None:
    sink = Sink(Retryable("timeout"), found=[Absent()], can_lookup=True, policy="lookup")
    report = decide(sink, uncertain=True, effect_policy="lookup")
    assert (said(report), sink.calls) == (("retry", "timeout", True, False), 1)
    sink = Sink(found=[NotSure("timeout")], can_lookup=True, policy="lookup")
    report = decide(sink, uncertain=True, effect_policy="lookup")
    assert (said(report), sink.calls) == (("unknown", "timeout", False, False), 0)
    for answer, reason in (
        (NotSure("no such reason"), "lookup_failed"), (RuntimeError(), "lookup_failed"),
        ("nonsense", "response_invalid"), (Found(cash_delta=1.5), "response_invalid"),  # type: ignore[arg-type]
    ):  # fmt: skip
        sink = Sink(found=[answer], can_lookup=True, policy="lookup")
        report = decide(sink, uncertain=True, effect_policy="lookup")
        assert (said(report), sink.calls) == (("unknown", reason, False, False), 0)


def test_in_progress_is_no_absence() -> None:
    report = decide(Sink(Retryable("in_progress", absent=True)), uncertain=True)
    assert said(report) == ("retry", "in_progress", False, False)


def test_absence_counts_after_the_window_only() -> None:
    def early(**more: Any) -> tuple[Report, Sink, Desk]:
        sink = Sink(
            Delivered(), found=[Absent(), more.pop("then", Absent())], can_lookup=True,
            policy=more.pop("policy", "lookup"),
        )  # fmt: skip
        desk = Desk(waits=more.pop("waits", True))
        now = more.pop("now", 2.0)
        report = decide(
            sink, desk=desk, now=now, uncertain=True, effect_policy=more.get("kind", "lookup")
        )
        return report, sink, desk

    report, sink, desk = early()
    assert (report.result, report.confirmed_by, sink.calls) == ("completed", "answer", 1)
    assert desk.paused == [3.0 + TICK]
    # The window ended, but not by a tick.
    report, sink, desk = early(now=5.0)
    assert (report.result, desk.paused) == ("completed", [TICK])
    report, sink, desk = early(now=5.0 + 2 * TICK)
    assert (report.result, desk.paused, len(sink.found)) == ("completed", [], 1)
    report, sink, _ = early(then=Found("late"))
    assert (report.result, report.confirmed_by, sink.calls) == ("completed", "lookup", 0)
    report, sink, _ = early(waits=False)
    assert (said(report), sink.calls) == (("released", "shutdown", False, False), 0)
    # Who may send the same key again needs no certainty, and doesn't wait for it.
    report, sink, desk = early(policy="idempotent", kind="idempotent")
    assert (report.confirmed_by, sink.calls, desk.paused) == ("same_key", 1, [])


def test_a_sink_without_a_window_is_believed_at_once() -> None:
    sink = Sink(Delivered(), found=[Absent()], can_lookup=True, policy="lookup", window=0.0)
    desk = Desk()
    report = decide(sink, desk=desk, now=-1.0, uncertain=True, effect_policy="lookup")
    assert (report.result, report.confirmed_by, desk.paused) == ("completed", "answer", [])


@pytest.mark.parametrize(
    ("policy", "kind", "can_lookup", "park"),
    [
        ("idempotent", "idempotent", False, False), ("lookup", "idempotent", True, False),
        ("at_most_once", "idempotent", False, True), ("idempotent", "lookup", False, True),
        ("lookup", "lookup", True, False),
    ],
)  # fmt: skip
def test_a_doubt_that_cannot_be_settled_is_parked(
    policy: str, kind: str, can_lookup: bool, park: bool
) -> None:
    sink = Sink(Unknown("timeout"), policy=policy, can_lookup=can_lookup)
    report = decide(sink, effect_policy=kind)
    assert said(report) == ("unknown", "timeout", False, park)


def test_nobody_calls_again_who_may_not() -> None:
    sink = Sink(Delivered(), policy="at_most_once")
    assert said(decide(sink, uncertain=True)) == ("unknown", "unsupported_policy", False, True)
    sink = Sink(Delivered(), can_lookup=True)
    report = decide(sink, uncertain=True, effect_policy="at_most_once")
    assert (said(report), sink.calls) == (("unknown", "unsupported_policy", False, True), 0)


def test_a_message_that_is_sent_once_is_marked_once_before() -> None:
    desk = Desk()
    report = decide(Sink(Delivered(), sends=3), desk=desk, effect_policy="at_most_once")
    assert (report.result, desk.marked) == ("completed", 1)
    desk = Desk()
    assert decide(Sink(Delivered()), desk=desk).result == "completed"
    assert desk.marked == 0
    quiet = Sink(Delivered(), sends=0)
    quiet.announces_sending = False
    desk = Desk()
    assert decide(quiet, desk=desk, effect_policy="at_most_once").result == "completed"
    assert desk.marked == 1
    for desk in (Desk(marks=False), Desk(sends=(True, False)), Desk(sends=(False,))):
        sink = Sink(Delivered())
        report = decide(sink, desk=desk, effect_policy="at_most_once")
        assert (said(report), sink.calls) == (("released", "not_started", True, False), 0)
    # A refusal before the call took it: the one call is free again.
    report = decide(Sink(Retryable("unavailable")), effect_policy="at_most_once")
    assert said(report) == ("retry", "unavailable", True, False)


def test_a_plan_that_is_over_claims_nothing() -> None:
    assert Plan().room(3) == 3
    assert Plan(over=True).room(3) == 0


@pytest.mark.parametrize(("now", "seconds"), [(101.0, 5.0), (110.0, 20.0)])
def test_what_a_run_puts_back_stays_away_for_twice_as_long_as_it_has_run(
    now: float, seconds: float
) -> None:
    mine, other = make_claim(topic="mine"), make_claim(topic="other")
    run = Once(topic="mine", limit=5, started=100.0)
    took, (back,) = run.take([mine, other], swept=False, now=now)
    assert (took, run.claimed) == ([mine], 1)
    assert (back.message_id, back.result, back.reason) == (other.message_id, "postponed", "waiting")
    assert back.delay == timedelta(seconds=seconds)
    assert run.room(3) == 3


def test_a_run_ends_at_its_limit_and_after_all_that_is_old() -> None:
    claim = make_claim()
    run = Once(limit=2)
    assert run.take([claim], swept=False, now=0.0) == ([claim], [])
    assert (run.over, run.room(9)) == (False, 1)
    run.take([claim], swept=False, now=0.0)
    assert (run.over, run.room(9)) == (True, 0)
    for until, over in ((claim.enqueued_at, False), (claim.enqueued_at - SECOND, True)):
        run = Once(until=until)
        run.take([claim], swept=True, now=0.0)
        assert (run.over, run.sweep_next) == (over, over)
