"""A worker on a clock of its own, whose database answers late: what it may count on is what the
database has committed, from the moment at which it was asked, and not from the answer."""

from __future__ import annotations

import asyncio
import io
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_time import on_fake_time
from tests.support.rig import KEY, TOPIC, FakeSink
from trex_client.memory import Clock, MemoryClient, MemoryDatabase
from trex_client.model import Extended, Report
from trex_client.telemetry import Telemetry
from trex_client.testing import make_claim
from trex_client.worker import AdapterProcessor, Exit, Held, Plan, Runtime, Worker, WorkerSettings
from trex_client.worker.link import Session
from trex_client.worker.plans import Once

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.criterion("ac-0046")
LEASE = 10.0
START = datetime(2030, 1, 1, tzinfo=UTC)
NEVER = 10_000.0


@dataclass
class Database:
    """An in-memory model on the loop's clock. Calls are done at once; `takes` says how many seconds
    the answer to the n-th call of a name is on its way."""

    takes: Callable[[str, int], float] = lambda name, number: 0.0
    calls: list[tuple[float, str, tuple[Any, ...]]] = field(default_factory=list)
    looked: list[tuple[int, datetime | None]] = field(default_factory=list)
    under_way: list[set[int]] = field(default_factory=list)
    on_listen: Callable[[], object] = lambda: None
    answers: dict[int, str] = field(default_factory=dict)
    ahead: float = 0.0
    notify: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.clock = Clock(START)
        self.db = MemoryDatabase(self.clock)
        self.client = MemoryClient(self.db, KEY)
        self.client.register_instance(actor="t", reason="t", lease_default=timedelta(seconds=LEASE))
        self.client.bind("app", actor="t", reason="t")

    def at(self) -> float:
        now = asyncio.get_running_loop().time()
        self.clock.advance(START + timedelta(seconds=now + self.ahead) - self.clock())
        return now

    def times(self, name: str) -> list[float]:
        return [at for at, called, _ in self.calls if called == name]

    def enqueue(self, number: int) -> list[int]:
        return [
            self.client.enqueue(TOPIC, f"k{n}", payload_json="{}").message_id for n in range(number)
        ]

    def is_leased(self, claim: Any) -> bool:
        row = self.db.delivery[KEY, claim.message_id]
        assert row.lease_until is not None
        return row.fence == claim.fence and self.clock() < row.lease_until

    async def _extend(self, ids: list[int], fences: list[int], **rest: Any) -> list[Extended]:
        self.under_way.append(set(ids))
        answer = self.client.extend(ids, fences, **rest)
        await asyncio.sleep(self.takes("extend", len(self.times("extend"))))
        self.under_way.remove(set(ids))
        return [
            Extended(row.message_id, row.fence, self.answers[row.message_id], None)  # type: ignore[arg-type]
            if row.message_id in self.answers
            else row
            for row in answer
        ]

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **rest: Any) -> Any:
            self.calls.append((self.at(), name, args))
            if name == "exchange":
                self.looked.append((rest["after"], rest["due_after"]))
            if name == "extend":
                return await self._extend(*args, **rest)
            answer = getattr(self.client, name)(*args, **rest)
            await asyncio.sleep(self.takes(name, len(self.times(name))))
            return answer

        return call

    async def connect(self) -> Session:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        async def execute(query: Any) -> None:
            del query
            self.at()
            await asyncio.sleep(self.takes("LISTEN", 1))
            self.on_listen()

        async def close() -> None:
            ours.close()
            theirs.close()

        waiting: list[bytes] = []

        def consume_input() -> None:
            with suppress(BlockingIOError):
                waiting.append(ours.recv(100))

        pgconn = SimpleNamespace(
            finish=ours.close,
            consume_input=consume_input,
            notifies=lambda: waiting.pop() if waiting else None,
        )
        self.notify = lambda: theirs.send(b"!")
        conn = SimpleNamespace(fileno=ours.fileno, execute=execute, close=close, pgconn=pgconn)
        return Session(conn, self)  # type: ignore[arg-type]


