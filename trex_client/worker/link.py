"""One connection that is made again after every loss, with bounded, jittered pauses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trex_client._session import read_committed_async
from trex_client.adapters.base import require_instance_key
from trex_client.errors import (
    AccessDenied,
    CommitUnknown,
    DatabaseError,
    ImmutableFact,
    InvalidArgument,
    InvariantViolated,
    NotPrimary,
    SerializationFailure,
    TrexError,
    WrongTransaction,
)
from trex_client.postgres import AsyncPostgresClient
from trex_client.telemetry import RESULTS, Alert, Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trex_client.telemetry import Telemetry
    from trex_client.worker.settings import Runtime, WorkerSettings

T = TypeVar("T")

FINAL = (AccessDenied, InvalidArgument, ImmutableFact, InvariantViolated, WrongTransaction)
"""Errors that another attempt can't help."""

_NO_RIGHT = "42501"
# Of the data, not of the server: repeating the call can't help.
_OF_THE_DATA = ("22", "23", "P0", "XX")
_ALERT_AFTER = 30.0


class GaveUp(Exception):  # noqa: N818
    """The caller said that it doesn't need the answer any more."""


@dataclass(frozen=True, slots=True)
class Session:
    """A connection in autocommit mode and the functions on it."""

    conn: psycopg.AsyncConnection[Any]
    kernel: AsyncPostgresClient

    def drop(self) -> None:
        """Close at once, without a word to the server."""
        self.conn.pgconn.finish()


def connector(
    dsn: str, instance_key: str, *, prepare: bool = True
) -> Callable[[], Awaitable[Session]]:
    """Return how to connect to PostgreSQL for one instance.

    Args:
        dsn: libpq connection string, `''` for libpq's variables.
        instance_key: checked here, before anything is connected.
        prepare: False prepares no statement; nor is one prepared where a pooler is found between.

    Raises:
        InvalidArgument: no instance key, or the connection string can't be read (it isn't shown).
    """
    require_instance_key(instance_key)
    try:
        known = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise InvalidArgument("connection string") from None
    options: dict[str, Any] = {
        "connect_timeout": 10,
        "keepalives_idle": 20,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
        "application_name": "trex",
    }
    options = {name: value for name, value in options.items() if name not in known}

    async def connect() -> Session:
        conn = await psycopg.AsyncConnection.connect(
            dsn,
            autocommit=True,
            prepare_threshold=5 if prepare else None,
            client_encoding="UTF8",
            **options,
        )
        if not await _is_ours(conn):
            conn.prepare_threshold = None
        return Session(conn, AsyncPostgresClient(conn, instance_key))

    return connect


