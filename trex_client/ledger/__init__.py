"""A double-entry ledger with faults that can be seeded, for `trex demo` and the tests. Not for
production.

`install(dsn)` puts it into a database of its own. `LedgerServer(dsn)` is its HTTP front for the
adapter `http`; the adapter `postgres` calls `ledger.post` there directly. Both count every call
and every effect per key.

    POST /postings        Idempotency-Key, Trex-Fence, Trex-Attempt, Trex-Topic; the body is the
    payload, with
                          `account`, `currency` and `amount` (a decimal as text) where it moves cash
    GET  /postings/{key}  200 with the posting and its `account`, `currency` and `amount`, or 404
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from trex_client._values import exact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Self

_STATUS = {
    "posted": 201,
    "duplicate": 200,
    "conflict": 422,
    "refused": 400,
    "retry": 503,
    "stale_fence": 412,
    "in_progress": 409,
}
_REASONS = {200: "OK", 201: "Created", 400: "Bad Request", 404: "Not Found", 409: "Conflict"}
_MAX_BODY = 2 * 1024 * 1024


def install(dsn: str) -> None:
    """Create or replace the ledger's schema in a database; idempotent."""
    script = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    with psycopg.connect(dsn, autocommit=True) as conn, conn.transaction():
        conn.execute("select pg_advisory_xact_lock(7420002)")
        conn.execute(script)


@dataclass(frozen=True, slots=True)
class Faults:
    """How often the HTTP front misbehaves: shares between 0 and 1, decided by `seed`, key and
    number of the call.

    The first group is drawn anew for each call, in this order, at most one per call; `refused`
    and `conflict` are drawn once per key. `most_per_key` bounds the faulty calls of one key, so
    that retries end.
    """

    seed: int = 0
    unavailable: float = 0.0  # 503 with Retry-After: 0; nothing happens
    in_progress: float = 0.0  # 409; nothing happens
    cut_before: float = 0.0  # reads the request and cuts; nothing happens
    timeout_after_commit: float = 0.0  # posts, then never answers
    cut_after_commit: float = 0.0  # posts, then cuts
    lying: float = 0.0  # posts, then answers 500
    garbage: float = 0.0  # posts, then answers 200 with a body that isn't JSON
    posted_twice: float = (
        0.0  # the network repeats the call: posts, posts again, answers the second
    )
    slow: float = 0.0  # answers after `slow_seconds`
    refused: float = 0.0
    conflict: float = 0.0
    slow_seconds: float = 0.2
    hold_seconds: float = 30.0
    most_per_key: int = 3

    def for_key(self, key: str) -> str | None:
        """Return `refused`, `conflict` or None: what this key meets on every call."""
        point = _share(self.seed, key, "key")
        if point < self.refused:
            return "refused"
        return "conflict" if point < self.refused + self.conflict else None

    def for_call(self, key: str, number: int) -> str | None:
        """Return the fault of a key's n-th call (from 1), or None."""
        if number > self.most_per_key:
            return None
        point = _share(self.seed, key, str(number))
        for name in _PER_CALL:
            share: float = getattr(self, name)
            if point < share:
                return name
            point -= share
        return None


_PER_CALL = (
    "unavailable", "in_progress", "cut_before", "timeout_after_commit", "cut_after_commit",
    "lying", "garbage", "posted_twice", "slow",
)  # fmt: skip


