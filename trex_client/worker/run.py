"""Run a worker as a program does: daemon, backfill, one correlation."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trex_client._session import read_committed
from trex_client._values import is_key
from trex_client.adapters.base import require_instance_key
from trex_client.adapters.config import build_adapter
from trex_client.errors import InvalidArgument, TrexError
from trex_client.migrate import (
    MigrationError,
    SchemaOutdated,
    UnknownSchema,
    require_known_schema,
)
from trex_client.postgres import PostgresClient
from trex_client.telemetry import Alert, Event, Level, Telemetry, webhook_poster
from trex_client.worker.delivery import AdapterProcessor
from trex_client.worker.handlers import MOST_CONNECTIONS, HandlerProcessor
from trex_client.worker.health import HealthServer
from trex_client.worker.link import connector, result_of, sqlstate_of
from trex_client.worker.loop import Worker
from trex_client.worker.plans import Once, Plan
from trex_client.worker.settings import Exit, Runtime, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trex_client.adapters.base import Adapter
    from trex_client.worker.delivery import Processor
    from trex_client.worker.handlers import Handler, Steps

_STUCK_AFTER = 30.0
_DENIED = ("TX403", "42501")
_SCHEMA = ((UnknownSchema, "schema_newer"), (SchemaOutdated, "schema_outdated"))


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What became of the claims of one run. Every claim is in exactly one of the numbers after
    `claimed`, but for those that a killed run left to their leases.

    `set_aside`: messages of other topics that were put back. `expedited`: made due at the start.
    """

    claimed: int = 0
    delivered: int = 0
    duplicate: int = 0
    retried: int = 0
    unknown: int = 0
    conflict: int = 0
    permanent: int = 0
    dead_lettered: int = 0
    claim_lost: int = 0
    released: int = 0
    postponed: int = 0
    set_aside: int = 0
    expedited: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """What a worker's program is told.

    Args:
        instance_key: whose messages.
        dsn: libpq connection string; '' is libpq's variables.
        settings: see `WorkerSettings`.
        adapter: the adapter's settings; None reads the file that `TREX_ADAPTER_CONFIG` names.
        handlers: by event type, instead of an adapter; only for the inbox.
        topics: topics that may be named in logs and metrics.
        level: what is logged at least.
        http: host and port of health and metrics; None is off.
        webhook: where alerts are posted; None is nowhere.
        webhook_networks: private networks that it may lead into.
        runtime: clock, sleep and dice.
        leave: ends the process at a second signal.
        owns_process: whether everything else that could print is taken over, as a command does.
        refusals: filled by a run that refuses the database's schema, with the error that says why.
    """

    instance_key: str
    dsn: str = field(repr=False)
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    adapter: Mapping[str, Any] | None = field(default=None, repr=False)
    handlers: Mapping[str, Handler | Steps] | None = field(default=None, repr=False)
    topics: tuple[str, ...] = ()
    level: Level = "info"
    http: tuple[str, int] | None = None
    webhook: str | None = field(default=None, repr=False)
    webhook_networks: tuple[str, ...] = ()
    runtime: Runtime = field(default_factory=Runtime)
    leave: Callable[[int], object] = os._exit
    owns_process: bool = False
    refusals: list[MigrationError] = field(default_factory=list)

    def check(self) -> Adapter:
        """Refuse what can't work, before anything is connected; return the adapter.

        Raises:
            InvalidArgument: names the setting.
        """
        require_instance_key(self.instance_key)
        connector(self.dsn, self.instance_key)
        if self.handlers is not None and self.settings.box != "inbox":
            raise InvalidArgument("handlers are for the inbox")
        return build_adapter(self.instance_key, self.adapter)

    def telemetry(self) -> Telemetry:
        """Return the door for this program."""
        poster = None
        if self.webhook:
            poster = webhook_poster(self.webhook, timedelta(seconds=5), self.webhook_networks)
        telemetry = Telemetry(
            self.instance_key, topics=self.topics, level=self.level, webhook=poster
        )
        if self.owns_process:
            telemetry.own_process(asyncio.get_running_loop())
        return telemetry


@dataclass(frozen=True, slots=True)
class _Start:
    now: datetime
    due: int
    paused: bool


