"""The API on PostgreSQL: one statement per method, over the caller's connection.

No pool, no retries, no hidden commit: the caller owns connection and transaction, in UTF8. Only
`claim` and `exchange` are transactions of their own: they refuse a connection inside one, and have
committed when they return.

What goes in and comes out of each method: `trex_client._calls.Calls`. The rule behind it:
`sql/functions/**/NAME.sql`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import psycopg
from psycopg import AsyncCursor, Cursor
from psycopg.pq import Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from trex_client._calls import Call, Calls, Row, stale_report
from trex_client._calls_reconcile import AllCalls
from trex_client.errors import (
    AccessDenied,
    ClaimLost,
    CommitUnknown,
    Forbidden,
    InvalidArgument,
    KeyReused,
    TrexError,
    WrongTransaction,
    from_sqlstate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from psycopg.pq.abc import PGconn

P = ParamSpec("P")
T = TypeVar("T")

_IDLE: Final = TransactionStatus.IDLE
_NO_PIPELINE: Final = PipelineStatus.OFF
# The prepared statement is of an older release of the function, or a pooler has dropped it. Nothing
# has run.
_PREPARE_AGAIN: Final = frozenset({"0A000", "26000"})
# psycopg forgets all prepared statements when it sees a ROLLBACK.
_FORGET_PREPARED: Final = "begin; rollback"


def _sync(
    build: Callable[Concatenate[AllCalls, P], Call[T]],
) -> Callable[Concatenate[PostgresClient, P], T]:
    @wraps(build)
    def method(self: PostgresClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(build(self._calls, *args, **kwargs))

    _show_result(method)
    return method


def _async(
    build: Callable[Concatenate[AllCalls, P], Call[T]],
) -> Callable[Concatenate[AsyncPostgresClient, P], Coroutine[Any, Any, T]]:
    @wraps(build)
    async def method(self: AsyncPostgresClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(build(self._calls, *args, **kwargs))

    _show_result(method)
    return method


def _show_result(method: Callable[..., object]) -> None:
    """For `help()`: the result, where the builder's annotation says `Call[result]`."""
    result = method.__annotations__["return"]
    method.__annotations__ = {
        **method.__annotations__,
        "return": result.removeprefix("Call[").removesuffix("]"),
    }


def _failure(error: psycopg.Error | UnicodeError, *, lost: bool) -> tuple[TrexError, str | None]:
    """Our error for psycopg's, and its SQLSTATE. Of what the server said nothing is kept, but for
    the hint of a TX code: constant text of our functions.

    `lost`: the connection is gone, or the error came with COMMIT.
    """
    if isinstance(error, UnicodeError):
        return InvalidArgument("client_encoding: text does not fit"), None
    code = error.sqlstate
    if lost:
        return CommitUnknown(code or ""), code
    failure = from_sqlstate(code)
    if isinstance(failure, (InvalidArgument, KeyReused, Forbidden, AccessDenied)):
        return type(failure)(error.diag.message_hint), code
    if code is not None and (code.startswith("22") or code in {"54000", "54001"}):
        # Functions check before they cast, so it was an argument; 54*: a payload too deep or too
        # long for jsonb.
        return InvalidArgument("a value that PostgreSQL can't read"), code
    return failure, code


def _refuse_encoding(pgconn: PGconn) -> None:
    # In another one a row might not be readable, and by then its claim would be committed.
    if pgconn.parameter_status(b"client_encoding") != b"UTF8":
        raise InvalidArgument("client_encoding: UTF8 only")


def _refuse_transaction(pgconn: PGconn) -> None:
    status = pgconn.transaction_status
    if status == TransactionStatus.UNKNOWN:
        raise CommitUnknown
    if status != _IDLE or pgconn.pipeline_status != _NO_PIPELINE:
        raise WrongTransaction


