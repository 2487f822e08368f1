"""`/healthz`, `/readyz` and `/metrics` over HTTP, for probes and Prometheus. No input but the
path.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trex_client.errors import InvalidArgument
from trex_client.telemetry import Event

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from trex_client.telemetry import Telemetry

_MOST_CONNECTIONS = 64
_LONGEST = 5.0


class HealthServer:
    """Serves until it is left; an async context manager.

    `/healthz` answers while the process works at all. `/readyz` is 200 while `ready()` says so,
    else 503. `/metrics` is Prometheus text.
    """

    def __init__(
        self, host: str, port: int, *, telemetry: Telemetry, ready: Callable[[], bool]
    ) -> None:
        self.port = port
        self._host = host
        self._telemetry = telemetry
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def __aenter__(self) -> Self:
        """
        Raises:
            InvalidArgument: the host is unknown, or the port taken.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self.port, limit=16 * 1024
            )
        except (OSError, UnicodeError):
            raise InvalidArgument("http: the address is in use, or isn't this machine's") from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._telemetry.event(Event.SERVING, port=self.port)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > _MOST_CONNECTIONS:
            # The oldest goes: idle connections must not keep a probe out.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(_LONGEST):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        kind = "text/plain; charset=utf-8"
        if method not in {b"GET", b"HEAD"}:
            status, body = "405 Method Not Allowed", b"GET only\n"
        elif path == b"/healthz":
            status, body = "200 OK", b"ok\n"
        elif path == b"/readyz":
            ready = self._ready()
            status, body = ("200 OK", b"ready\n") if ready else ("503 Not Ready", b"not ready\n")
        elif path == b"/metrics":
            status, body = "200 OK", self._telemetry.render()
            kind = "text/plain; version=0.0.4; charset=utf-8"
        else:
            status, body = "404 Not Found", b"/healthz, /readyz or /metrics\n"
        head_lines = [
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        answer = "\r\n".join([*head_lines, "", ""]).encode()
        return answer if method == b"HEAD" else answer + body