class Sink(FakeSink):
    """Calls take as long as `lasts` says, by message; nothing may come without a lease."""

    def __init__(self, database: Database, lasts: dict[int, float]) -> None:
        super().__init__()
        self.database = database
        self.lasts = lasts
        self.sent: dict[int, float] = {}

    async def deliver(self, claim: Any, context: Any) -> Any:
        await context.sending()
        now = self.database.at()
        assert self.database.is_leased(claim), "sent without a lease"
        self.sent[claim.message_id] = now
        await asyncio.sleep(self.lasts.get(claim.message_id, 0.1))
        return self._answer("ok", claim, context)


def worker_on(
    database: Database, sink: FakeSink, *, plan: Plan | None = None, processor: Any = None,
    **settings: Any,
) -> Worker:  # fmt: skip
    loop = asyncio.get_running_loop()
    telemetry = Telemetry(KEY, topics=[TOPIC], stream=io.StringIO())
    runtime = Runtime(monotonic=loop.time, wall=lambda: 1e6 + loop.time(), random=lambda: 0.5)
    values = {
        "lease": timedelta(seconds=LEASE), "stats": 0.0, "concurrency": 1, "listen": False,
        "call_timeout": NEVER, **settings,
    }  # fmt: skip
    worker = Worker(
        WorkerSettings(**values), connect=database.connect, telemetry=telemetry, runtime=runtime,
        processor=processor or AdapterProcessor(KEY, sink, telemetry, runtime),
        plan=plan or Once(),
    )  # fmt: skip
    # All messages in the first claim, whatever there is room for.
    worker._room = lambda: 0 if worker.draining or worker._held else 10  # type: ignore[method-assign]
    return worker


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.1)


def test_a_lease_counts_from_the_question() -> None:
    """The claim's answer takes most of the lease, and no extension is ever answered or done."""

    async def play() -> None:
        database = Database(lambda name, n: {"exchange": 0.8 * LEASE}.get(name, 0.0))
        first, second = database.enqueue(2)
        sink = Sink(database, {first: 3.0})
        worker = worker_on(database, sink)

        async def hang(*_: Any, **__: Any) -> None:
            await asyncio.sleep(NEVER)

        database._extend = hang  # type: ignore[assignment, method-assign]
        running = asyncio.create_task(worker.run())
        await _until(lambda: worker.counts["released"] or second in sink.sent)
        worker.stop()
        await running
        assert worker.counts["released"] >= 1
        # In time, and after the lease: by the answer's clock both would have been.
        assert sink.sent[first] == pytest.approx(0.8 * LEASE)

    on_fake_time(play())


def test_an_extension_counts_from_the_question() -> None:
    """The first extension's answer takes most of the lease; the second is never done."""

    async def play() -> None:
        database = Database(lambda name, n: 0.8 * LEASE if name == "extend" else 0.0)
        first, second = database.enqueue(2)
        extend = database._extend

        async def once(*args: Any, **rest: Any) -> Any:
            if len(database.times("extend")) > 1:
                await asyncio.sleep(NEVER)
            return await extend(*args, **rest)

        database._extend = once  # type: ignore[method-assign]
        sink = Sink(database, {first: 1.6 * LEASE})
        worker = worker_on(database, sink)
        running = asyncio.create_task(worker.run())
        await _until(lambda: worker.counts["released"] or second in sink.sent)
        worker.stop()
        await running
        assert worker.counts["released"] == 1
        asked = database.times("extend")[0]
        assert asked < 0.6 * LEASE
        # It was answered before the first call ended, and counted from its question.
        assert asked + 0.8 * LEASE < 1.6 * LEASE < asked + 1.8 * LEASE

    on_fake_time(play())


def test_slow_extensions_keep_what_they_can() -> None:
    """A claim that every extension reaches in time is never given up, however slow the answers."""

    async def play() -> None:
        database = Database(lambda name, n: 0.3 * LEASE if name == "extend" else 0.0)
        first, second = database.enqueue(2)
        sink = Sink(database, {first: 5 * LEASE})
        worker = worker_on(database, sink)
        assert await worker.run() is Exit.OK
        assert worker.counts["delivered"] == 2
        assert sink.sent[second] >= 5 * LEASE
        assert worker.counts["released"] == worker.counts["claim_lost"] == 0

    on_fake_time(play())