class PostgresClient:
    """`api.Trex` over a `psycopg.Connection`, bound to one instance. As thread-safe as the
    connection.
    """

    def __init__(self, conn: psycopg.Connection[Any], instance_key: str) -> None:
        """
        Raises:
            InvalidArgument: `instance_key` is missing, empty or malformed. The connection isn't
            touched.
        """
        self._calls = AllCalls(instance_key)
        self._conn = conn

    @property
    def instance_key(self) -> str:
        return self._calls.instance_key

    enqueue = _sync(Calls.enqueue)
    enqueue_many = _sync(Calls.enqueue_many)

    claim = _sync(Calls.claim)
    extend = _sync(Calls.extend)
    release = _sync(Calls.release)
    postpone = _sync(Calls.postpone)
    mark_sent = _sync(Calls.mark_sent)
    hold = _sync(Calls.hold)
    listen = _sync(Calls.listen)
    unlisten = _sync(Calls.unlisten)

    complete = _sync(Calls.complete)
    complete_duplicate = _sync(Calls.complete_duplicate)
    retry = _sync(Calls.retry)
    mark_unknown = _sync(Calls.mark_unknown)
    conflict = _sync(Calls.conflict)
    fail = _sync(Calls.fail)
    dead_letter = _sync(Calls.dead_letter)
    record = _sync(Calls.record)
    exchange = _sync(Calls.exchange)
    report_stale = _sync(Calls.report_stale)

    list_pending = _sync(Calls.list_pending)
    pending_cash_delta = _sync(Calls.pending_cash_delta)
    list_parked = _sync(Calls.list_parked)
    status = _sync(Calls.status)
    stats = _sync(Calls.stats)
    policy = _sync(Calls.policy)

    register_instance = _sync(Calls.register_instance)
    bind = _sync(Calls.bind)
    unbind = _sync(Calls.unbind)
    pause = _sync(Calls.pause)
    resume = _sync(Calls.resume)
    redrive = _sync(Calls.redrive)
    resolve = _sync(Calls.resolve)
    expedite = _sync(Calls.expedite)
    purge = _sync(Calls.purge)
    bump_epoch = _sync(Calls.bump_epoch)
    register_currency = _sync(Calls.register_currency)
    adopt = _sync(Calls.adopt)

    receive = _sync(AllCalls.receive)
    inbox_event = _sync(AllCalls.inbox_event)
    inbox_status = _sync(AllCalls.inbox_status)

    machine_load = _sync(AllCalls.machine_load)
    machine_show = _sync(AllCalls.machine_show)
    transition = _sync(AllCalls.transition)
    entity_status = _sync(AllCalls.entity_status)
    entity_history = _sync(AllCalls.entity_history)
    correct = _sync(AllCalls.correct)
    operation_history = _sync(AllCalls.operation_history)
    effect_states = _sync(AllCalls.effect_states)
    overdue = _sync(AllCalls.overdue)

    register_order = _sync(AllCalls.register_order)
    record_payment = _sync(AllCalls.record_payment)
    finalize_paid = _sync(AllCalls.finalize_paid)
    apply_provider_cancel = _sync(AllCalls.apply_provider_cancel)
    apply_refund = _sync(AllCalls.apply_refund)
    update_subscription = _sync(AllCalls.update_subscription)
    expire_entitlements = _sync(AllCalls.expire_entitlements)
    issue_capability = _sync(AllCalls.issue_capability)
    execute_licence = _sync(AllCalls.execute_licence)
    bind_device = _sync(AllCalls.bind_device)
    list_entitlements = _sync(AllCalls.list_entitlements)
    list_usage = _sync(AllCalls.list_usage)
    list_counters = _sync(AllCalls.list_counters)
    list_devices = _sync(AllCalls.list_devices)
    list_security_events = _sync(AllCalls.list_security_events)

    reconcile = _sync(AllCalls.reconcile)
    reconcile_reports = _sync(AllCalls.reconcile_reports)
    reconcile_findings = _sync(AllCalls.reconcile_findings)

    def run(self, call: Call[T]) -> T:
        """Run a call that `Calls` made, and return its result. Every other method is this one."""
        statement = call[0]
        pgconn = self._conn.pgconn
        if statement.own:
            _refuse_transaction(pgconn)
        done, code = self._attempt(call)
        if isinstance(done, TrexError):
            # After an error only a statement that was its own transaction leaves the connection
            # idle.
            alone = pgconn.transaction_status == _IDLE
            if alone and code in _PREPARE_AGAIN:
                if self._conn.autocommit:
                    self._conn.execute(_FORGET_PREPARED)
                done, code = self._attempt(call)
            elif alone and statement.result and isinstance(done, ClaimLost):
                self._attempt(stale_report(call))
        if isinstance(done, TrexError):
            raise done
        return statement.load(done)

    def _attempt(self, call: Call[Any]) -> tuple[list[Row] | TrexError, str | None]:
        """Rows, or an error as a value with its SQLSTATE: raised outside of `except` it carries no
        other error.
        """
        statement, params = call
        conn = self._conn
        commits = statement.own and not conn.autocommit
        cursor = Cursor(conn, row_factory=tuple_row)
        cursor.format = Format.BINARY
        rows = None
        try:
            _refuse_encoding(conn.pgconn)
            rows = cursor.execute(statement.sql, params, prepare=statement.hot or None).fetchall()
            if commits:
                conn.commit()
        except (psycopg.Error, UnicodeError) as error:
            failure, code = _failure(error, lost=rows is not None or conn.closed)
        except BaseException:
            if commits:
                with suppress(psycopg.Error):
                    conn.rollback()
            raise
        else:
            return rows, None
        if commits:
            with suppress(psycopg.Error):
                conn.rollback()
        return failure, code


