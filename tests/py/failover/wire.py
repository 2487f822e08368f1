"""A proxy that counts PostgreSQL's wire messages and cuts the connection at a chosen one."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

From = Literal["client", "server"]
How = Literal["before", "amid", "after"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut at the n-th message (from 1) that comes from one side: before any byte of it is passed
    on, amid it, or after all of it was."""

    side: From
    number: int
    how: How


class Proxy:
    """Listens on loopback and passes everything on, one server connection for each client's.

    `arm` sets the next cut; messages count from there, in each direction by itself. `seen` tells
    how many went by since.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self.cut: Cut | None = None
        self.cuts = 0
        self.seen: dict[From, int] = {"client": 0, "server": 0}
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.close()
        for pair in self._pairs:
            _close(*pair)

    def arm(self, cut: Cut | None) -> None:
        """Count from here, and cut at a message; None only counts."""
        with self._lock:
            self.cut = cut
            self.seen = {"client": 0, "server": 0}

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                return
            server.settimeout(None)
            self._pairs.append((client, server))
            for one, other, side in ((client, server, "client"), (server, client, "server")):
                threading.Thread(
                    target=self._pass, args=(one, other, side), daemon=True
                ).start()  # fmt: skip

    def _pass(self, source: socket.socket, target: socket.socket, side: From) -> None:
        with contextlib.suppress(OSError, _Ended):
            if side == "client":
                # The first message has no type.
                head = _exactly(source, 4)
                target.sendall(head + _exactly(source, struct.unpack("!I", head)[0] - 4))
            while True:
                head = _exactly(source, 5)
                message = head + _exactly(source, struct.unpack("!I", head[1:])[0] - 4)
                how = self._next(side)
                if how == "amid":
                    target.sendall(message[: max(1, len(message) // 2)])
                elif how != "before":
                    target.sendall(message)
                if how is not None:
                    break
        _close(source, target)

    def _next(self, side: From) -> str | None:
        with self._lock:
            self.seen[side] += 1
            cut = self.cut
            if cut is None or cut.side != side or cut.number != self.seen[side]:
                return None
            self.cut = None
            self.cuts += 1
            return cut.how


class _Ended(Exception):
    """The other side closed."""


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise _Ended
        data += more
    return data


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
