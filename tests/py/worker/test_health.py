"""Health, readiness and metrics over HTTP; whatever is sent there harms nothing."""

from __future__ import annotations

import asyncio
import io

import pytest

from trex_client.errors import InvalidArgument
from trex_client.telemetry import Telemetry
from trex_client.worker.health import HealthServer

pytestmark = pytest.mark.criterion("ac-0046")


async def ask(port, raw):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    if raw.count(b"\r\n\r\n") == 0:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def get(path, method="GET"):
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_what_is_served():
    ready = [False]
    telemetry = Telemetry("inst", stream=io.StringIO())
    async with HealthServer("127.0.0.1", 0, telemetry=telemetry, ready=lambda: ready[0]) as server:
        assert (await ask(server.port, get("/healthz"))).startswith(b"HTTP/1.1 200 ")
        assert (await ask(server.port, get("/readyz"))).startswith(b"HTTP/1.1 503 ")
        ready[0] = True
        assert (await ask(server.port, get("/readyz?x=1"))).startswith(b"HTTP/1.1 200 ")
        metrics = await ask(server.port, get("/metrics"))
        assert b"text/plain; version=0.0.4" in metrics
        assert b'trex_in_flight{trex_instance="inst"}' in metrics
        assert b"trex_in_flight{" not in await ask(server.port, get("/metrics", "HEAD"))
        assert (await ask(server.port, get("/secret"))).startswith(b"HTTP/1.1 404 ")
        assert (await ask(server.port, get("/metrics", "POST"))).startswith(b"HTTP/1.1 405 ")


async def test_garbage_is_ignored():
    telemetry = Telemetry("inst", stream=io.StringIO())
    async with HealthServer("127.0.0.1", 0, telemetry=telemetry, ready=lambda: True) as server:
        for raw in (b"", b"x", b"\x16\x03\x01", b"A" * 100_000, b"\r\n\r\n", b"GET\r\n\r\n"):
            try:
                answer = await ask(server.port, raw)
            except ConnectionError:
                continue
            assert not answer or answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))
        assert (await ask(server.port, get("/healthz"))).startswith(b"HTTP/1.1 200 ")


async def test_a_taken_port_is_an_error():
    telemetry = Telemetry("inst", stream=io.StringIO())
    async with HealthServer("127.0.0.1", 0, telemetry=telemetry, ready=lambda: True) as server:
        for host in ("127.0.0.1", "nobody.invalid", "192.0.2.1", "a" * 70 + ".invalid"):
            with pytest.raises(InvalidArgument, match="http"):
                async with HealthServer(host, server.port, telemetry=telemetry, ready=lambda: True):
                    pass


async def test_idle_connections_keep_no_probe_out():
    telemetry = Telemetry("inst", stream=io.StringIO())
    async with HealthServer("127.0.0.1", 0, telemetry=telemetry, ready=lambda: True) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
        for _ in range(3):
            assert (await ask(server.port, get("/healthz"))).startswith(b"HTTP/1.1 200 ")
        for _, writer in idle:
            writer.close()