async def _is_ours(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Set the isolation level; False behind a pooler.

    On another client's server connection our name of a statement may mean a statement of theirs.
    """
    try:
        return await read_committed_async(conn)
    except BaseException:
        conn.pgconn.finish()
        raise


class Link:
    """Runs calls on one connection, one at a time, and gets over every loss of it.

    A call is repeated until it is answered, so it must be one that may be repeated.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Session]],
        settings: WorkerSettings,
        telemetry: Telemetry,
        runtime: Runtime,
        *,
        main: bool = False,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._telemetry = telemetry
        self._runtime = runtime
        self._main = main
        self._session: Session | None = None
        self._lock = asyncio.Lock()
        self._failures = 0
        self._down_since: float | None = None
        self.up = False
        self.asked_at: float | None = None

    async def call(
        self,
        operation: Callable[[AsyncPostgresClient], Awaitable[T]],
        *,
        until: Callable[[], bool] = lambda: False,
        patience: int | None = None,
    ) -> T:
        """Run one call until it is answered.

        Raises:
            GaveUp: `until()` became true while there was no answer.
            TrexError: one of `FINAL` (a missing right is an `AccessDenied`); a `DatabaseError`
                about the data after `patience` of them.
        """

        async def on_kernel(session: Session) -> T:
            return await operation(session.kernel)

        return await self.run(on_kernel, until=until, patience=patience)

    async def run(
        self,
        operation: Callable[[Session], Awaitable[T]],
        *,
        until: Callable[[], bool] = lambda: False,
        patience: int | None = None,
    ) -> T:
        """As `call`, with the whole session; psycopg's errors count as a lost connection."""
        refused = 0
        async with self._lock:
            while True:
                if until():
                    raise GaveUp
                self.asked_at = self._runtime.monotonic()
                try:
                    if self._session is None:
                        self._session = await self._open()
                    async with asyncio.timeout(self._settings.call_timeout):
                        answer = await operation(self._session)
                except FINAL:
                    self.drop()
                    raise
                except SerializationFailure:
                    await self._runtime.sleep(0.005 + 0.05 * self._runtime.random())
                except (TrexError, psycopg.Error, OSError, TimeoutError) as error:
                    if sqlstate_of(error) == _NO_RIGHT:
                        self.drop()
                        raise AccessDenied from None
                    refused += isinstance(error, DatabaseError) and error.code[:2] in _OF_THE_DATA
                    if patience is not None and refused >= patience:
                        self.drop()
                        raise
                    await self._lost(error, until)
                except BaseException:
                    self.drop()
                    raise
                else:
                    self._is_up()
                    return answer
                finally:
                    self.asked_at = None

    def drop(self) -> None:
        """Close the connection without a word; the next call opens another."""
        if self._session is not None:
            self._session.drop()
            self._session = None

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            session, self._session = self._session, None
            try:
                async with asyncio.timeout(2.0):
                    await session.conn.close()
            except (psycopg.Error, OSError, TimeoutError):
                session.drop()

    async def _open(self) -> Session:
        async with asyncio.timeout(self._settings.call_timeout):
            return await self._connect()

    def _is_up(self) -> None:
        if not self.up:
            self.up = True
            self._failures = 0
            self._down_since = None
            if self._main:
                self._telemetry.is_connected(self._settings.box, connected=True)
                self._telemetry.event(Event.CONNECTED)

    async def _lost(self, error: BaseException, until: Callable[[], bool]) -> None:
        """Say so once, then pause: 0.1 s, doubled up to the cap, half of it by chance."""
        had_session = self._session is not None
        self.drop()
        now = self._runtime.monotonic()
        if self._down_since is None:
            self._down_since = now
        self._failures += 1
        if self._main:
            self._telemetry.is_connected(self._settings.box, connected=False)
            event = Event.CONNECTION_LOST if had_session else Event.CONNECT_FAILED
            self._telemetry.event(
                event, "warning", result=result_of(error), connection_attempt=self._failures
            )
            if isinstance(error, NotPrimary):
                self._telemetry.alert(Alert.NOT_PRIMARY)
            if now - self._down_since >= _ALERT_AFTER:
                self._telemetry.alert(Alert.DATABASE_UNREACHABLE, seconds=now - self._down_since)
        self.up = False
        settings = self._settings
        pause = min(settings.backoff_cap, settings.backoff * 2 ** min(self._failures - 1, 16))
        end = now + pause * (0.5 + 0.5 * self._runtime.random())
        while not until() and (left := end - self._runtime.monotonic()) > 0:
            await self._runtime.sleep(min(left, 0.25))


def sqlstate_of(error: BaseException) -> str:
    """The SQLSTATE of an error, '' when it has none."""
    if isinstance(error, DatabaseError):
        return error.code
    return (error.sqlstate or "") if isinstance(error, TrexError | psycopg.Error) else ""


def result_of(error: BaseException) -> str:
    """What a log line says of an error: its SQLSTATE where it has a known one."""
    if isinstance(error, CommitUnknown):
        return "commit_unknown"
    code = sqlstate_of(error)
    return code if code in RESULTS else "database_error"
