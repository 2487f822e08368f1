"""A raw HTTP server on loopback that says exactly what a test wants, and keeps what it got."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CUT = "cut"
"""Read the request, then close without an answer."""
HANG = "hang"
"""Read the request, then never answer."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpSink:
    """Answers from `script`, one entry a request: raw bytes, `CUT`, `HANG`, or (status, headers,
    body); the last entry stays.
    """

    script: deque[Any] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/post"

    def says(self, *answers: Any) -> None:
        self.script.clear()
        self.script.extend(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, path, _ = first.split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(Request(method, path, headers, body))
        answer = self.script.popleft() if len(self.script) > 1 else self.script[0]
        if answer == CUT:
            return False
        if answer == HANG:
            await asyncio.sleep(60)
            return False
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
            return False
        status, more, content = answer
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", *more]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
        await writer.drain()
        return True


@contextlib.asynccontextmanager
async def http_sink(*answers: Any) -> AsyncIterator[HttpSink]:
    sink = HttpSink()
    sink.says(*(answers or ((200, [], b""),)))
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await sink.serve(reader, writer)
        tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    sink.port = server.sockets[0].getsockname()[1]
    try:
        yield sink
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def ok(body: bytes = b"", *headers: str, status: int = 200) -> tuple[int, list[str], bytes]:
    return status, list(headers), body