@pytest.mark.parametrize(("answer", "lost"), [("claim_lost", True), ("ended_otherwise", False)])
def test_what_an_extension_says_of_a_claim(answer: str, lost: bool) -> None:
    """A lost claim that waits isn't sent, although the lease that was promised isn't over; one that
    was ended by its own processor isn't lost."""

    async def play() -> None:
        database = Database()
        first, second = database.enqueue(2)
        database.answers[second] = answer
        sink = Sink(database, {first: 0.7 * LEASE})
        worker = worker_on(database, sink)
        running = asyncio.create_task(worker.run())
        await _until(lambda: database.times("extend"))
        assert worker._held[second, database.db.delivery[KEY, second].fence].lost is lost
        await _until(lambda: first not in {one for one, _ in worker._held})
        await _until(lambda: worker.counts["claim_lost"] or second in sink.sent)
        worker.stop()
        await running
        assert (second in sink.sent) is not lost
        assert worker.counts["claim_lost"] == lost
        labels = {"trex_instance": KEY, "alert": "claim_lost"}
        assert worker._telemetry.registry.get_sample_value("trex_alerts_total", labels) == lost

    on_fake_time(play())


def test_will_hold_waits_for_the_extension_under_way() -> None:
    """Its call would wait for the row's lock, which is taken next."""

    async def play() -> None:
        database = Database(lambda name, n: 2.0 if name == "extend" else 0.0)
        (only,) = database.enqueue(1)
        seen: list[list[set[int]]] = []

        class Holding:
            async def process(self, held: Any, desk: Any) -> Report:
                await _until(lambda: database.under_way)
                await desk.will_hold(held)
                seen.append(list(database.under_way))
                asked = len(database.times("extend"))
                await asyncio.sleep(LEASE)
                assert len(database.times("extend")) == asked
                return Report(only, held.claim.fence, "completed")

            async def close(self) -> None:
                pass

        worker = worker_on(database, FakeSink(), processor=Holding())
        assert await worker.run() is Exit.OK
        assert seen == [[]]
        assert worker.counts["delivered"] == 1

    on_fake_time(play())


def test_what_was_committed_just_before_listen_is_found() -> None:
    """After the last claim that found nothing, before LISTEN: nobody notifies of it."""

    async def play() -> None:
        database = Database(lambda name, n: 5.0 if name == "LISTEN" else 0.0)
        database.on_listen = lambda: database.enqueue(1)
        sink = Sink(database, {})
        worker = worker_on(database, sink, plan=Plan(), listen=True, poll=30.0)
        running = asyncio.create_task(worker.run())
        await _until(lambda: sink.sent)
        (sent,) = sink.sent.values()
        assert sent == pytest.approx(5.0, abs=0.5)
        worker.stop()
        assert await running is Exit.OK

    on_fake_time(play())


def test_an_idle_worker_stays_listed_as_a_listener() -> None:
    """It is notified only while its row of the table of listeners is valid."""

    async def play() -> None:
        database = Database()
        worker = worker_on(database, Sink(database, {}), plan=Plan(), listen=True, poll=30.0)
        running = asyncio.create_task(worker.run())
        await _until(lambda: database.times("listen"))
        (key,) = database.db.listener
        for _ in range(300):
            await asyncio.sleep(1.0)
            database.at()
            assert database.db.listener[key].until > database.clock()
        assert 5 <= len(database.times("listen")) <= 12
        worker.stop()
        assert await running is Exit.OK

    on_fake_time(play())