async def daemon(program: Program, *, started: Callable[[Worker], None] | None = None) -> Exit:
    """Deliver for ever; drain on SIGTERM or SIGINT, leave at once on a second one.

    Raises:
        InvalidArgument: a setting is wrong, or the address of `http` can't be bound; nothing was
            connected.
    """
    adapter = program.check()
    telemetry = program.telemetry()
    worker = _worker(program, telemetry, adapter, Plan())
    stop = _on_signals(worker, telemetry, program)
    async with AsyncExitStack() as stack:
        if program.http is not None:
            host, port = program.http
            health = HealthServer(host, port, telemetry=telemetry, ready=lambda: is_ready(worker))
            await stack.enter_async_context(health)
        telemetry.event(Event.STARTED, pid=os.getpid(), concurrency=worker.settings.concurrency)
        if started is not None:
            started(worker)
        begin = await _prepare(program, telemetry, stop)
        code = begin if isinstance(begin, Exit) else await worker.run()
        telemetry.event(Event.STOPPED, exit_code=int(code))
        await telemetry.flush()
    return code


async def run_once(
    program: Program,
    *,
    correlation_id: str | None = None,
    topic: str | None = None,
    limit: int | None = None,
    include_retrying: tuple[str, str] | None = None,
    progress: Callable[[RunCounts, int], None] | None = None,
) -> tuple[Exit, RunCounts]:
    """Deliver what can be claimed now, and end. Safe to run twice, in parallel and beside daemons.

    Args:
        program: what the program is told.
        correlation_id: only this correlation's messages.
        topic: only this topic's; others that the run meets are put back for some seconds.
        limit: most messages to claim.
        include_retrying: actor and reason of an operator; deferred messages are made due first.
        progress: called several times a second with the counts and the number due at the start.

    Raises:
        InvalidArgument: a setting is wrong; nothing was connected.
    """
    adapter = program.check()
    if limit is not None and limit < 1:
        raise InvalidArgument("limit")
    if correlation_id is not None and not is_key(correlation_id):
        raise InvalidArgument("correlation: 1 to 255 characters, none of them a control character")
    telemetry = program.telemetry()
    plan = Once(correlation_id=correlation_id, topic=topic, limit=limit)
    worker = _worker(program, telemetry, adapter, plan)
    stop = _on_signals(worker, telemetry, program)
    begin = await _prepare(program, telemetry, stop)
    if isinstance(begin, Exit):
        await telemetry.flush()
        return begin, RunCounts()
    expedited = 0
    if include_retrying is not None:
        try:
            expedited = await asyncio.to_thread(_expedite, program, topic, limit, *include_retrying)
        except (TrexError, psycopg.Error) as error:
            telemetry.event(Event.CALL_FAILED, "error", result=result_of(error))
            await telemetry.flush()
            denied = sqlstate_of(error) in _DENIED
            return (Exit.ACCESS_DENIED if denied else Exit.UNREACHABLE), RunCounts()
    plan.until = begin.now
    plan.started = program.runtime.monotonic()
    shown = asyncio.create_task(_show(worker, begin.due, progress))
    try:
        code = await worker.run()
    finally:
        shown.cancel()
    counts = run_counts(worker, expedited)
    if progress is not None:
        progress(counts, begin.due)
    if code is Exit.OK and counts.claimed != counts.delivered + counts.duplicate:
        code = Exit.INCOMPLETE
    elif code is Exit.OK and correlation_id is not None and counts.claimed == 0:
        code = Exit.EMPTY
    telemetry.event(
        Event.FINISHED,
        claimed=counts.claimed,
        delivered=counts.delivered,
        duplicates=counts.duplicate,
        exit_code=int(code),
    )
    await telemetry.flush()
    return code, counts


def run_counts(worker: Worker, expedited: int = 0) -> RunCounts:
    """Return a worker's counts so far."""
    names = set(RunCounts.__dataclass_fields__) - {"expedited"}
    return RunCounts(**{name: worker.counts[name] for name in names}, expedited=expedited)


def is_ready(worker: Worker) -> bool:
    """Whether a worker has a primary that answers."""
    answers = worker.connected and worker.unanswered < _STUCK_AFTER
    return worker.ready and answers and not worker.draining


def _worker(program: Program, telemetry: Telemetry, adapter: Adapter, plan: Plan) -> Worker:
    connect = connector(program.dsn, program.instance_key, prepare=program.settings.listen)
    processor: Processor
    if program.handlers is None:
        processor = AdapterProcessor(program.instance_key, adapter, telemetry, program.runtime)
    else:
        size = min(MOST_CONNECTIONS, program.settings.concurrency)
        processor = HandlerProcessor(
            program.instance_key, program.handlers, connect, telemetry, size=size
        )
    settings = program.settings
    if program.handlers is None and adapter.concurrency is not None:
        # A message that waits for a connection of our own would only hold its lease.
        most = min(settings.concurrency, adapter.concurrency)
        settings = replace(settings, concurrency=most)
    return Worker(
        settings,
        connect=connect,
        processor=processor,
        telemetry=telemetry,
        runtime=program.runtime,
        plan=plan,
    )


