"""What tests of the worker need: an instance, a scriptable sink, workers, and the books."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from tests.support import canaries
from trex_client.adapters.base import (
    Absent,
    BaseAdapter,
    Conflict,
    Delivered,
    Duplicate,
    Found,
    NotSent,
    NotSure,
    Permanent,
    Retryable,
    Snapshot,
    Unknown,
)
from trex_client.model import Movement
from trex_client.postgres import PostgresClient
from trex_client.telemetry import COUNTERS, Telemetry
from trex_client.worker import (
    AdapterProcessor,
    Exit,
    Once,
    Plan,
    Runtime,
    Worker,
    WorkerSettings,
    connector,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

KEY = "inst"
TOPIC = "pay.out"


def register(database: Database, key: str = KEY, **policy: Any) -> PostgresClient:
    """Register an instance, bind the test roles to it, and return a superuser's client."""
    client = PostgresClient(database.connect(), key)
    client.register_instance(actor="test", reason="test", **policy)
    for role in ("app", "worker", "operator", "reader", "postgres"):
        name = role if role == "postgres" else f"trex_test_{role}"
        client.bind(name, actor="test", reason="test")
    return client


def account(number: int) -> str:
    """The account of the movement of this number; three take turns."""
    return f"a{number % 3}-{canaries.CANARY}"


def movement(number: int, prefix: str = "k", **changes: Any) -> Movement:
    values: dict[str, Any] = {
        "topic": TOPIC,
        "idempotency_key": f"{prefix}{number}",
        "payload": {"account": account(number), "amount": "1.00", "currency": "USD"},
        "account": account(number),
        "currency": "USD",
        "cash_delta": Decimal("1.00"),
        "correlation_id": f"order-{number}",
    }
    return Movement(**{**values, **changes})


def enqueue(client: PostgresClient, number: int, prefix: str = "k", **changes: Any) -> list[int]:
    """Enqueue some movements; return their ids."""
    rows: list[int] = []
    for start in range(0, number, 5000):
        moves = [movement(n, prefix, **changes) for n in range(start, min(number, start + 5000))]
        rows += [row.message_id for row in client.enqueue_many(moves)]
    return rows


class HostileError(Exception):
    """An exception whose text can't even be made."""

    def __str__(self) -> str:
        raise RuntimeError("canary")

    __repr__ = __str__


BOOMS: dict[str, Callable[[], BaseException]] = {
    "nul": lambda: ValueError("a\x00b canary"),
    "surrogate": lambda: ValueError("\ud800 canary"),
    "bytes": lambda: ValueError(b"\xf1a".decode("utf-8", "surrogateescape")),
    "huge": lambda: ValueError("x" * 20_000_000),
    "hostile": HostileError,
    "cancelled": asyncio.CancelledError,
    "timeout": TimeoutError,
    "exit": lambda: SystemExit(3),
}


@dataclass
class FakeSink(BaseAdapter):
    """Keeps effects by wire key. `script` maps an idempotency key to what its calls do, one after
    the other; after the last, and for other keys, `default`.
    """

    policy: Any = "idempotent"
    can_lookup: bool = False
    in_flight: timedelta = timedelta(0)
    announces_sending: bool = True
    default: str = "ok"
    script: dict[str, list[str]] = field(default_factory=dict)
    slow: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    content: dict[str, str] = field(default_factory=dict)
    lookups: int = 0
    lookup_says: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    snapshot: Callable[[int], Snapshot | None] = lambda number: None
    on_call: Callable[[Any], Any] | None = None
    now: int = 0
    most: int = 0
    closed: int = 0

    async def deliver(self, claim: Any, context: Any) -> Any:
        steps = self.script.get(claim.idempotency_key)
        step = steps.pop(0) if steps else self.default
        if step == "unreachable":
            return Retryable("connect_failed")
        if step == "not_sent":
            raise NotSent("unavailable")
        if step == "no_slot":
            raise NotSent("not_started")
        if step == "boom_before":
            raise ValueError("canary")
        await context.sending()
        self.calls[context.wire_key] = self.calls.get(context.wire_key, 0) + 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.on_call is not None:
                await self.on_call(claim)
            if self.slow:
                await asyncio.sleep(self.slow)
            return self._answer(step, claim, context)
        finally:
            self.now -= 1

    def _answer(self, step: str, claim: Any, context: Any) -> Any:
        simple = {
            "busy": Retryable("unavailable"),
            "later": Retryable("rate_limited", timedelta(seconds=60)),
            "in_progress": Retryable("in_progress"),
            "refused": Permanent("rejected"),
            "other": Conflict(),
            "lost_request": Unknown("timeout"),
            "typo": Retryable("no such reason"),
            "garbage": {"status": "ok"},
            "nothing": None,
        }
        if step in simple:
            return simple[step]
        if step in BOOMS:
            error = BOOMS[step]()
            raise error
        key = context.wire_key
        known = self.content.get(key)
        if known is not None and self.policy == "idempotent":
            if known != claim.payload_json:
                return Conflict()
            return Duplicate(f"ref-{key[:8]}", self.snapshot(len(self.effects)))
        self.content[key] = claim.payload_json
        self.effects[key] = self.effects.get(key, 0) + 1
        if step == "lost_answer":
            return Unknown("timeout")
        if step == "boom_after":
            raise HostileError
        if step == "bad_reference":
            return Delivered("a\x00b")
        return Delivered(f"ref-{key[:8]}", self.snapshot(len(self.effects)))

    async def lookup(self, wire_key: str) -> Any:
        self.lookups += 1
        if self.lookup_says == "boom":
            raise HostileError
        if self.lookup_says == "garbage":
            return "found"
        if self.lookup_says or not self.can_lookup:
            return NotSure(self.lookup_says or "lookup_unsupported")
        if wire_key in self.effects:
            return Found(f"ref-{wire_key[:8]}", self.snapshot(len(self.effects)), **self.found)
        return Absent()

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Job:
    """A worker with its telemetry and log."""

    worker: Worker
    telemetry: Telemetry
    log: io.StringIO

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def counters(self) -> dict[str, int]:
        return counters(self.telemetry)