def _share(seed: int, key: str, what: str) -> float:
    digest = hashlib.sha256(f"{seed}/{key}/{what}".encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """`calls` and `lookups` made, `effects` in the books, `keys` called, `most_effects` of any
    one key (1 is right),
    `imbalance`: the sum of all entries (0 is right), `drift`: accounts whose balance isn't the
    sum of their entries.
    """

    calls: int
    lookups: int
    effects: int
    keys: int
    most_effects: int
    imbalance: Decimal
    drift: int


def counts(dsn: str) -> LedgerCounts:
    """Count calls and effects of a ledger database."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            """
            select
                (select count(*) from ledger.call where result <> 'lookup'),
                (select count(*) from ledger.call where result = 'lookup'),
                (select count(*) from ledger.posting),
                (select count(distinct key) from ledger.call),
                (
                    select coalesce(max(n), 0) from (
                        select count(*) as n from ledger.call where result = 'posted' group by key
                    ) as effects
                ),
                (select coalesce(sum(amount), 0) from ledger.entry),
                (
                    select count(*) from ledger.account as a
                    where (a.balance, a.version) is distinct from (
                        select (coalesce(sum(e.amount), 0), count(*)) from ledger.entry as e
                        where (e.side, e.account, e.currency) = ('account', a.account, a.currency)
                    )
                )
            """
        ).fetchone()
    assert row is not None  # noqa: S101
    return LedgerCounts(*row)


class LedgerServer:
    """The ledger's HTTP front on loopback; an async context manager.

    Args:
        dsn: the ledger's database, installed.
        faults: how it misbehaves; may be replaced while it runs.
        port: 0 chooses a free one.
        sessions: database sessions.
    """

    def __init__(
        self, dsn: str, *, faults: Faults | None = None, port: int = 0, sessions: int = 4
    ) -> None:
        self.faults = faults or Faults()
        self.port = port
        self.calls: dict[str, int] = {}
        self.fault_counts: dict[str, int] = {}
        self._dsn = dsn
        self._size = sessions
        self._sessions: asyncio.Queue[psycopg.AsyncConnection[Any] | None] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where to post."""
        return f"http://127.0.0.1:{self.port}/postings"

    @property
    def lookup_url(self) -> str:
        """Where to look up, with `{key}`."""
        return f"{self.url}/{{key}}"

    def adapter_config(self, **more: Any) -> dict[str, Any]:
        """Return the settings with which the adapter `http` posts here and looks up."""
        return {
            "kind": "http",
            "url": self.url,
            "answer": {
                "reference": "reference",
                "balance": "balance",
                "version": "version",
                "result": "result",
                "delivered": ["posted"],
                "duplicate": ["duplicate"],
                "in_progress": ["in_progress"],
                "conflict": ["conflict"],
                "permanent": ["refused"],
                "retry": ["retry"],
                "unknown": ["stale_fence"],
            },
            "lookup": {
                "url": self.lookup_url,
                "in_flight": 0.5,
                "account": "account",
                "currency": "currency",
                "amount": "amount",
            },
            **more,
        }

    async def __aenter__(self) -> Self:
        for _ in range(self._size):
            self._sessions.put_nowait(None)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        while not self._sessions.empty():
            conn = self._sessions.get_nowait()
            if conn is not None:
                await conn.close()

    def counts(self) -> LedgerCounts:
        """Count calls and effects in the books."""
        return counts(self._dsn)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._handlers.add(task)
        try:
            while await self._serve(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        except asyncio.CancelledError:
            pass  # only __aexit__ cancels
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= _MAX_BODY:
            return False
        body = await reader.readexactly(length)
        if method == "GET" and path.startswith("/postings/"):
            status, answer = await self._lookup(path.rpartition("/")[2])
            return await _respond(writer, status, answer)
        if method != "POST" or path != "/postings":
            return await _respond(writer, 404, {"result": "no such thing"})
        return await self._post(writer, headers, body)

    async def _post(
        self, writer: asyncio.StreamWriter, headers: dict[str, str], body: bytes
    ) -> bool:
        key = headers.get("idempotency-key", "")
        try:
            payload = json.loads(body, parse_float=Decimal)
            amount = _amount(payload)
            fence = int(headers.get("trex-fence", "0"))
            attempt = int(headers.get("trex-attempt", "0"))
        except (ValueError, InvalidOperation, RecursionError):
            return await _respond(writer, 400, {"result": "refused"})
        if not key:
            return await _respond(writer, 400, {"result": "refused"})
        number = self.calls[key] = self.calls.get(key, 0) + 1
        fault = self.faults.for_call(key, number)
        always = self.faults.for_key(key)
        if fault is not None:
            self.fault_counts[fault] = self.fault_counts.get(fault, 0) + 1
        if fault == "unavailable":
            return await _respond(writer, 503, {"result": "retry"}, retry_after="0")
        if fault == "in_progress":
            return await _respond(writer, 409, {"result": "in_progress"})
        if fault == "cut_before":
            return False
        if always is not None:
            return await _respond(writer, _STATUS[always], {"result": always})
        fields = payload if isinstance(payload, dict) else {}
        values = (
            key, fence, attempt, headers.get("trex-topic", ""),
            fields.get("account") if amount is not None else None,
            fields.get("currency") if amount is not None else None,
            amount, body.decode(),
        )  # fmt: skip
        if fault == "posted_twice":
            await self._call_post(values)
        answer = await self._call_post(values)
        if answer is None:
            return await _respond(writer, 503, {"result": "retry"}, retry_after="1")
        if fault == "timeout_after_commit":
            await asyncio.sleep(self.faults.hold_seconds)
            return False
        if fault == "cut_after_commit":
            return False
        if fault == "lying":
            return await _respond(writer, 500, {"error": "internal"})
        if fault == "garbage":
            return await _respond(writer, 200, None)
        if fault == "slow":
            await asyncio.sleep(self.faults.slow_seconds)
        return await _respond(writer, _STATUS.get(str(answer["result"]), 500), answer)

    async def _call_post(self, values: tuple[object, ...]) -> dict[str, object] | None:
        query = (
            "select result, reference, balance, version from ledger.post"
            "(%s::text, %s::bigint, %s::integer, %s::text, %s::text, %s::text, %s::numeric,"
            " %s::jsonb)"
        )
        async with self._session() as conn:
            try:
                row = await (await conn.execute(query, values)).fetchone()
            except psycopg.Error:
                return None
        if row is None:
            return None
        return {
            "result": row[0],
            "reference": row[1],
            "balance": None if row[2] is None else str(row[2]),
            "version": row[3],
        }

    async def _lookup(self, key: str) -> tuple[int, dict[str, object]]:
        query = (
            "select found, reference, balance, version, account, currency, amount"
            " from ledger.lookup(%s::text)"
        )
        async with self._session() as conn:
            try:
                row = await (await conn.execute(query, (key,))).fetchone()
            except psycopg.Error:
                return 503, {"result": "retry"}
        if row is None or not row[0]:
            return 404, {"result": "absent"}
        balance = None if row[2] is None else str(row[2])
        return 200, {
            "result": "posted", "reference": row[1], "balance": balance, "version": row[3],
            "account": row[4], "currency": row[5],
            "amount": None if row[6] is None else str(row[6]),
        }  # fmt: skip

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        conn = await self._sessions.get()
        try:
            if conn is None or conn.closed:
                conn = None
                conn = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
            yield conn
        finally:
            self._sessions.put_nowait(conn)


def _amount(payload: object) -> Decimal | None:
    """Return the amount of a payload that moves cash; `amount` is a decimal, better as text."""
    if not isinstance(payload, dict) or payload.get("amount") is None:
        return None
    for name in ("account", "currency"):
        if not isinstance(payload.get(name), str):
            raise ValueError(name)
    return exact(payload["amount"])


async def _respond(
    writer: asyncio.StreamWriter,
    status: int,
    answer: dict[str, object] | None,
    *,
    retry_after: str | None = None,
) -> bool:
    body = b"<html>oops" if answer is None else json.dumps(answer).encode()
    head = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}"]
    head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if retry_after is not None:
        head.append(f"Retry-After: {retry_after}")
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    await writer.drain()
    return True
