"""Events of the inbox handled by Python callables: business rows and receipt in one transaction.

    HANDLERS = {
        "invoice.paid": Steps(ask=look_up_invoice, apply=grant),  # or just a callable: grant
        "*": ignore,                                              # every other type
    }

`ask` runs first and outside of any transaction: whoever has to be asked, is asked here. `apply`
runs between `hold` and `complete`, so what it writes with `event.conn` and `event.kernel` is
committed with the receipt, or not at all. The transaction isn't the handler's to end: one that
commits or rolls back has failed. Both may be called again for the same event.

    returns None         done: complete, commit
    returns Waiting      not yet: postpone and commit; costs no try, never parks
    returns Refused      never: roll back, park as permanent
    raises               roll back, try again after the backoff; parks when the allowance is used up
                         (SystemExit and a CancelledError of its own are no different)

A lost connection or an answer that didn't come in `ask` is Waiting too. A type that has no handler
backs off with `consumer:none` and parks in the end.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import httpx
import psycopg
from psycopg.rows import tuple_row

from trex_client.adapters.base import context_for, require_instance_key
from trex_client.errors import (
    ClaimLost,
    CommitUnknown,
    EndedOtherwise,
    InvalidArgument,
    NotFound,
    NotPrimary,
    SerializationFailure,
    TrexError,
)
from trex_client.model import REASONS, Recorded, Report
from trex_client.telemetry import Alert, Event
from trex_client.worker.delivery import MOST_DELAY, is_cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trex_client.model import Claim
    from trex_client.model_inbox import InboxEvent
    from trex_client.postgres import AsyncPostgresClient
    from trex_client.telemetry import Telemetry
    from trex_client.worker.delivery import Desk, Held
    from trex_client.worker.link import Session

MOST_CONNECTIONS: Final = 16
OTHERS: Final = "*"
"""The key of the handler for types that have none of their own."""

_TRIES: Final = 3
# A handler that waits for no time would be called in a circle.
_LEAST_DELAY: Final = timedelta(seconds=1)
_LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError, CommitUnknown, NotPrimary)
_RIVALS: Final = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    SerializationFailure,
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not yet: not paid yet, no order yet, the provider doesn't answer. `reason`: one of
    `trex_client.model.REASONS`; `delay`: from 1 second to 30 days, what is outside becomes that.

    Raises:
        InvalidArgument: another reason.
    """

    reason: str = "waiting"
    delay: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        _check_reason(self.reason)


@dataclass(frozen=True, slots=True)
class Refused:
    """This event can never be handled. `reason`: one of `trex_client.model.REASONS`.

    Raises:
        InvalidArgument: another reason.
    """

    reason: str = "rejected"

    def __post_init__(self) -> None:
        _check_reason(self.reason)


def _check_reason(reason: str) -> None:
    if reason not in REASONS:
        raise InvalidArgument("reason: one of trex_client.model.REASONS")


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a handler gets. `asked`: what `ask` returned. `conn` and `kernel`: in the business
    transaction; None while `ask` runs."""

    event: InboxEvent
    claim: Claim
    asked: Any = field(default=None, repr=False)
    _session: Session | None = field(default=None, repr=False)

    @property
    def payload(self) -> Any:
        """What the bytes say, as Python data; numbers with a point as Decimal."""
        return self.claim.payload

    @property
    def conn(self) -> psycopg.AsyncConnection[Any]:
        """The connection, inside the transaction. Never commit or roll back."""
        return self._inside().conn

    @property
    def kernel(self) -> AsyncPostgresClient:
        """trex's functions on it, such as `finalize_paid`."""
        return self._inside().kernel

    def _inside(self) -> Session:
        if self._session is None:
            raise RuntimeError("there is no transaction while ask runs")
        return self._session