class AsyncPostgresClient:
    """The same over a `psycopg.AsyncConnection`: every method is awaited."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], instance_key: str) -> None:
        """
        Raises:
            InvalidArgument: `instance_key` is missing, empty or malformed. The connection isn't
            touched.
        """
        self._calls = AllCalls(instance_key)
        self._conn = conn

    @property
    def instance_key(self) -> str:
        return self._calls.instance_key

    enqueue = _async(Calls.enqueue)
    enqueue_many = _async(Calls.enqueue_many)

    claim = _async(Calls.claim)
    extend = _async(Calls.extend)
    release = _async(Calls.release)
    postpone = _async(Calls.postpone)
    mark_sent = _async(Calls.mark_sent)
    hold = _async(Calls.hold)
    listen = _async(Calls.listen)
    unlisten = _async(Calls.unlisten)

    complete = _async(Calls.complete)
    complete_duplicate = _async(Calls.complete_duplicate)
    retry = _async(Calls.retry)
    mark_unknown = _async(Calls.mark_unknown)
    conflict = _async(Calls.conflict)
    fail = _async(Calls.fail)
    dead_letter = _async(Calls.dead_letter)
    record = _async(Calls.record)
    exchange = _async(Calls.exchange)
    report_stale = _async(Calls.report_stale)

    list_pending = _async(Calls.list_pending)
    pending_cash_delta = _async(Calls.pending_cash_delta)
    list_parked = _async(Calls.list_parked)
    status = _async(Calls.status)
    stats = _async(Calls.stats)
    policy = _async(Calls.policy)

    register_instance = _async(Calls.register_instance)
    bind = _async(Calls.bind)
    unbind = _async(Calls.unbind)
    pause = _async(Calls.pause)
    resume = _async(Calls.resume)
    redrive = _async(Calls.redrive)
    resolve = _async(Calls.resolve)
    expedite = _async(Calls.expedite)
    purge = _async(Calls.purge)
    bump_epoch = _async(Calls.bump_epoch)
    register_currency = _async(Calls.register_currency)
    adopt = _async(Calls.adopt)

    receive = _async(AllCalls.receive)
    inbox_event = _async(AllCalls.inbox_event)
    inbox_status = _async(AllCalls.inbox_status)

    machine_load = _async(AllCalls.machine_load)
    machine_show = _async(AllCalls.machine_show)
    transition = _async(AllCalls.transition)
    entity_status = _async(AllCalls.entity_status)
    entity_history = _async(AllCalls.entity_history)
    correct = _async(AllCalls.correct)
    operation_history = _async(AllCalls.operation_history)
    effect_states = _async(AllCalls.effect_states)
    overdue = _async(AllCalls.overdue)

    register_order = _async(AllCalls.register_order)
    record_payment = _async(AllCalls.record_payment)
    finalize_paid = _async(AllCalls.finalize_paid)
    apply_provider_cancel = _async(AllCalls.apply_provider_cancel)
    apply_refund = _async(AllCalls.apply_refund)
    update_subscription = _async(AllCalls.update_subscription)
    expire_entitlements = _async(AllCalls.expire_entitlements)
    issue_capability = _async(AllCalls.issue_capability)
    execute_licence = _async(AllCalls.execute_licence)
    bind_device = _async(AllCalls.bind_device)
    list_entitlements = _async(AllCalls.list_entitlements)
    list_usage = _async(AllCalls.list_usage)
    list_counters = _async(AllCalls.list_counters)
    list_devices = _async(AllCalls.list_devices)
    list_security_events = _async(AllCalls.list_security_events)

    reconcile = _async(AllCalls.reconcile)
    reconcile_reports = _async(AllCalls.reconcile_reports)
    reconcile_findings = _async(AllCalls.reconcile_findings)

    async def run(self, call: Call[T]) -> T:
        """Run a call that `Calls` made, and return its result. Every other method is this one."""
        statement = call[0]
        pgconn = self._conn.pgconn
        if statement.own:
            _refuse_transaction(pgconn)
        done, code = await self._attempt(call)
        if isinstance(done, TrexError):
            # After an error only a statement that was its own transaction leaves the connection
            # idle.
            alone = pgconn.transaction_status == _IDLE
            if alone and code in _PREPARE_AGAIN:
                if self._conn.autocommit:
                    await self._conn.execute(_FORGET_PREPARED)
                done, code = await self._attempt(call)
            elif alone and statement.result and isinstance(done, ClaimLost):
                await self._attempt(stale_report(call))
        if isinstance(done, TrexError):
            raise done
        return statement.load(done)

    async def _attempt(self, call: Call[Any]) -> tuple[list[Row] | TrexError, str | None]:
        """Rows, or an error as a value with its SQLSTATE: raised outside of `except` it carries no
        other error.
        """
        statement, params = call
        conn = self._conn
        commits = statement.own and not conn.autocommit
        cursor = AsyncCursor(conn, row_factory=tuple_row)
        cursor.format = Format.BINARY
        rows = None
        try:
            _refuse_encoding(conn.pgconn)
            await cursor.execute(statement.sql, params, prepare=statement.hot or None)
            rows = await cursor.fetchall()
            if commits:
                await conn.commit()
        except (psycopg.Error, UnicodeError) as error:
            failure, code = _failure(error, lost=rows is not None or conn.closed)
        except BaseException:
            if commits:
                with suppress(psycopg.Error):
                    await conn.rollback()
            raise
        else:
            return rows, None
        if commits:
            with suppress(psycopg.Error):
                await conn.rollback()
        return failure, code