def job(
    database: Database | str,
    sink: Any,
    *,
    key: str = KEY,
    plan: Plan | None = None,
    runtime: Runtime | None = None,
    processor: Any = None,
    level: Any = "debug",
    role: str | None = "worker",
    connect: Any = None,
    **settings: Any,
) -> Job:
    """Make a worker; it claims once what is due unless `plan` says otherwise."""
    runtime = runtime or Runtime()
    log = io.StringIO()
    telemetry = Telemetry(key, topics=[TOPIC], level=level, stream=log)
    dsn = database if isinstance(database, str) else database.dsn(role)
    values = {"stats": 0.0, "drain": 5.0, "backoff": 0.02, "backoff_cap": 0.3, **settings}
    worker = Worker(
        WorkerSettings(**values),
        connect=connect or connector(dsn, key),
        processor=processor or AdapterProcessor(key, sink, telemetry, runtime),
        telemetry=telemetry,
        runtime=runtime,
        plan=plan or Once(),
    )
    canaries.watch("a worker's log", log.getvalue)
    canaries.watch("a worker's metrics", lambda: telemetry.render().decode())
    return Job(worker, telemetry, log)


async def run_once(database: Database, sink: Any, **options: Any) -> Job:
    """Deliver what is due now; fails unless the worker ends well."""
    made = job(database, sink, **options)
    async with asyncio.timeout(60):
        code = await made.worker.run()
    assert code is Exit.OK
    return made


def counters(telemetry: Telemetry) -> dict[str, int]:
    """Sums of the counters over topics and reasons."""
    sums = dict.fromkeys(COUNTERS, 0)
    for metric in telemetry.registry.collect():
        for sample in metric.samples:
            name = sample.name.removeprefix("trex_").removesuffix("_total")
            if sample.name.endswith("_total") and name in sums:
                sums[name] += int(sample.value)
    return sums


def rows(database: Database, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        return conn.execute(query, values).fetchall()


def books(database: Database, key: str = KEY) -> dict[str, int]:
    """What the tables say, under the counters' names; `open` is undelivered and not parked."""
    query = """
        select
            (select count(*) from trex.receipt where instance_key = %(k)s
                and not duplicate and confirmed_by <> 'operator') as delivered,
            (select count(*) from trex.receipt where instance_key = %(k)s and duplicate)
                as duplicate,
            (select count(*) from trex.outcome where instance_key = %(k)s
                and kind = 'retry' and state = 'deferred') as retried,
            (select count(*) from trex.outcome where instance_key = %(k)s
                and kind <> 'lease_expired'
                and (state = 'unknown' or (kind = 'unknown' and state = 'deferred'))) as unknown,
            (select count(*) from trex.outcome where instance_key = %(k)s and state = 'conflict')
                as conflict,
            (select count(*) from trex.outcome where instance_key = %(k)s and state = 'permanent')
                as permanent,
            (select count(*) from trex.outcome where instance_key = %(k)s
                and kind <> 'lease_expired' and state = 'dead_letter') as dead_lettered,
            (select count(*) from trex.outcome where instance_key = %(k)s and kind = 'released'
                and state = 'ready') as released,
            (select count(*) from trex.outcome where instance_key = %(k)s and kind = 'postponed'
                and state = 'deferred') as postponed
    """
    with psycopg.connect(database.dsn(), row_factory=dict_row) as conn:
        row = conn.execute(query, {"k": key}).fetchone()
    assert row is not None
    return row


def assert_counters_equal_rows(database: Database, *jobs: Job, key: str = KEY) -> None:
    """Counters of all workers together are the rows on the books."""
    sums: dict[str, int] = {}
    for one in jobs:
        for name, number in one.counters().items():
            sums[name] = sums.get(name, 0) + number
    found = books(database, key)
    assert {name: sums[name] for name in found} == found


def assert_sound(database: Database, key: str = KEY) -> None:
    """Invariants I1 to I3 and I6, asked of the tables."""
    bad = rows(
        database,
        """
        with ends as (
            select m.message_id, d.fence, coalesce(d.attempts, r.attempt) as attempts,
                d.lease_until is not null as open, d.message_id is not null as live,
                r.message_id is not null as done, r.fence as final,
                (select count(*) from trex.outcome o where o.instance_key = m.instance_key
                    and o.message_id = m.message_id) as outcomes,
                (select max(o.fence) from trex.outcome o where o.instance_key = m.instance_key
                    and o.message_id = m.message_id) as highest,
                coalesce(r.confirmed_by <> 'operator', false) as by_worker
            from trex.message m
            left join trex.delivery d using (instance_key, message_id)
            left join trex.receipt r using (instance_key, message_id)
            where m.instance_key = %s
        )
        select * from ends
        where live = done
            or attempts <> outcomes + by_worker::int + open::int
            or (done and by_worker and final <= coalesce(highest, 0))
        """,
        key,
    )
    assert bad == []


async def until(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    """Wait until a condition holds; fails after so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
