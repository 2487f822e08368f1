"""A heartbeat goes on when a worker holds an old and a new claim of one message.

Found by the simulation: both in one call are refused (TX400), and with them every other lease of
the worker went without an extension until the old call had ended.
"""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from typing import Any

import pytest

from tests.support.rig import FakeSink, enqueue, register
from trex_client.telemetry import Telemetry
from trex_client.worker import AdapterProcessor, Held, Runtime, Worker, WorkerSettings, connector


@pytest.mark.criterion("ac-0046")
async def test_an_older_claim_of_a_message_stops_no_heartbeat(new_db: Any) -> None:
    database = new_db()
    client = register(database)
    enqueue(client, 2)
    lease = timedelta(seconds=2)
    first = client.claim("w", 1, lease=lease)
    database.clock.advance(3)
    claims = [*first, *client.claim("w", 2, lease=lease)]
    assert len(claims) == 3
    runtime = Runtime(worker="w")
    telemetry = Telemetry("inst", level="error", stream=io.StringIO())
    worker = Worker(
        WorkerSettings(lease=lease, poll=0.1),
        connect=connector(database.dsn("worker"), "inst"),
        processor=AdapterProcessor("inst", FakeSink(), telemetry, runtime),
        telemetry=telemetry,
        runtime=runtime,
    )
    worker._lease = lease
    now = runtime.monotonic()
    for claim in claims:
        held = Held(claim, received=now, deadline=now + 0.5)
        worker._held[held.key] = held
    beat = asyncio.create_task(worker._extend_leases())
    await asyncio.sleep(0.7)
    beat.cancel()
    await asyncio.gather(beat, return_exceptions=True)
    await worker._aux_link.close()
    old, *new = worker._held.values()
    assert old.lost
    assert all(not held.lost and held.deadline > now + 1.0 for held in new)