def _on_signals(worker: Worker, telemetry: Telemetry, program: Program) -> asyncio.Event:
    """First signal: drain. Second: leave at once. Returns the event that the first one sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set():
            telemetry.event(
                Event.STOPPED, "warning", signal=number, exit_code=int(Exit.INTERRUPTED)
            )
            program.leave(int(Exit.INTERRUPTED))
            return
        stop.set()
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, handle, int(number))
    return stop


async def _prepare(program: Program, telemetry: Telemetry, stop: asyncio.Event) -> _Start | Exit:
    """Wait for the database; refuse a schema that this release doesn't know."""
    runtime, settings = program.runtime, program.settings
    begin = runtime.monotonic()
    failures = 0
    while not stop.is_set():
        try:
            start = await asyncio.to_thread(_look, program)
            if start.paused:
                telemetry.event(Event.PAUSED, "warning")
            return start
        except MigrationError as error:
            result = next((name for kind, name in _SCHEMA if isinstance(error, kind)), "failed")
            telemetry.event(Event.CALL_FAILED, "error", result=result)
            program.refusals.append(error)
            return Exit.SCHEMA
        except (TrexError, psycopg.Error, OSError) as error:
            if sqlstate_of(error) in _DENIED:
                telemetry.alert(Alert.ACCESS_DENIED)
                return Exit.ACCESS_DENIED
            if sqlstate_of(error) == "TX400":
                return Exit.USAGE
            result = result_of(error)
        failures += 1
        telemetry.is_connected(settings.box, connected=False)
        telemetry.event(Event.CONNECT_FAILED, "warning", result=result, connection_attempt=failures)
        waited = runtime.monotonic() - begin
        if settings.reach and waited >= settings.reach:
            return Exit.UNREACHABLE
        if waited >= _STUCK_AFTER:
            telemetry.alert(Alert.DATABASE_UNREACHABLE, seconds=waited)
        pause = min(settings.backoff_cap, settings.backoff * 2 ** min(failures - 1, 16))
        await runtime.wait(stop, pause * (0.5 + 0.5 * runtime.random()))
    return Exit.OK


def _connect(program: Program) -> psycopg.Connection[Any]:
    options: dict[str, Any] = {"client_encoding": "UTF8"}
    if "connect_timeout" not in conninfo_to_dict(program.dsn):
        options["connect_timeout"] = min(10, max(2, int(program.settings.reach) or 10))
    conn = psycopg.connect(program.dsn, autocommit=True, prepare_threshold=None, **options)
    try:
        read_committed(conn)
    except BaseException:
        conn.close()
        raise
    return conn


def _look(program: Program) -> _Start:
    with _connect(program) as conn:
        with suppress(psycopg.errors.InsufficientPrivilege):
            require_known_schema(conn)
        kernel = PostgresClient(conn, program.instance_key)
        policy = kernel.policy()
        row = conn.execute("select pg_catalog.clock_timestamp()").fetchone()
        stats = kernel.stats(box=program.settings.box, cap=1_000_000)
    if row is None:
        raise OSError
    return _Start(row[0], stats.ready + stats.due + stats.lease_ended, policy.paused)


def _expedite(
    program: Program, topic: str | None, limit: int | None, actor: str, reason: str
) -> int:
    """Make deferred messages due now, lowest number first; return how many."""
    done, after = 0, 0
    with _connect(program) as conn:
        kernel = PostgresClient(conn, program.instance_key)
        while limit is None or done < limit:
            page = kernel.list_pending(limit=1000, after=after, box=program.settings.box)
            if not page:
                break
            after = page[-1].message_id
            ids = [
                row.message_id
                for row in page
                if row.state == "deferred" and topic in {None, row.topic}
            ]
            if limit is not None:
                ids = ids[: limit - done]
            if ids:
                rows = kernel.expedite(ids, actor=actor, reason=reason)
                done += sum(row.status == "expedited" for row in rows)
    return done


async def _show(
    worker: Worker, due: int, progress: Callable[[RunCounts, int], None] | None
) -> None:
    while progress is not None:
        progress(run_counts(worker), due)
        await asyncio.sleep(0.2)