def test_a_notification_wakes_an_idle_worker_each_time() -> None:
    async def play() -> None:
        database = Database()
        sink = Sink(database, dict.fromkeys(range(1, 4), 3.0))
        worker = worker_on(database, sink, plan=Plan(), listen=True, poll=300.0)
        running = asyncio.create_task(worker.run())
        for number in range(1, 4):
            await _until(lambda: database.db.listener)
            await asyncio.sleep(20.0)
            ids = [database.client.enqueue(TOPIC, f"n{number}", payload_json="{}").message_id]
            asked, now = len(database.times("exchange")), database.at()
            database.notify()
            await _until(lambda ids=ids: ids[0] in sink.sent)  # type: ignore[misc]
            assert sink.sent[ids[0]] == pytest.approx(now, abs=0.1)
            # At work it isn't listed, and asks often; idle again, it is, and doesn't.
            await _until(lambda: not database.db.listener)
            assert database.at() < now + 3.0
            await _until(lambda: database.db.listener)
            assert 4 <= len(database.times("exchange")) - asked <= 20
        worker.stop()
        assert await running is Exit.OK
        assert worker.counts["claimed"] == 3

    on_fake_time(play())


def test_a_call_that_takes_too_long_is_ended_and_the_next_begins() -> None:
    async def play() -> None:
        database = Database()
        first, second = database.enqueue(2)
        sink = Sink(database, {first: 100.0, second: 2 * LEASE})
        worker = worker_on(database, sink, longest_call=2.5 * LEASE)
        running = asyncio.create_task(worker.run())
        await _until(lambda: second in sink.sent)
        assert 2.5 * LEASE < sink.sent[second] < 2.8 * LEASE
        await _until(lambda: worker.counts["delivered"])
        (outcome,) = database.db.outcome.values()
        assert (outcome.message_id, outcome.kind, outcome.reason) == (first, "unknown", "timeout")
        worker.stop()
        await running

    on_fake_time(play())


def test_of_two_claims_of_a_message_only_the_newest_is_extended() -> None:
    """The database's clock jumps: the message is claimed again while its call is under way."""

    async def play() -> None:
        database = Database()
        (only,) = database.enqueue(1)
        sink = Sink(database, {only: 3 * LEASE})
        worker = worker_on(database, sink, plan=Plan(), concurrency=2, poll=0.5)
        worker._room = lambda: 0 if worker.draining else 1  # type: ignore[method-assign]
        running = asyncio.create_task(worker.run())
        await _until(lambda: sink.sent)
        database.ahead = 2 * LEASE
        await _until(lambda: len(worker._held) == 2)
        old, new = sorted(worker._held.values(), key=lambda held: held.claim.fence)
        await asyncio.sleep(2 * LEASE)
        assert (old.lost, new.lost) == (True, False)
        asked = [args for _, name, args in database.calls if name == "extend"]
        assert len(asked) >= 2
        assert all(args == ([only], [new.claim.fence]) for args in asked[1:])
        await _until(lambda: not database.db.delivery)
        worker.stop()
        assert await running is Exit.OK
        assert (worker.counts["claim_lost"], worker.counts["duplicate"]) == (1, 1)

    on_fake_time(play())


@pytest.mark.parametrize(("lease", "margin"), [(0.5, 0.05), (2.0, 0.2), (10.0, 1.0), (60.0, 1.0)])
def test_nothing_begins_in_the_last_tenth_of_a_lease(lease: float, margin: float) -> None:
    async def play() -> None:
        worker = worker_on(Database(), FakeSink(), lease=timedelta(seconds=lease))
        worker._lease = timedelta(seconds=lease)
        held = Held(make_claim(), received=0.0, deadline=lease)
        await asyncio.sleep(lease - 1.01 * margin)
        assert worker.may_send(held)
        await asyncio.sleep(0.02 * margin)
        assert not worker.may_send(held)
        held.deadline = NEVER
        assert worker.may_send(held)
        held.lost = True
        assert not worker.may_send(held)

    on_fake_time(play())


