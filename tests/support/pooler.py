"""A pooler in transaction mode, as small as can be: each transaction of a client runs on the next
of a few server connections, whatever the one before left there."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_SHOWN = ("server_version", "server_encoding", "client_encoding", "DateStyle", "IntervalStyle",
          "TimeZone", "integer_datetimes", "standard_conforming_strings")  # fmt: skip


class Pooler:
    """Listens on loopback, without passwords, for clients of one database and role.

    Args:
        dsn: where the server connections lead.
        size: how many there are.
    """

    def __init__(self, dsn: str, size: int = 2) -> None:
        self.switches = 0
        self._servers = [
            psycopg.connect(dsn, autocommit=True, sslmode="disable") for _ in range(size)
        ]
        self._free = deque(socket.socket(fileno=os.dup(conn.fileno())) for conn in self._servers)
        for one in self._free:
            one.setblocking(True)
        self._ready = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self.dsn = f"host=127.0.0.1 port={self._listener.getsockname()[1]} dbname=any user=any"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.close()
        for one in (*self._clients, *self._free):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for conn in self._servers:
            conn.pgconn.finish()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._greet(client)
            while True:
                kind, message = _message(client)
                if kind == b"X":
                    return
                self._transaction(client, kind, message)

    def _greet(self, client: socket.socket) -> None:
        while True:
            (size,) = struct.unpack("!I", _exactly(client, 4))
            (code,) = struct.unpack("!I", _exactly(client, size - 4)[:4])
            if code >> 16 == 3:
                break
            client.sendall(b"N")  # neither TLS nor GSS
        info = self._servers[0].info
        shown = b"".join(
            _pack(b"S", f"{name}\0{info.parameter_status(name) or ''}\0".encode())
            for name in _SHOWN
        )
        # A key of its own, as poolers give: not the process of any server connection.
        key = _pack(b"K", struct.pack("!II", 4_000_000, 1))
        client.sendall(_pack(b"R", b"\0\0\0\0") + shown + key + _pack(b"Z", b"I"))

    def _transaction(self, client: socket.socket, kind: bytes, message: bytes) -> None:
        """Pass messages on to one server connection until it is idle again."""
        with self._ready:
            while not self._free:
                self._ready.wait()
            server = self._free.popleft()
            self.switches += 1
        try:
            while True:
                server.sendall(message)
                if kind in (b"S", b"Q") and self._answers(client, server) == b"I":
                    return
                kind, message = _message(client)
        finally:
            with self._ready:
                self._free.append(server)
                self._ready.notify()

    def _answers(self, client: socket.socket, server: socket.socket) -> bytes:
        """Pass on what the server says, up to its state after it."""
        while True:
            kind, message = _message(server)
            client.sendall(message)
            if kind == b"Z":
                return message[-1:]


def _pack(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(source, 5)
    return head[:1], head + _exactly(source, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
