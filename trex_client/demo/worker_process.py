"""Child process: a worker of one instance. `python -m trex_client.demo.worker_process`

With `freeze_after` it stops itself (SIGSTOP) when the ledger has answered so often, after the
ledger posted and before the outcome is recorded: in the middle of its batch. SIGTERM drains it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from trex_client.adapters import Adapter, Delivered, build_adapter
from trex_client.demo.child import say, settings, watch_parent
from trex_client.telemetry import Telemetry
from trex_client.worker import AdapterProcessor, Runtime, Worker, WorkerSettings, connector

if TYPE_CHECKING:
    from trex_client.adapters import DeliveryContext, DeliveryResult, LookupResult
    from trex_client.model import Claim


class FreezesOnce:
    """An adapter that stops the whole process after its n-th delivery."""

    def __init__(self, inner: Adapter, after: int) -> None:
        self.policy = inner.policy
        self.can_lookup = inner.can_lookup
        self.in_flight = inner.in_flight
        self.announces_sending = inner.announces_sending
        self.concurrency = inner.concurrency
        self._inner = inner
        self._left = after

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Deliver; the ledger has committed when the process stops."""
        result = await self._inner.deliver(claim, context)
        if isinstance(result, Delivered) and claim.effect_policy == "idempotent":
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
        return result

    async def lookup(self, wire_key: str) -> LookupResult:
        """Look up."""
        return await self._inner.lookup(wire_key)

    async def close(self) -> None:
        """Close."""
        await self._inner.close()


async def work() -> int:
    """Deliver until SIGTERM."""
    given = settings()
    instance = given["instance"]
    adapter = build_adapter(instance, given["adapter"])
    if given["freeze_after"]:
        adapter = FreezesOnce(adapter, given["freeze_after"])
    telemetry = Telemetry(instance, level="error")
    runtime = Runtime(worker=given["worker"])
    worker = Worker(
        WorkerSettings(
            concurrency=16,
            batch=50,
            prefetch=20,
            lease=timedelta(seconds=given["lease"]),
            poll=0.25,
            drain=5.0,
            stats=0.0,
            reach=20.0,
        ),
        connect=connector(given["dsn"], instance),
        processor=AdapterProcessor(instance, adapter, telemetry, runtime),
        telemetry=telemetry,
        runtime=runtime,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    say(ready=True)
    if given["wait"]:
        await asyncio.to_thread(sys.stdin.readline)
    watch_parent()
    code = await worker.run()
    say(counts=dict(worker.counts))
    return int(code)


if __name__ == "__main__":
    sys.exit(asyncio.run(work()))