Answer: TypeAlias = Waiting | Refused | None
Handler: TypeAlias = Callable[[Incoming], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Steps:
    """A handler that asks somebody first. `ask` returns what `apply` finds in `asked`, or Waiting
    or Refused."""

    apply: Handler
    ask: Callable[[Incoming], Awaitable[Any]]


def load_handlers(where: str) -> Mapping[str, Handler | Steps]:
    """Import `module:mapping`; modules beside the working directory are found too.

    Raises:
        InvalidArgument: it can't be imported, or isn't a mapping of event types to callables.
    """
    module_name, _, name = where.partition(":")
    if not module_name or not name.isidentifier():
        raise InvalidArgument("handlers: MODULE:MAPPING")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # noqa: BLE001 - its text could carry anything
        raise InvalidArgument(f"handlers: {type(error).__name__} on import") from None
    if not isinstance(found, Mapping) or not found:
        raise InvalidArgument("handlers: not a mapping")
    if not all(
        isinstance(kind, str) and (isinstance(handler, Steps) or callable(handler))
        for kind, handler in found.items()
    ):
        raise InvalidArgument("handlers: not event types and callables")
    return found


class HandlerProcessor:
    """Handles events of the inbox.

    Args:
        handlers: by event type; `*` for all others.
        connect: makes a connection in autocommit mode; each transaction has one of its own.
        size: most connections.

    Raises:
        InvalidArgument: no instance key.
    """

    def __init__(
        self,
        instance_key: str,
        handlers: Mapping[str, Handler | Steps],
        connect: Callable[[], Awaitable[Session]],
        telemetry: Telemetry,
        *,
        size: int = MOST_CONNECTIONS,
    ) -> None:
        self._instance_key = require_instance_key(instance_key)
        self._handlers = handlers
        self._connect = connect
        self._telemetry = telemetry
        self._free = asyncio.Semaphore(size)
        self._idle: list[Session] = []

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().drop()

    async def process(self, held: Held, desk: Desk) -> Report | Recorded:
        """Handle one event as the table at the top says."""
        held.context = context_for(self._instance_key, held.claim)
        for left in reversed(range(_TRIES)):
            try:
                return await self._handle(held, desk)
            except (ClaimLost, EndedOtherwise, NotFound) as error:
                return _lost(held.claim, error)
            except _RIVALS:
                if not left:
                    return self._failed(held)
            except _LOST:
                return self._report(held, "retry", "connection_lost")
            except asyncio.CancelledError as error:
                if is_cancelled(error):
                    raise
                return self._failed(held)
            except (Exception, SystemExit):  # noqa: BLE001 - a handler may raise anything
                return self._failed(held)
        return self._failed(held)

    async def _handle(self, held: Held, desk: Desk) -> Report | Recorded:
        claim = held.claim
        async with self._session() as session:
            event = await session.kernel.inbox_event(claim.message_id)
        handler = self._handlers.get(event.event_type) or self._handlers.get(OTHERS)
        if handler is None:
            return self._report(held, "retry", "consumer:none")
        incoming = Incoming(event, claim)
        apply = handler
        if isinstance(handler, Steps):
            asked = await _ask(handler, incoming)
            if isinstance(asked, Waiting | Refused):
                return self._not_now(held, asked)
            incoming, apply = Incoming(event, claim, asked), handler.apply
        if not desk.may_send(held):
            return self._report(held, "released", "not_started")
        assert not isinstance(apply, Steps)  # noqa: S101
        return await self._apply(held, desk, apply, incoming)

    async def _apply(
        self, held: Held, desk: Desk, apply: Handler, incoming: Incoming
    ) -> Report | Recorded:
        async with self._session() as session:
            await desk.will_hold(held)
            try:
                async with session.conn.transaction():
                    inside = Incoming(incoming.event, held.claim, incoming.asked, session)
                    report, recorded = await self._inside(held, apply, inside)
                    # From here on only the database knows.
                    if held.context is not None:
                        held.context.sent = True
            except _RollBack as rolled_back:
                return self._not_now(held, rolled_back.answer)
            finally:
                held.holding = False
        held.reported = report
        return recorded

    async def _inside(
        self, held: Held, apply: Handler, incoming: Incoming
    ) -> tuple[Report, Recorded]:
        """Hold, apply, and end the claim, in one transaction."""
        claim, kernel = held.claim, incoming.kernel
        await kernel.hold(claim.message_id, claim.fence)
        began = await _transaction_of(incoming.conn)
        try:
            answer: object = await apply(incoming)
        except (ClaimLost, EndedOtherwise, NotFound):
            # The handler's own calls, not ours: the claim was held all the time.
            raise HandlerFailed from None
        if await _transaction_of(incoming.conn) != began:
            raise HandlerFailed
        if isinstance(answer, Refused):
            raise _RollBack(answer)
        if isinstance(answer, Waiting):
            report = self._not_now(held, answer)
            return report, await kernel.postpone(
                claim.message_id, claim.fence, report.delay or _LEAST_DELAY, reason=report.reason
            )
        if answer is not None:
            raise HandlerFailed
        report = self._report(held, "completed", "unspecified")
        return report, await kernel.complete(claim.message_id, claim.fence, confirmed_by="handler")

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        """A connection; after an error it is closed, whatever state it is in."""
        async with self._free:
            session = self._idle.pop() if self._idle else await self._connect()
            keep = False
            try:
                yield session
                keep = True
            finally:
                if keep and not session.conn.closed:
                    self._idle.append(session)
                else:
                    session.drop()

    def _failed(self, held: Held) -> Report:
        self._telemetry.event(Event.ADAPTER_FAILED, "error", reason="handler_error")
        self._telemetry.alert(Alert.ADAPTER_FAILED, reason="handler_error")
        return self._report(held, "retry", "handler_error")

    def _not_now(self, held: Held, answer: Waiting | Refused) -> Report:
        if isinstance(answer, Refused):
            return self._report(held, "permanent", answer.reason)
        delay = min(max(answer.delay, _LEAST_DELAY), MOST_DELAY)
        return self._report(held, "postponed", answer.reason, delay)

    @staticmethod
    def _report(held: Held, result: str, reason: str, delay: timedelta | None = None) -> Report:
        # The receipt is in the handler's transaction: while there is none, nothing took effect.
        return Report(
            held.claim.message_id,
            held.claim.fence,
            result,  # type: ignore[arg-type]
            reason=reason,
            delay=delay,
            absent=result in {"retry", "permanent"},
            confirmed_by="handler" if result == "completed" else "answer",
        )


class HandlerFailed(Exception):  # noqa: N818
    """A handler returned something else, ended the transaction, or its own call was refused."""


class _RollBack(Exception):  # noqa: N818
    def __init__(self, answer: Refused) -> None:
        super().__init__()
        self.answer = answer


async def _transaction_of(conn: psycopg.AsyncConnection[Any]) -> object:
    """Its id: after `hold`, whose lock has assigned one, None is another transaction or none."""
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute("select pg_catalog.pg_current_xact_id_if_assigned()::text")
        (found,) = await cursor.fetchone() or (None,)
    return found


async def _ask(handler: Steps, incoming: Incoming) -> Any:
    try:
        return await handler.ask(incoming)
    except (OSError, TimeoutError, httpx.TransportError):
        return Waiting("provider_unreachable")


def _lost(claim: Claim, error: TrexError) -> Recorded:
    status = {ClaimLost: "claim_lost", EndedOtherwise: "ended_otherwise"}.get(type(error))
    return Recorded(
        claim.message_id,
        claim.fence,
        status or "not_found",  # type: ignore[arg-type]
        None,
        late=False,
        due_at=None,
    )