def test_a_delivery_that_waits_gives_its_slot_away_and_takes_it_again() -> None:
    """One slot: the next begins during the pause, and none is lost or won by it."""

    async def play() -> None:
        database = Database()
        ids = database.enqueue(4)
        begun: dict[int, float] = {}
        running: list[int] = []

        class Pausing:
            async def process(self, held: Any, desk: Any) -> Report:
                begun[held.claim.message_id] = database.at()
                running.append(worker._running)
                if len(begun) == 1:
                    assert await desk.pause(held, 3.0)
                    running.append(worker._running)
                await asyncio.sleep(1.0)
                return Report(held.claim.message_id, held.claim.fence, "completed")

            async def close(self) -> None:
                pass

        worker = worker_on(database, FakeSink(), processor=Pausing(), linger=0.0)
        worker._room = lambda: 0 if worker.draining else 10  # type: ignore[method-assign]
        assert await worker.run() is Exit.OK
        assert worker.counts["delivered"] == 4
        assert (worker._running, worker._paused) == (0, 0)
        assert [begun[one] for one in ids] == pytest.approx([0.0, 0.0, 1.0, 2.0], abs=0.2)
        # After its pause the first one goes on at once, beside whoever has the slot by then.
        assert running in ([1, 1, 1, 1, 1], [1, 1, 1, 2, 1], [1, 1, 1, 1, 2])

    on_fake_time(play())


def test_a_pause_ends_when_the_worker_leaves() -> None:
    async def play() -> None:
        database = Database()
        (only,) = database.enqueue(1)
        stayed: list[bool] = []

        class Pausing:
            async def process(self, held: Any, desk: Any) -> Report:
                stayed.append(await desk.pause(held, 8.0))
                return Report(only, held.claim.fence, "unknown", reason="shutdown")

            async def close(self) -> None:
                pass

        worker = worker_on(database, FakeSink(), processor=Pausing(), plan=Plan())
        running = asyncio.create_task(worker.run())
        await _until(lambda: worker._paused)
        worker.stop()
        assert await running is Exit.OK
        assert stayed == [False]
        assert database.at() < 1.0
        assert worker.counts["unknown"] == 1

    on_fake_time(play())


def test_a_claim_goes_on_where_the_last_one_ended() -> None:
    """And a sweep looks at everything, once a second."""

    async def play() -> None:
        database = Database()
        ids = database.enqueue(3)
        worker = worker_on(database, Sink(database, {}), plan=Plan(), concurrency=5, poll=0.1)
        worker._room = lambda: 0 if worker.draining else 5  # type: ignore[method-assign]
        assert not worker.ready
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.9)
        assert worker.ready
        assert database.looked[0] == (0, None)
        # Nothing else was due when these were claimed; a little earlier is safe.
        assert database.looked[-1] == (max(ids), START - timedelta(seconds=0.2))
        await asyncio.sleep(3.0)
        assert 3 <= database.looked.count((0, None)) <= 5
        worker.stop()
        assert await running is Exit.OK
        assert not worker.ready
        value = worker._telemetry.registry.get_sample_value
        spans = {
            name: value(f"trex_{name}_seconds_count", {"trex_instance": KEY})
            for name in ("claim", "deliver", "record", "end_to_end")
        }
        asked = len(database.looked)
        assert spans == {"claim": asked, "deliver": 3, "record": spans["record"], "end_to_end": 3}
        assert 1 <= spans["record"] <= 3

    on_fake_time(play())


def test_what_a_run_of_one_topic_meets_of_others_is_put_back() -> None:
    async def play() -> None:
        database = Database()
        (mine,) = database.enqueue(1)
        others = [
            database.client.enqueue("other", f"o{n}", payload_json="{}").message_id for n in "ab"
        ]
        plan = Once(topic=TOPIC, started=-7.0)
        worker = worker_on(database, Sink(database, {}), plan=plan)
        assert await worker.run() is Exit.OK
        assert (worker.counts["delivered"], worker.counts["set_aside"]) == (1, 2)
        ended = {row.message_id: row.kind for row in database.db.outcome.values()}
        assert ended == dict.fromkeys(others, "postponed")
        assert (KEY, mine) in database.db.receipt
        for one in others:
            until = database.db.delivery[KEY, one].deferred_until
            assert until is not None
            assert (until - START).total_seconds() == pytest.approx(14.0, abs=0.1)

    on_fake_time(play())


