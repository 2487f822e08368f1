"""Producers and workers, each in a process of its own, through psycopg as in a service."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import psycopg
from psycopg.types.json import Jsonb

from bench.place import INSTANCE
from trex_client.model import Claim, Movement, Report
from trex_client.postgres import PostgresClient
from trex_client.worker.plans import Hints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEASE = timedelta(seconds=30)
PAD = "x" * 258
"""Makes a payload of about 300 bytes."""


def payload() -> dict[str, Any]:
    """What is enqueued: the time now, and padding."""
    return {"t": time.time(), "pad": PAD}


class Sink:
    """What workers received: a count and, if asked for, (received at, enqueued at) of each."""

    def __init__(self, *, timed: bool) -> None:
        self.count = 0
        self.events: list[tuple[float, float]] = []
        self._timed = timed

    def __call__(self, payloads: Sequence[str | dict[str, Any]]) -> None:
        self.count += len(payloads)
        if self._timed:
            now = time.time()
            for item in payloads:
                body = json.loads(item) if isinstance(item, str) else item
                self.events.append((now, body["t"]))


class Queue(Protocol):
    """What is measured: one connection's view of it."""

    def enqueue(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Add them in one transaction."""

    def round(self, limit: int, sink: Sink) -> bool:
        """Claim, hand to the sink, and finish up to `limit`; whether there were any."""

    def wait(self, seconds: float) -> None:
        """Sleep until there may be work."""


def _connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=1)


class Trex:
    """trex. `mode`: `two` calls for a batch (claim, then complete or record), or one `exchange`."""

    def __init__(self, dsn: str, mode: str = "two") -> None:
        self.conn = _connect(dsn)
        self._client = PostgresClient(self.conn, INSTANCE)
        self._worker = f"w-{os.getpid()}-{id(self)}"
        self._hints = Hints(time.monotonic())
        self._reports: list[Report] = []
        self._exchange = mode == "exchange"
        self._listening = False
        self._keys = 0

    def enqueue(self, bodies: Sequence[dict[str, Any]]) -> None:
        self._keys += len(bodies)
        keys = range(self._keys - len(bodies), self._keys)
        if len(bodies) == 1:
            self._client.enqueue("posting", f"{self._worker}-{keys[0]}", bodies[0])
        else:
            self._client.enqueue_many(
                [
                    Movement("posting", f"{self._worker}-{key}", body)
                    for key, body in zip(keys, bodies, strict=True)
                ]
            )

    def round(self, limit: int, sink: Sink) -> bool:
        start = time.monotonic()
        after, due_after = self._hints.next(start)
        claims: list[Claim]
        if self._exchange:
            answer = self._client.exchange(
                self._reports, self._worker, limit, after=after, due_after=due_after
            )
            claims = answer.claims
        else:
            claims = self._client.claim(self._worker, limit, after=after, due_after=due_after)
        self._hints.done(
            start, time.monotonic(), swept=after == 0, claims=claims, limit=limit, lease=LEASE
        )
        if claims:
            sink([claim.payload_json for claim in claims])
        if self._exchange:
            self._reports = [Report(c.message_id, c.fence, "completed") for c in claims]
        elif len(claims) == 1:
            self._client.complete(claims[0].message_id, claims[0].fence)
        elif claims:
            self._client.record([Report(c.message_id, c.fence, "completed") for c in claims])
        return bool(claims)

    def wait(self, seconds: float) -> None:
        if self._listening:
            next(iter(self.conn.notifies(timeout=seconds, stop_after=1)), None)
        else:
            # Claim once more before the first sleep: what was committed until now notified nobody.
            channel = self._client.listen(self._worker, timedelta(minutes=10))
            self.conn.execute(f"listen {channel}")
            self._listening = True


class Least:
    """The floor's table through psycopg, with NOTIFY from a trigger: no owner, no fence."""

    claim = (
        "update q set state = 1, lease = now() + '30 s' where id = any(array("
        "select id from q where state = 0 order by id limit %s for update skip locked)) "
        "returning id, payload"
    )
    wake = (
        "create or replace function q_wake() returns trigger language plpgsql as"
        " $$ begin perform pg_notify('q', ''); return null; end $$;"
        "create or replace trigger q_wake after insert on q execute function q_wake()"
    )

    def __init__(self, dsn: str) -> None:
        self.conn = _connect(dsn)
        self.conn.execute("listen q")

    def enqueue(self, bodies: Sequence[dict[str, Any]]) -> None:
        self.conn.execute(
            "insert into q (payload) select unnest(%s::jsonb[])", [[Jsonb(body) for body in bodies]]
        )

    def round(self, limit: int, sink: Sink) -> bool:
        rows = self.conn.execute(self.claim, [limit]).fetchall()
        sink([row[1] for row in rows])
        if rows:
            self.conn.execute("delete from q where id = any(%s)", [[row[0] for row in rows]])
        return bool(rows)

    def wait(self, seconds: float) -> None:
        next(iter(self.conn.notifies(timeout=seconds, stop_after=1)), None)


@dataclass
class Window:
    """What one process did between `start` and `end`."""

    count: int
    start: float
    end: float
    events: list[tuple[float, float]] = field(default_factory=list)


Open: TypeAlias = "Callable[[], Queue]"
Start: TypeAlias = "Callable[[], object]"


def consume(
    start: Start, opened: Open, limit: int, secs: float, *, until_empty: bool, timed: bool
) -> Window:
    """Work for so many seconds, or until a sweep finds nothing."""
    queue = opened()
    warm, sink = Sink(timed=False), Sink(timed=timed)
    if until_empty:
        for _ in range(3):
            queue.round(1, warm)
    start()
    begin = time.time()
    end = begin + secs
    now = begin
    while now < end:
        found = queue.round(limit, sink)
        now = time.time()
        if not found:
            if until_empty:
                break
            queue.wait(min(0.25, max(0.0, end - now)))
            now = time.time()
    return Window(sink.count, begin, now, sink.events)


def produce(start: Start, opened: Open, size: int, secs: float) -> Window:
    """Enqueue `size` messages in each transaction, as fast as it goes."""
    queue = opened()
    queue.enqueue([payload()] * size)
    start()
    begin = now = time.time()
    count = 0
    while now < begin + secs:
        queue.enqueue([payload()] * size)
        count += size
        now = time.time()
    return Window(count, begin, now)


def pace(start: Start, opened: Open, rate: int, secs: float) -> Window:
    """`rate` messages a second in ten bulk calls; with 0, single ones 20 to 60 ms apart."""
    queue = opened()
    start()
    begin = now = time.time()
    count = 0
    while now < begin + secs:
        if rate:
            due = int((now - begin) * rate) + rate // 10 - count
            if due > 0:
                queue.enqueue([payload() for _ in range(due)])
                count += due
            time.sleep(max(0.0, 0.1 - (time.time() - now)))
        else:
            queue.enqueue([payload()])
            count += 1
            time.sleep(random.uniform(0.02, 0.06))
        now = time.time()
    return Window(count, begin, now)


def together(jobs: Sequence[tuple[Callable[..., Window], dict[str, Any]]]) -> list[Window]:
    """Run each job in a process, released at once; the windows come in the order of the jobs."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(jobs))
    pipes, processes = [], []
    for function, arguments in jobs:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(theirs, barrier.wait, function, arguments))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    windows = []
    try:
        for pipe in pipes:
            with closing(pipe):
                window = pipe.recv()
            if isinstance(window, str):
                raise RuntimeError(window)
            windows.append(window)
    finally:
        for process in processes:
            process.join(1)
            if process.is_alive():
                process.kill()
                process.join()
    return windows


def _child(pipe: Any, start: Start, function: Callable[..., Window], arguments: Any) -> None:
    try:
        pipe.send(function(start, **arguments))
    except BaseException as error:
        pipe.send(repr(error))
        raise
    finally:
        pipe.close()


def rate(windows: Sequence[Window]) -> float:
    """Messages a second of windows that ran side by side."""
    return sum(w.count for w in windows) / (
        max(w.end for w in windows) - min(w.start for w in windows)
    )
