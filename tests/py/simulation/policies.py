"""Policies of a user's own: a good one, and ones with the faults that users make."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from trex_client.adapters.base import Adapter, Delivered, Duplicate, Retryable, Unknown, context_for
from trex_client.model import Claim, Report
from trex_client.simulate import Policy, SimAdapter, SimSink

if TYPE_CHECKING:
    from trex_client.adapters.base import DeliveryContext, DeliveryResult
    from trex_client.telemetry import Telemetry
    from trex_client.worker import Desk, Held, Processor, Runtime


class Plain(Policy):
    """Only ledgers that deduplicate."""

    kinds = ("idempotent",)


class _Of(Policy):
    """Of one model of an adapter."""

    model: type[SimAdapter]

    def adapter(self, sink: SimSink) -> Adapter:
        return self.model(sink)


class _TimeoutIsFailure(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        result = await super().deliver(claim, context)
        return Retryable("timeout") if isinstance(result, Unknown) else result


class TimeoutIsFailure(_Of):
    """The classic: a timeout is taken for 'it didn't happen'."""

    kinds = ("lookup",)
    model = _TimeoutIsFailure


class _TimeoutIsSuccess(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        result = await super().deliver(claim, context)
        return Delivered() if isinstance(result, Unknown) else result


class TimeoutIsSuccess(_Of):
    """The other classic: sent is taken for done."""

    kinds = ("idempotent",)
    model = _TimeoutIsSuccess


class _Blind:
    """Never looks up; sends again after an unknown outcome."""

    def __init__(self, instance_key: str, adapter: Adapter) -> None:
        self._key = instance_key
        self._adapter = adapter

    async def process(self, held: Held, desk: Desk) -> Report:
        del desk
        claim = held.claim
        held.context = context_for(self._key, claim)
        result = await self._adapter.deliver(claim, held.context)
        if isinstance(result, Delivered | Duplicate):
            return Report(claim.message_id, claim.fence, "completed")
        return Report(claim.message_id, claim.fence, "retry", "timeout")

    async def close(self) -> None:
        pass


class Blind(Policy):
    """A processor of one's own with a fault."""

    kinds = ("lookup",)

    def processor(
        self, instance_key: str, adapter: Adapter, telemetry: Telemetry, runtime: Runtime
    ) -> Processor:
        del telemetry, runtime
        return _Blind(instance_key, adapter)


class _NewKey(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        context.wire_key += str(claim.attempt)
        return await super().deliver(claim, context)


class NewKey(_Of):
    """A key for each attempt."""

    kinds = ("idempotent",)
    model = _NewKey


class _SecondKey(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        result = await super().deliver(claim, context)
        if isinstance(result, Unknown):
            await self.sink.post(f"{context.wire_key}-2", claim.payload_json)
        return result


class SecondKey(_Of):
    """After a lost answer once more, with another key; the next attempt has the old one."""

    kinds = ("idempotent",)
    model = _SecondKey


class _OtherBody(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        await context.sending()
        answer = await self.sink.post(context.wire_key, f"{claim.payload_json}{claim.attempt}")
        done = answer.status in ("posted", "duplicate")
        return Delivered() if done else Unknown("timeout")


class OtherBody(_Of):
    """A body that differs from attempt to attempt."""

    kinds = ("idempotent",)
    model = _OtherBody


class _Sleeps(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        await asyncio.sleep(0)
        return await super().deliver(claim, context)


class Sleeps(_Of):
    """Awaits what no simulation can answer."""

    model = _Sleeps


class _Raises(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        raise RuntimeError("canary")


class Raises(_Of):
    """An adapter that always raises."""

    kinds = ("idempotent",)
    model = _Raises


class MadeTwice(Policy):
    """Makes one adapter of each kind, and then no more."""

    kinds = ("idempotent",)

    def __init__(self) -> None:
        self.made = 0

    def adapter(self, sink: SimSink) -> Adapter:
        self.made += 1
        if self.made > 20:
            raise LookupError("canary")
        return super().adapter(sink)


class _NoResult(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        return "delivered"  # type: ignore[return-value]


class NoResult(_Of):
    """An adapter whose answers are none."""

    kinds = ("idempotent",)
    model = _NoResult


class LiesOnce(Policy):
    """Keeps state between histories: one lie, in a late history."""

    kinds = ("idempotent",)

    def __init__(self) -> None:
        self.deliveries = 0

    def adapter(self, sink: SimSink) -> Adapter:
        policy = self

        class Lies(SimAdapter):
            async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
                policy.deliveries += 1
                if policy.deliveries == 100:
                    return Delivered()
                return await super().deliver(claim, context)

        return Lies(sink)


class _AsksForEver(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        while True:
            await self.sink.get(context.wire_key)


class AsksForEver(_Of):
    """Waits for an answer that never comes."""

    model = _AsksForEver


class _Hangs(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        print("hangs", flush=True)
        while True:
            pass


class Hangs(_Of):
    """Never comes back."""

    model = _Hangs


class _Leaves(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        os._exit(7)


class Leaves(_Of):
    """Ends the process."""

    model = _Leaves


class _Prints(SimAdapter):
    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        print("printed")
        return await super().deliver(claim, context)


class Prints(Policy):
    """A policy that is being written."""

    def adapter(self, sink: SimSink) -> Adapter:
        print("printed")
        return _Prints(sink)


def made() -> Policy:
    """A function that makes a policy."""
    return Plain()


NOT_A_POLICY = 3
