"""A contract for adapters: run it against yours.

    from trex_client.testing import AdapterContract, Rig

    class TestMyAdapter(AdapterContract):
        @asynccontextmanager
        async def running(self):
            async with my_fake_sink() as sink:
                adapter = MyAdapter("my-instance", sink.url)
                yield Rig(adapter, effects=sink.count, faults={"unavailable": sink.refuse_next})

pytest finds the tests by the name of your class; no plugin is needed. A fault that your sink can't
show is left out of `faults`, and its tests are skipped. An adapter whose look-up states account,
currency or amount needs `cash`: what your sink books for a payload.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

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
    NotSent,
    NotSure,
    Retryable,
    Unknown,
    context_for,
)
from trex_client.model import EFFECT_POLICIES, REASONS, Claim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from contextlib import AbstractAsyncContextManager
    from decimal import Decimal

Fault = Literal["unavailable", "unreachable", "lost_answer", "lost_request"]
"""`unavailable`: the sink answers that it can't now. `unreachable`: no connection can be made.
`lost_answer`: the effect happens and the answer gets lost. `lost_request`: the request leaves, and
neither effect nor answer follow. Each is for the next call only, or until the rig is left."""

CANARY = "canary-7f3a"


@dataclass(frozen=True)
class Rig:
    """An adapter and what a test needs to see of its sink.

    Args:
        adapter: the adapter under test.
        effects: how many effects the sink has for a wire key.
        faults: how to make the sink misbehave.
        payload: makes a payload of a number; two numbers are two contents.
        cash: account, currency and amount of that payload's message; None moves no cash.
    """

    adapter: Adapter
    effects: Callable[[str], Awaitable[int]]
    faults: Mapping[Fault, Callable[[], Awaitable[Any]]] = field(default_factory=dict)
    payload: Callable[[int], str] = lambda number: f'{{"amount": "{number}.00", "currency": "USD"}}'
    cash: Callable[[int], tuple[str, str, Decimal]] | None = None


def make_claim(
    key: str = "key-1",
    *,
    payload_json: str = "{}",
    topic: str = "contract.test",
    attempt: int = 1,
    fence: int = 1,
    amount: Decimal | None = None,
    **changes: Any,
) -> Claim:
    """Return a claim as the database would give it, for tests of adapters."""
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "message_id": 1,
        "fence": fence,
        "attempt": attempt,
        "tries": attempt,
        "lease_until": now + timedelta(seconds=30),
        "uncertain": attempt > 1,
        "box": "outbox",
        "topic": topic,
        "idempotency_key": key,
        "correlation_id": None,
        "ordering_key": None,
        "account": None if amount is None else f"account-{CANARY}",
        "currency": None if amount is None else "USD",
        "cash_delta": amount,
        "payload_json": payload_json,
        "effect_policy": "idempotent",
        "enqueued_at": now,
    }
    return Claim(**{**values, **changes})


class _Desk:
    """A worker that has time and loses no claim."""

    def may_send(self, _: object) -> bool:
        return True

    async def mark_sent(self, _: object) -> bool:
        return True

    async def will_hold(self, _: object) -> None:
        pass

    async def pause(self, _: object, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return True


class AdapterContract:
    """Subclass it and define `running`."""

    instance_key = "contract-test"

    def running(self) -> AbstractAsyncContextManager[Rig]:
        """Start the sink and make an adapter for it; both end when the context is left."""
        raise NotImplementedError

    # what it says of itself

    def test_says_what_its_sink_can_do(self) -> None:
        async def check(rig: Rig) -> None:
            adapter = rig.adapter
            assert adapter.policy in EFFECT_POLICIES
            assert isinstance(adapter.in_flight, timedelta)
            assert adapter.in_flight >= timedelta(0)
            assert adapter.can_lookup or adapter.policy != "lookup"

        self._run(check)

    def test_a_sink_that_cannot_be_asked_says_so(self) -> None:
        async def check(rig: Rig) -> None:
            if not rig.adapter.can_lookup:
                assert isinstance(await rig.adapter.lookup("0" * 64), NotSure)

        self._run(check)

    # delivery

    def test_delivers_once(self) -> None:
        async def check(rig: Rig) -> None:
            result, context = await self._deliver(rig)
            assert isinstance(result, Delivered)
            assert await rig.effects(context.wire_key) == 1
            assert context.sent or not rig.adapter.announces_sending

        self._run(check)

    def test_the_same_key_again_has_no_second_effect(self) -> None:
        async def check(rig: Rig) -> None:
            if rig.adapter.policy != "idempotent":
                return
            _, context = await self._deliver(rig)
            again, _ = await self._deliver(rig, attempt=2, fence=2)
            assert isinstance(again, Delivered | Duplicate)
            assert await rig.effects(context.wire_key) == 1

        self._run(check)

    def test_the_same_key_at_the_same_time_has_one_effect(self) -> None:
        async def check(rig: Rig) -> None:
            if rig.adapter.policy != "idempotent":
                return
            calls = [self._deliver(rig, fence=5) for _ in range(8)]
            results = await asyncio.gather(*calls)
            assert await rig.effects(results[0][1].wire_key) == 1
            assert any(isinstance(result, Delivered | Duplicate) for result, _ in results)

        self._run(check)

    def test_other_content_under_the_same_key_is_a_conflict(self) -> None:
        async def check(rig: Rig) -> None:
            if rig.adapter.policy != "idempotent":
                return
            _, context = await self._deliver(rig)
            other, _ = await self._deliver(rig, number=2, attempt=2, fence=2)
            assert isinstance(other, Conflict)
            assert await rig.effects(context.wire_key) == 1

        self._run(check)

    def test_nothing_leaves_once_the_lease_is_over(self) -> None:
        async def check(rig: Rig) -> None:
            if not rig.adapter.announces_sending:
                return

            async def too_late() -> None:
                raise NotSent("expired")

            try:
                result, context = await self._deliver(rig, before_sending=too_late)
            except NotSent:
                return
            assert isinstance(result, Retryable)
            assert not context.sent
            assert await rig.effects(context.wire_key) == 0

        self._run(check)

    # look-up

    def test_looks_up_by_the_same_key(self) -> None:
        async def check(rig: Rig) -> None:
            if not rig.adapter.can_lookup:
                return
            wire_key = context_for(self.instance_key, make_claim()).wire_key
            assert isinstance(await rig.adapter.lookup(wire_key), Absent | NotSure)
            await self._deliver(rig)
            assert isinstance(await rig.adapter.lookup(wire_key), Found)
            assert await rig.effects(wire_key) == 1

        self._run(check)

    def test_a_look_up_knows_our_content(self) -> None:
        async def check(rig: Rig) -> None:
            if not rig.adapter.can_lookup:
                return
            _, context = await self._deliver(rig)
            found = await rig.adapter.lookup(context.wire_key)
            assert isinstance(found, Found)
            assert found.well_formed
            assert found.is_of(self._claim(rig, attempt=2, fence=2))
            assert await self._settle(rig, attempt=2, fence=2) == ("completed", "unspecified")

        self._run(check)

    def test_foreign_content_under_our_key_is_never_our_delivery(self) -> None:
        """Somebody else's posting has our key, our first answer is lost, and we ask."""

        async def check(rig: Rig) -> None:
            if not rig.adapter.can_lookup:
                return
            _, context = await self._deliver(rig, number=2)
            found = await rig.adapter.lookup(context.wire_key)
            assert isinstance(found, Found)
            if not found.states_content:
                return
            if rig.adapter.policy == "idempotent" and "lost_answer" in rig.faults:
                await rig.faults["lost_answer"]()
                lost, _ = await self._deliver(rig, fence=2)
                assert isinstance(lost, Unknown)
            assert await self._settle(rig, attempt=2, fence=3) == ("conflict", "key_conflict")
            assert await rig.effects(context.wire_key) == 1

        self._run(check)

    # faults

    def test_a_sink_that_cannot_now_is_retried(self) -> None:
        async def check(rig: Rig) -> None:
            await rig.faults["unavailable"]()
            result, context = await self._deliver(rig)
            assert isinstance(result, Retryable)
            assert await rig.effects(context.wire_key) == 0

        self._run(check, "unavailable")

    def test_without_a_connection_nothing_is_unknown(self) -> None:
        async def check(rig: Rig) -> None:
            await rig.faults["unreachable"]()
            result, context = await self._deliver(rig)
            assert isinstance(result, Retryable)
            assert not context.sent

        self._run(check, "unreachable")

    def test_a_lost_answer_is_unknown_and_found_later(self) -> None:
        async def check(rig: Rig) -> None:
            await rig.faults["lost_answer"]()
            result, context = await self._deliver(rig)
            assert isinstance(result, Unknown)
            assert await rig.effects(context.wire_key) == 1
            if rig.adapter.can_lookup:
                assert isinstance(await rig.adapter.lookup(context.wire_key), Found)
            if rig.adapter.policy == "idempotent":
                again, _ = await self._deliver(rig, attempt=2, fence=2)
                assert isinstance(again, Delivered | Duplicate)
            assert await rig.effects(context.wire_key) == 1

        self._run(check, "lost_answer")

    def test_a_lost_request_is_unknown(self) -> None:
        async def check(rig: Rig) -> None:
            await rig.faults["lost_request"]()
            result, context = await self._deliver(rig)
            assert isinstance(result, Unknown)
            assert await rig.effects(context.wire_key) == 0

        self._run(check, "lost_request")

    # what it shows

    def test_answers_show_neither_payload_nor_account(self) -> None:
        async def check(rig: Rig) -> None:
            result, context = await self._deliver(rig, key=f"key-{CANARY}")
            assert CANARY not in repr(result) + repr(context) + repr(rig.adapter)

        self._run(check)

    def test_may_be_closed_twice(self) -> None:
        async def check(rig: Rig) -> None:
            await self._deliver(rig)
            await rig.adapter.close()
            await rig.adapter.close()

        self._run(check)

    # inside

    async def _deliver(
        self,
        rig: Rig,
        *,
        key: str = "key-1",
        number: int = 1,
        attempt: int = 1,
        fence: int = 1,
        before_sending: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[DeliveryResult, DeliveryContext]:
        claim = self._claim(rig, key=key, number=number, attempt=attempt, fence=fence)
        context = context_for(self.instance_key, claim, before_sending)
        result: object = await rig.adapter.deliver(claim, context)
        assert isinstance(result, RESULT_TYPES)
        reason = getattr(result, "reason", "unspecified")
        assert reason in REASONS
        return result, context

    def _claim(
        self, rig: Rig, *, key: str = "key-1", number: int = 1, attempt: int = 1, fence: int = 1
    ) -> Claim:
        account, currency, amount = rig.cash(number) if rig.cash else (None, None, None)
        return make_claim(
            key,
            payload_json=rig.payload(number),
            attempt=attempt,
            fence=fence,
            account=account,
            currency=currency,
            cash_delta=amount,
        )

    async def _settle(self, rig: Rig, *, attempt: int, fence: int) -> tuple[str, str]:
        """Return what a worker records, and why, for a claim whose first answer was lost."""
        from trex_client.telemetry import Telemetry
        from trex_client.worker import AdapterProcessor, Held, Runtime

        runtime = Runtime()
        telemetry = Telemetry(self.instance_key, stream=io.StringIO())
        worker = AdapterProcessor(self.instance_key, rig.adapter, telemetry, runtime)
        now = runtime.monotonic()
        held = Held(self._claim(rig, attempt=attempt, fence=fence), now, now + 30.0)
        report = await worker.process(held, _Desk())
        return report.result, report.reason or "unspecified"

    def _run(
        self, check: Callable[[Rig], Coroutine[Any, Any, None]], fault: Fault | None = None
    ) -> None:
        async def whole() -> bool:
            async with self.running() as rig:
                if fault is not None and fault not in rig.faults:
                    return False
                try:
                    await check(rig)
                finally:
                    await rig.adapter.close()
            return True

        if not asyncio.run(whole()):
            from unittest import SkipTest

            raise SkipTest(f"the rig can't show {fault}")
