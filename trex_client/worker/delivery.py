"""From a claim to the outcome that is recorded: all policy about external calls, and nothing else.

    certain                            send
    uncertain, sink can be asked       look up by the same key: found -> completed, or conflict if
                                       what is booked isn't ours; certainly absent -> send;
                                       no answer -> as below if both say `idempotent`, else
                                       unknown, asked again later
    uncertain, both say `idempotent`   send again with the same key
    uncertain, neither                 park as unknown; only `resolve` leaves it

A message that may be sent once is marked, and that committed, before anything leaves. An adapter's
exception never leaves: it may have been sent -> unknown, otherwise retry.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from trex_client._values import is_key
from trex_client.adapters.base import (
    RESULT_TYPES,
    Absent,
    Adapter,
    Conflict,
    Delivered,
    DeliveryContext,
    DeliveryResult,
    Duplicate,
    Found,
    LookupResult,
    NotSent,
    NotSure,
    Permanent,
    Retryable,
    Snapshot,
    Unknown,
    context_for,
    require_instance_key,
)
from trex_client.model import REASONS, Claim, Recorded, Report
from trex_client.telemetry import Alert, Event

if TYPE_CHECKING:
    from trex_client.telemetry import Telemetry
    from trex_client.worker.settings import Runtime

MOST_DELAY = timedelta(days=30)


@dataclass(slots=True, eq=False)
class Held:
    """A claim that this process holds.

    `received`: when it came. `deadline`: when its lease ends at the earliest by our monotonic
    clock: the time just before the call that gave or extended it, plus the lease. `started`: when
    its delivery began. `overdue`: cancelled because it took too long. `holding`: its row may be
    locked by a transaction of ours. `reported`: what a processor recorded by itself.
    """

    claim: Claim
    received: float
    deadline: float
    started: float = 0.0
    lost: bool = False
    overdue: bool = False
    marked: bool = False
    holding: bool = False
    context: DeliveryContext | None = None
    reported: Report | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[int, int]:
        """Message and fence."""
        return self.claim.message_id, self.claim.fence


class Desk(Protocol):
    """What a processor may ask of the worker."""

    def may_send(self, held: Held) -> bool:
        """Whether the lease still has enough time left for a call to begin."""

    async def mark_sent(self, held: Held) -> bool:
        """Commit that this message is about to be sent; False when the claim is lost."""

    async def will_hold(self, held: Held) -> None:
        """Before `hold`: nobody can take the claim over while its row is locked, and extending it
        would wait for that lock, and all others of the same call with it."""

    async def pause(self, held: Held, seconds: float) -> bool:
        """Wait without using up a delivery slot; False when the worker is leaving."""


class Processor(Protocol):
    """Turns one claim into an outcome.

    That is a report for the worker to record, or, when it has recorded it in a transaction of its
    own (a handler that writes to the same database), the result of that; `held.reported` says what
    it was. A cancelled claim is given back only while `held.context` is there and says that nothing
    was sent.
    """

    async def process(self, held: Held, desk: Desk) -> Report | Recorded:
        """Handle one claim. Raises nothing but cancellation."""

    async def close(self) -> None:
        """Give back connections."""


class AdapterProcessor:
    """Delivers through an adapter.

    Raises:
        InvalidArgument: no instance key.
    """

    def __init__(
        self, instance_key: str, adapter: Adapter, telemetry: Telemetry, runtime: Runtime
    ) -> None:
        self._instance_key = require_instance_key(instance_key)
        self._adapter = adapter
        self._telemetry = telemetry
        self._runtime = runtime

    async def close(self) -> None:
        """Close the adapter."""
        try:
            await self._adapter.close()
        except Exception:  # noqa: BLE001
            self._telemetry.event(Event.ADAPTER_FAILED, "warning", reason="adapter_error")

    async def process(self, held: Held, desk: Desk) -> Report:
        """Deliver one message as the table at the top says."""
        claim = held.claim
        held.context = context_for(self._instance_key, claim)
        absent = False
        if claim.uncertain:
            if claim.effect_policy == "at_most_once":
                return _report(claim, "unknown", "unsupported_policy", park=True)
            if self._adapter.can_lookup:
                answer = await self._ask(held, desk)
                if isinstance(answer, Found):
                    if not answer.is_of(claim):
                        # Somebody else's posting: ours isn't in the sink, and can't get there.
                        return _report(claim, "conflict", "key_conflict")
                    return _delivered(
                        claim, Delivered(answer.reference, answer.snapshot), confirmed_by="lookup"
                    )
                absent = isinstance(answer, Absent)
                if isinstance(answer, NotSure) and not self._may_repeat(claim):
                    if answer.reason in {"shutdown", "not_started"}:
                        return _report(claim, "released", answer.reason)
                    return _report(claim, "unknown", answer.reason)
            elif not self._may_repeat(claim):
                return _report(claim, "unknown", "unsupported_policy", park=True)
        return await self._send(held, desk, absent=absent)

    def _may_repeat(self, claim: Claim) -> bool:
        """Whether the same key may be sent again although an earlier attempt may have arrived."""
        return self._adapter.policy == "idempotent" and claim.effect_policy == "idempotent"

    async def _ask(self, held: Held, desk: Desk) -> LookupResult:
        """Look up by the same key. 'Absent' counts only after the sink's in-flight window.

        The earlier attempt began before its lease ended, so before this claim was received.
        """
        window = self._adapter.in_flight.total_seconds()
        answer = await self._ask_once(held)
        if not isinstance(answer, Absent):
            return answer
        left = held.received + window - self._runtime.monotonic()
        asked_late_enough = left + _TICK <= 0 or window == 0
        if asked_late_enough:
            return answer
        if self._may_repeat(held.claim):
            return NotSure("lookup_absent")
        if not await desk.pause(held, max(left, 0.0) + _TICK):
            return NotSure("shutdown")
        return await self._ask_once(held)

    async def _ask_once(self, held: Held) -> LookupResult:
        try:
            context = held.context or context_for(self._instance_key, held.claim)
            answer: object = await self._adapter.lookup(context.wire_key)
        except BaseException as error:
            if is_cancelled(error):
                raise
            self._failed()
            return NotSure("lookup_failed")
        if isinstance(answer, NotSure):
            return NotSure(_reason(answer.reason, "lookup_failed"))
        if isinstance(answer, Absent) or (isinstance(answer, Found) and answer.well_formed):
            return answer
        self._failed()
        return NotSure("response_invalid")

    async def _send(self, held: Held, desk: Desk, *, absent: bool) -> Report:
        claim, adapter = held.claim, self._adapter
        once = claim.effect_policy == "at_most_once"

        async def before_sending() -> None:
            if not desk.may_send(held):
                raise NotSent("expired")
            if once and not held.marked:
                if not await desk.mark_sent(held):
                    raise NotSent("expired")
                held.marked = True
                if not desk.may_send(held):
                    raise NotSent("expired")

        context = held.context or context_for(self._instance_key, claim)
        context.before_sending = before_sending
        result: DeliveryResult
        try:
            if not adapter.announces_sending:
                await context.sending()
            result = self._checked(await adapter.deliver(claim, context))
        except NotSent as error:
            result = Retryable(_reason(error.reason, "adapter_error"))
        except BaseException as error:
            if is_cancelled(error):
                raise
            self._failed()
            result = Unknown("adapter_error") if context.sent else Retryable("adapter_error")
        return self._outcome(claim, result, context, absent=absent)

    def _outcome(
        self, claim: Claim, result: DeliveryResult, context: DeliveryContext, *, absent: bool
    ) -> Report:
        certain = absent or not claim.uncertain
        match result:
            case Delivered() | Duplicate():
                return _delivered(claim, result, confirmed_by="answer" if certain else "same_key")
            case Retryable(reason="expired" | "not_started") if not context.sent:
                return _report(claim, "released", "not_started", absent=certain)
            case Retryable(reason="in_progress") if certain:
                # Something with this key is at the sink after all.
                return self._unknown(claim, "in_progress", result.delay)
            case Retryable():
                sure = (
                    result.absent or absent or (claim.effect_policy == "at_most_once" and certain)
                )
                if result.reason == "in_progress":
                    sure = False
                return _report(claim, "retry", result.reason, delay=result.delay, absent=sure)
            case Conflict():
                return _report(claim, "conflict", result.reason)
            case Permanent():
                return _report(claim, "permanent", result.reason, absent=result.absent or absent)
            case Unknown():
                return self._unknown(claim, result.reason, result.delay)

    def _unknown(self, claim: Claim, reason: str, delay: timedelta | None) -> Report:
        """Later, if there is an honest way to find out; parked otherwise."""
        park = not (self._adapter.can_lookup or self._may_repeat(claim))
        return _report(claim, "unknown", reason, delay=delay, park=park)

    def _checked(self, result: object) -> DeliveryResult:
        """Return an adapter's answer with everything in it made storable."""
        if not isinstance(result, RESULT_TYPES):
            self._failed()
            return Unknown("response_invalid")
        match result:
            case Delivered() | Duplicate():
                return result
            case Retryable() | Unknown():
                delay = result.delay
                if isinstance(delay, timedelta):
                    delay = min(max(delay, timedelta(0)), MOST_DELAY)
                else:
                    delay = None
                reason = _reason(result.reason, "unspecified")
                return replace(result, reason=reason, delay=delay)
            case Conflict():
                return Conflict(_reason(result.reason, "key_conflict"))
            case Permanent():
                return replace(result, reason=_reason(result.reason, "rejected"))

    def _failed(self) -> None:
        self._telemetry.event(Event.ADAPTER_FAILED, "error", reason="adapter_error")
        self._telemetry.alert(Alert.ADAPTER_FAILED, reason="adapter_error")


