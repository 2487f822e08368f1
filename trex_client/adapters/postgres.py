"""Posts messages by calling a SQL function of a ledger in another database.

One statement in autocommit is one transaction there, so key and effect commit together or not at
all. The function is

    post(key text, fence bigint, attempt integer, topic text, account text, currency text,
         amount numeric, payload jsonb)
        returns a row (result text, reference text, balance numeric, version bigint)

with `result` one of: posted, duplicate, conflict, refused (this key has no effect and never will
have), retry, stale_fence (a higher fence was seen for this key). The look-up is

    lookup(key text) returns a row (found boolean, reference text, balance numeric, version bigint,
                                    account text, currency text, amount numeric)

with what is booked under the key, nulls where that moves no cash: with other content than ours it
is a conflict, not our delivery.

An error that leaves the session usable rolled the posting back: Retryable, or Permanent for a
violated constraint or a bad value. A session that ended after the statement was sent: Unknown.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from trex_client.adapters.base import (
    Absent,
    Conflict,
    Delivered,
    DeliveryContext,
    DeliveryResult,
    Duplicate,
    Found,
    LookupResult,
    NotSent,
    NotSure,
    Permanent,
    Retryable,
    Secret,
    Snapshot,
    Unknown,
    require_instance_key,
)
from trex_client.adapters.config import ConfigError, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from trex_client.model import Claim, EffectPolicy

    Connect = Callable[..., Awaitable[psycopg.AsyncConnection[Any]]]

_FUNCTION = re.compile(r"[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}")
_REFUSED_CLASSES = ("22", "23", "P0")


@dataclass(frozen=True, slots=True)
class PostgresConfig:
    """Settings; times in seconds. See `read` for the TOML names.

    `in_flight`: after this time a call that isn't visible will never take effect. The server ends
    each call after `call_timeout`, so it is at least that. `pool_timeout`: longest wait for one of
    the `connections`; a message that gets none is given back and costs no try.
    """

    dsn: Secret
    function: str = "ledger.post"
    lookup: str | None = "ledger.lookup"
    policy: EffectPolicy = "idempotent"
    connections: int = 8
    connect_timeout: float = 5.0
    pool_timeout: float = 5.0
    call_timeout: float = 20.0
    in_flight: float = 30.0

    @classmethod
    def read(cls, settings: Settings) -> PostgresConfig:
        """Read and check the settings: `dsn = { env = NAME }` or `{ file = PATH }`, or `service =
        NAME`.

        Raises:
            ConfigError: names the setting.
        """
        dsn = settings.secret("dsn")
        service = settings.optional_text("service")
        if (dsn is None) == (service is None):
            raise ConfigError("dsn")
        if service is not None and not re.fullmatch(r"[A-Za-z0-9_.-]+", service):
            raise ConfigError("service")
        call_timeout = settings.seconds("call_timeout", 20.0, least=0.01)
        lookup = settings.optional_text("lookup")
        config = cls(
            dsn=dsn or Secret(f"service={service}"),
            function=settings.text("function", "ledger.post"),
            lookup=lookup or ("ledger.lookup" if "function" not in settings.table else None),
            policy=settings.policy("policy", "idempotent"),
            connections=settings.integer("connections", 8, least=1, most=1000),
            connect_timeout=settings.seconds("connect_timeout", 5.0, least=0.01),
            pool_timeout=settings.seconds("pool_timeout", 5.0, least=0.01),
            call_timeout=call_timeout,
            in_flight=settings.seconds("in_flight", call_timeout + 10.0, least=call_timeout),
        )
        for name in (config.function, config.lookup):
            if name is not None and not _FUNCTION.fullmatch(name):
                raise ConfigError("function")
        return config


@dataclass(slots=True)
class _Sessions:
    """Up to `most` sessions, opened when needed and used by one call at a time."""

    most: int
    free: deque[psycopg.AsyncConnection[Any]] = field(default_factory=deque)
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.most)


class PostgresAdapter:
    """Delivers into a ledger database as the module describes. Connects at the first delivery.

    Raises:
        InvalidArgument: no instance key.
        ConfigError: the connection string can't be read (it isn't shown).
    """

    announces_sending = True

    def __init__(
        self,
        instance_key: str,
        config: PostgresConfig,
        *,
        connect: Connect | None = None,
    ) -> None:
        self.instance_key = require_instance_key(instance_key)
        self.policy: EffectPolicy = config.policy
        self.can_lookup = config.lookup is not None
        self.in_flight = timedelta(seconds=config.in_flight)
        self.concurrency = config.connections
        try:
            conninfo_to_dict(config.dsn.reveal())
        except psycopg.Error:
            raise ConfigError("dsn can't be read as a connection string") from None
        if config.policy == "lookup" and config.lookup is None:
            raise ConfigError("lookup")
        self._config = config
        self._connect: Connect = connect or psycopg.AsyncConnection.connect
        self._sessions = _Sessions(config.connections)
        self._post = sql.SQL(
            "select result, reference, balance, version"
            " from {}(%s::text, %s::bigint, %s::integer, %s::text, %s::text, %s::text,"
            " %s::numeric, %s::jsonb)"
        ).format(_identifier(config.function))
        self._lookup = sql.SQL(
            "select found, reference, balance, version, account, currency, amount from {}(%s::text)"
        ).format(_identifier(config.lookup or config.function))

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Post one message."""
        values = (
            context.wire_key,
            context.fence,
            context.attempt,
            claim.topic,
            claim.account,
            claim.currency,
            claim.cash_delta,
            claim.payload_json,
        )
        try:
            async with self._session() as conn:
                await context.sending()
                try:
                    row = await self._fetch(conn, self._post, values)
                except psycopg.Error as error:
                    if conn.closed or conn.broken:
                        return Unknown("connection_lost")
                    refused = (error.sqlstate or "")[:2] in _REFUSED_CLASSES
                    return Permanent("rejected") if refused else Retryable("unavailable")
                except TimeoutError:
                    return Unknown("timeout")
        except NotSent as error:
            return Retryable(error.reason)
        return _judge(row)

    async def lookup(self, wire_key: str) -> LookupResult:
        """Ask for a key."""
        if self._config.lookup is None:
            return NotSure("lookup_unsupported")
        try:
            async with self._session() as conn:
                row = await self._fetch(conn, self._lookup, (wire_key,))
        except (psycopg.Error, TimeoutError):
            return NotSure("lookup_failed")
        except NotSent as error:
            return NotSure(error.reason)
        if row is None or not isinstance(row[0], bool):
            return NotSure("response_invalid")
        if not row[0]:
            return Absent()
        return Found(
            _reference(row[1]),
            _snapshot(row[2], row[3]),
            account=row[4],
            currency=row[5],
            cash_delta=row[6],
        )

    async def close(self) -> None:
        """Close all sessions."""
        while self._sessions.free:
            await self._sessions.free.popleft().close()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a session; one that isn't idle afterwards is closed.

        Raises:
            NotSent: no free session in time, or no connection.
        """
        sessions = self._sessions
        try:
            async with asyncio.timeout(self._config.pool_timeout):
                await sessions.slots.acquire()
        except TimeoutError:
            raise NotSent("not_started") from None
        try:
            conn = self._idle_session() or await self._open()
            try:
                yield conn
            finally:
                idle = psycopg.pq.TransactionStatus.IDLE
                if conn.closed or conn.info.transaction_status != idle:
                    conn.pgconn.finish()
                else:
                    sessions.free.append(conn)
        finally:
            sessions.slots.release()

    def _idle_session(self) -> psycopg.AsyncConnection[Any] | None:
        """Return a session that still lives; one with something to read while idle was ended."""
        while self._sessions.free:
            conn = self._sessions.free.pop()
            if not conn.closed and not select.select([conn.fileno()], [], [], 0)[0]:
                return conn
            conn.pgconn.finish()
        return None

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        timeout = self._config.connect_timeout
        try:
            async with asyncio.timeout(timeout):
                conn = await self._connect(
                    self._config.dsn.reveal(),
                    autocommit=True,
                    prepare_threshold=None,
                    connect_timeout=max(2, int(timeout + 1)),
                    application_name="trex",
                )
                milliseconds = int(self._config.call_timeout * 1000)
                await conn.execute(
                    "select set_config('statement_timeout', %s, false)", (str(milliseconds),)
                )
        except (psycopg.Error, OSError, TimeoutError):
            raise NotSent("connect_failed") from None
        return conn

    async def _fetch(
        self, conn: psycopg.AsyncConnection[Any], query: sql.Composed, values: tuple[object, ...]
    ) -> tuple[Any, ...] | None:
        try:
            async with asyncio.timeout(self._config.call_timeout + 1.0):
                cursor = await conn.execute(query, values)
                row: tuple[Any, ...] | None = await cursor.fetchone()
                return row
        except TimeoutError:
            conn.pgconn.finish()
            raise


def _identifier(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))


def _judge(row: tuple[Any, ...] | None) -> DeliveryResult:
    if row is None:
        return Unknown("response_invalid")
    match row[0]:
        case "posted":
            return Delivered(_reference(row[1]), _snapshot(row[2], row[3]))
        case "duplicate":
            return Duplicate(_reference(row[1]), _snapshot(row[2], row[3]))
        case "conflict":
            return Conflict()
        case "refused":
            return Permanent("rejected", absent=True)
        case "retry":
            return Retryable("unavailable")
        case "stale_fence":
            # Somebody with a higher fence has called: an effect of this key may exist.
            return Unknown("stale_version")
        case _:
            return Unknown("response_invalid")


def _reference(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _snapshot(balance: object, version: object) -> Snapshot | None:
    if isinstance(balance, Decimal) and balance.is_finite() and isinstance(version, int):
        return Snapshot(balance, version)
    return None
