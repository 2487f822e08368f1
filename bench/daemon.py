"""`python -m bench.daemon`: one daemon process from claim to record. Numbers are printed, never
asserted.

    noop    an adapter that does nothing: messages a second from claim to acknowledged record
    1ms     an adapter that takes a millisecond, 256 at once
    http    the adapter http to a sink that answers after 50 ms, 256 at once
    slow    calls of two seconds, 500 at once: are leases lost?
    idle    CPU of an idle daemon, in per cent of one core
    memory  resident memory while a million messages pass (only when asked for by name)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg

from bench.place import INSTANCE, Place
from trex_client.adapters import build_adapter
from trex_client.adapters.base import (
    BaseAdapter,
    Delivered,
    DeliveryContext,
    DeliveryResult,
)
from trex_client.model import Movement
from trex_client.postgres import PostgresClient
from trex_client.telemetry import Telemetry
from trex_client.worker import (
    AdapterProcessor,
    Once,
    Plan,
    Runtime,
    Worker,
    WorkerSettings,
    connector,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from trex_client.adapters.base import Adapter
    from trex_client.model import Claim, EffectPolicy

PARTS = ("noop", "1ms", "http", "slow", "idle", "memory")
PAYLOAD = {"account": "a-17", "amount": "12.50", "currency": "USD", "note": "x" * 220}


class Timed(BaseAdapter):
    """Takes its time and delivers."""

    policy: EffectPolicy = "idempotent"
    announces_sending = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0
        self.most = 0

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Wait, then say that it is delivered."""
        del claim
        await context.sending()
        if self.seconds:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(self.seconds)
            self.now -= 1
        return Delivered()


def sink(tell: Connection, seconds: float) -> None:
    """Answer every POST with 200 after some time; a process of its own, for ever."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or b"0"))
                await asyncio.sleep(seconds)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def drain_http(place: Place, template: str, number: int, **settings: Any) -> dict[str, Any]:
    """Deliver to a sink over HTTP; its CPU time isn't counted."""
    hear, tell = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=sink, args=(tell, 0.05))
    child.start()
    try:
        url = f"http://127.0.0.1:{hear.recv()}/"
        adapter = build_adapter(INSTANCE, {"kind": "http", "url": url})
        return _drain(place, template, number, adapter, **settings)
    finally:
        child.kill()
        child.join()


def fill(dsn: str, first: int, number: int) -> None:
    """Enqueue messages of about 300 bytes."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        client = PostgresClient(conn, INSTANCE)
        for start in range(first, first + number, 5000):
            end = min(first + number, start + 5000)
            client.enqueue_many(
                [Movement("bench.topic", f"k{n}", PAYLOAD) for n in range(start, end)]
            )


def worker(dsn: str, adapter: Adapter, plan: Plan, **settings: Any) -> Worker:
    """Make a worker as the daemon does."""
    runtime = Runtime()
    telemetry = Telemetry(INSTANCE, topics=["bench.topic"], level="warning")
    return Worker(
        WorkerSettings(**{"stats": 0.0, **settings}),
        connect=connector(dsn, INSTANCE),
        processor=AdapterProcessor(INSTANCE, adapter, telemetry, runtime),
        telemetry=telemetry,
        runtime=runtime,
        plan=plan,
    )


def drain(
    place: Place, template: str, number: int, seconds: float, **settings: Any
) -> dict[str, Any]:
    """Deliver what was loaded before, to an adapter that takes so many seconds."""
    adapter = Timed(seconds)
    return {
        **_drain(place, template, number, adapter, **settings),
        "most_at_once": adapter.most,
    }


def _drain(
    place: Place, template: str, number: int, adapter: Adapter, **settings: Any
) -> dict[str, Any]:
    """Messages a second from first claim to last record."""
    dsn = place.dsn(place.fresh("measured", template), "bench_worker")
    made = worker(dsn, adapter, Once(), **settings)
    begin, cpu = time.perf_counter(), time.process_time()
    asyncio.run(made.run())
    took = time.perf_counter() - begin
    return {
        "messages": made.counts["delivered"],
        "per_second": round(made.counts["delivered"] / took),
        "seconds": round(took, 2),
        "client_cpu_us_each": round(1e6 * (time.process_time() - cpu) / number, 1),
        "claim_lost": made.counts["claim_lost"],
    }


async def _idle(dsn: str, seconds: float) -> float:
    made = worker(dsn, Timed(0), Plan(), stats=15.0)
    running = asyncio.create_task(made.run())
    await asyncio.sleep(3.0)
    cpu = time.process_time()
    await asyncio.sleep(seconds)
    used = time.process_time() - cpu
    made.stop()
    await running
    return 100.0 * used / seconds


async def _memory(dsn: str, app: str, number: int) -> list[int]:
    made = worker(dsn, Timed(0), Plan())
    running = asyncio.create_task(made.run())
    seen = []
    for step in range(10):
        await asyncio.to_thread(fill, app, step * number // 10, number // 10)
        while made.counts["delivered"] < (step + 1) * number // 10:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        seen.append(resident())
    made.stop()
    await running
    return seen


def resident() -> int:
    """Resident memory of this process in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() // 2**20


def main() -> int:
    """Measure what was asked for; print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--quick", action="store_true", help="smaller, for a first look")
    parser.add_argument("--pg", type=int, default=None, help="major version of PostgreSQL")
    asked = parser.parse_args()
    parts = asked.parts or [part for part in PARTS if part != "memory"]
    number = 20_000 if asked.quick else 100_000
    slow = (2_000, 100) if asked.quick else (20_000, 500)
    with Place(asked.pg) as place:

        def loaded(count: int) -> str:
            def load(name: str) -> None:
                place.with_trex(name)
                fill(place.dsn(name, "bench_app"), 0, count)

            return place.template(f"daemon_{count}", load)

        for part in parts:
            print(json.dumps({part: _one(place, part, number, slow, loaded)}), flush=True)
    return 0


def _one(place: Place, part: str, number: int, slow: tuple[int, int], loaded: Any) -> Any:
    match part:
        case "noop":
            return drain(place, loaded(number), number, 0.0)
        case "1ms":
            return drain(place, loaded(number), number, 0.001, concurrency=256)
        case "http":
            return drain_http(place, loaded(number // 5), number // 5, concurrency=256)
        case "slow":
            return drain(place, loaded(slow[0]), slow[0], 2.0, concurrency=slow[1])
        case "idle":
            name = place.fresh("measured", loaded(0))
            return {
                "cpu_percent": round(asyncio.run(_idle(place.dsn(name, "bench_worker"), 20)), 2)
            }
        case _:
            name = place.fresh("measured", loaded(0))
            dsns = place.dsn(name, "bench_worker"), place.dsn(name, "bench_app")
            return {"mib_at_each_tenth": asyncio.run(_memory(*dsns, number * 10))}


if __name__ == "__main__":
    sys.exit(main())