@dataclass
class Ends:
    """A processor that ends every claim in one way: a report for the worker, an exception, or a
    call of its own, as a handler's."""

    client: MemoryClient
    how: str
    fields: dict[str, Any] = field(default_factory=dict)

    async def process(self, held: Any, desk: Any) -> Any:
        del desk
        claim = held.claim
        if self.how == "raises":
            raise RuntimeError("canary")
        if self.how.startswith("own "):
            end = getattr(self.client, self.how.removeprefix("own "))
            return end(claim.message_id, claim.fence, **self.fields)
        return Report(claim.message_id, claim.fence, self.how, **self.fields)  # type: ignore[arg-type]

    async def close(self) -> None:
        pass


WAIT = {"delay": timedelta(hours=1)}
SAID = [
    # how it ends; counter; what else is said: metrics that are 1
    (("raises", {}), "unknown", ["unknown adapter_error", "alert adapter_failed"]),
    (("completed", {}), "delivered", ["delivered"]),
    (("duplicate", {}), "duplicate", ["duplicate"]),
    (("retry", {"reason": "timeout", **WAIT}), "retried", ["retried timeout"]),
    (
        ("postponed", {"reason": "consumer:none", **WAIT}), "postponed",
        ["alert no_consumer", "postponed consumer:none"],
    ),
    (("postponed", {"reason": "waiting", **WAIT}), "postponed", ["postponed waiting"]),
    (("own complete", {}), "delivered", ["delivered"]),
    (("own retry", {"reason": "timeout", **WAIT}), "retried", ["retried unspecified"]),
]  # fmt: skip


@pytest.mark.parametrize(("ends", "counter", "said"), SAID, ids=[how for (how, _), *_ in SAID])
def test_what_is_said_of_an_end(ends: Any, counter: str, said: list[str]) -> None:
    async def play() -> None:
        database = Database()
        database.enqueue(1)
        processor = Ends(database.client, *ends)
        worker = worker_on(database, FakeSink(), processor=processor)
        assert await worker.run() is Exit.OK
        assert worker.counts == {"claimed": 1, counter: 1}
        found = set()
        for metric in worker._telemetry.registry.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total") and sample.value:
                    labels = sample.labels
                    name = sample.name.removeprefix("trex_").removesuffix("_total")
                    words = ("alert", labels["alert"]) if "alert" in labels else (
                        name, labels.get("reason", ""))  # fmt: skip
                    found.add(" ".join(words).strip())
        assert found - {"claimed"} == set(said)

    on_fake_time(play())


def test_what_is_fetched_ahead_follows_the_rate_of_the_last_second() -> None:
    async def play() -> None:
        worker = worker_on(Database(), FakeSink(), concurrency=4, prefetch=1000, batch=1000)
        room = type(worker)._room
        await asyncio.sleep(100.0)
        assert room(worker) == 4
        ends = worker._finished_starts
        ends.extend([98.9] * 50 + [99.1] * 60 + [100.0] * 20)
        # 80 in the last second, a quarter of it ahead.
        assert (worker._rate(), room(worker)) == (80.0, 24)
        ends.extend([99.5] * 5_000 + [100.0] * 5_000)
        # The record is full after half a second: so twice as many in a whole one.
        assert (len(ends), worker._rate()) == (10_000, 20_000.0)
        assert room(worker) == 1000
        worker._more = False
        assert room(worker) == 0
        worker._paused, worker._more = 100, True
        ends.clear()
        held = Held(make_claim(), received=0.0, deadline=NEVER)
        worker._held = {(n, n): held for n in range(17)}
        # Of those that pause, four times the slots don't count.
        assert room(worker) == 3

    on_fake_time(play())


def test_the_age_of_the_oldest_is_by_the_clock_of_the_database() -> None:
    """Which here is sixty years ahead of the worker's."""

    async def play() -> None:
        database = Database()
        sink = Sink(database, {1: 9.0})
        database.at()
        database.enqueue(2)
        worker = worker_on(database, sink, stats=4.0, plan=Plan())
        worker._room = lambda: 0 if worker.draining or worker._held else 1  # type: ignore[method-assign]
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(8.5)
        age = worker._telemetry.oldest_due.labels(KEY, "outbox")._value.get()
        assert age == pytest.approx(8.0, abs=0.1)
        worker.stop()
        assert await running is Exit.OK

    on_fake_time(play())