_TICK = 0.001


def is_cancelled(error: BaseException) -> bool:
    """Whether this task itself is being cancelled, as opposed to something that it waited for; or
    the whole process, by Ctrl-C."""
    task = asyncio.current_task()
    return (
        isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    ) or isinstance(error, GeneratorExit | KeyboardInterrupt)


def _reason(reason: object, otherwise: str) -> str:
    return reason if type(reason) is str and reason in REASONS else otherwise


def _report(
    claim: Claim,
    result: str,
    reason: str,
    *,
    delay: timedelta | None = None,
    absent: bool = False,
    park: bool = False,
) -> Report:
    return Report(
        claim.message_id,
        claim.fence,
        result,  # type: ignore[arg-type]
        reason=reason,
        delay=delay,
        absent=absent,
        park=park,
    )


def _delivered(claim: Claim, result: Delivered | Duplicate, *, confirmed_by: str) -> Report:
    snapshot = result.snapshot if claim.account is not None else None
    if not _storable(snapshot):
        snapshot = None
    return Report(
        claim.message_id,
        claim.fence,
        "completed" if isinstance(result, Delivered) else "duplicate",
        confirmed_by=confirmed_by,  # type: ignore[arg-type]
        reference=_reference(result.reference),
        balance=snapshot.balance if snapshot else None,
        version=snapshot.version if snapshot else None,
    )


def _storable(snapshot: object) -> bool:
    if not isinstance(snapshot, Snapshot):
        return False
    balance: object = snapshot.balance
    version: object = snapshot.version
    return (
        isinstance(balance, Decimal)
        and balance.is_finite()
        and isinstance(version, int)
        and 0 <= version < 2**63
    )


def _reference(reference: object) -> str | None:
    """Return a reference that is a key; anything else is left out, not cut."""
    return reference if type(reference) is str and is_key(reference) else None
