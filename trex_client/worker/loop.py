"""The worker: claim, deliver, record; many deliveries at once in one process.

One task, the pump, owns the connection that claims and records: each round trip records what has
ended and claims what there is room for. A second connection extends leases and marks messages sent,
a third waits for NOTIFY. Losing any of them loses nothing: outcomes are kept and reported again,
with the same fences.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from psycopg import sql

from trex_client.errors import (
    AccessDenied,
    DatabaseError,
    ImmutableFact,
    InvalidArgument,
    InvariantViolated,
    TrexError,
    WrongTransaction,
)
from trex_client.model import Claim, Exchange, Recorded, Report
from trex_client.telemetry import Alert, Event
from trex_client.worker.delivery import Held, Processor
from trex_client.worker.link import GaveUp, Link, Session
from trex_client.worker.plans import Hints, Once, Plan
from trex_client.worker.settings import Exit, Runtime, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trex_client.postgres import AsyncPostgresClient
    from trex_client.telemetry import Telemetry

_MOST_REPORTS = 1_000
_RATE_SHARE = 0.25
_MOST_PAUSED = 4
_PATIENCE = 3
_IDLE_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)
_LISTEN = timedelta(seconds=60)


class Worker:
    """One worker of one instance.

    Args:
        settings: see `WorkerSettings`.
        connect: makes a session; see `link.connector`.
        processor: what to do with a claim.
        telemetry: where to say what happened.
        runtime: clock, sleep and dice.
        plan: what to claim; for ever unless given.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        connect: Callable[[], Awaitable[Session]],
        processor: Processor,
        telemetry: Telemetry,
        runtime: Runtime | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.ready = False
        self._processor = processor
        self._telemetry = telemetry
        self._runtime = runtime or Runtime()
        self._plan = plan or Plan()
        self._now = self._runtime.monotonic
        self._pump_link = Link(connect, settings, telemetry, self._runtime, main=True)
        self._aux_link = Link(connect, settings, telemetry, self._runtime)
        self._listen_link = Link(connect, settings, telemetry, self._runtime)
        self._lease: timedelta
        self._hints = Hints(self._now())
        self._held: dict[tuple[int, int], Held] = {}
        self._waiting: deque[Held] = deque()
        self._ended: deque[tuple[Held | None, Report]] = deque()
        self._running = 0
        self._paused = 0
        self._event = asyncio.Event()
        self._idle = asyncio.Event()
        self._extending = asyncio.Lock()
        self._leaving = asyncio.Event()
        self._more = True
        self._idle_rounds = 0
        self._leave_at: float | None = None
        self._finished_starts: deque[float] = deque(maxlen=10_000)
        self._database_ahead = 0.0
        self._exit = Exit.OK

    # from outside

    def stop(self) -> None:
        """Drain: claim nothing more, give back what hasn't begun, let the rest end."""
        if self._leave_at is None:
            self._leave_at = self._now() + self.settings.drain
            self._telemetry.event(Event.DRAINING, in_flight=len(self._held))
            self._leaving.set()
            self._give_back_waiting("shutdown")
            self._event.set()

    @property
    def draining(self) -> bool:
        """Whether the worker is on its way out."""
        return self._leave_at is not None

    @property
    def connected(self) -> bool:
        """Whether the last call to the database was answered."""
        return self._pump_link.up

    @property
    def unanswered(self) -> float:
        """For how many seconds the database has owed an answer."""
        asked = self._pump_link.asked_at
        return 0.0 if asked is None else self._now() - asked

    @property
    def in_flight(self) -> int:
        """Claims held."""
        return len(self._held)

    async def run(self) -> Exit:
        """Work until the plan is over or `stop` is called; return why it ended."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._begin()
            tasks = [asyncio.create_task(self._extend_leases())]
            if self.settings.listen and not isinstance(self._plan, Once):
                tasks.append(asyncio.create_task(self._listen()))
            if self.settings.stats > 0:
                tasks.append(asyncio.create_task(self._read_stats()))
            await self._pump()
        except GaveUp:
            if not self.draining:
                self._exit = Exit.UNREACHABLE
        except AccessDenied:
            self._telemetry.alert(Alert.ACCESS_DENIED)
            self._exit = Exit.ACCESS_DENIED
        except (ImmutableFact, InvariantViolated):
            self._telemetry.alert(Alert.INVARIANT_VIOLATED)
            self._exit = Exit.INVARIANT
        except (WrongTransaction, InvalidArgument) as error:
            self._telemetry.event(Event.CALL_FAILED, "error", result=error.sqlstate)
            self._exit = Exit.USAGE
        finally:
            self.ready = False
            await self._end(tasks)
        return self._exit

    # start and end

    async def _begin(self) -> None:
        end = self._now() + self.settings.reach if self.settings.reach else float("inf")
        policy = await self._pump_link.call(
            lambda kernel: kernel.policy(), until=lambda: self.draining or self._now() >= end
        )
        self._lease = self.settings.lease or policy.lease_default
        if self._lease > policy.lease_max:
            raise InvalidArgument("lease")
        self.ready = True

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        deliveries = [held.task for held in self._held.values() if held.task is not None]
        for task in (*tasks, *deliveries):
            task.cancel()
        await asyncio.gather(*tasks, *deliveries, return_exceptions=True)
        if self._exit is Exit.OK and (self._ended or self._held):
            await self._last_words()
            if self._ended or self._held:
                self._exit = Exit.LEFT_IN_FLIGHT
        for link in (self._pump_link, self._aux_link, self._listen_link):
            await link.close()
        await self._processor.close()

    async def _last_words(self) -> None:
        """Once the time is up: report what is known, within two seconds."""
        end = self._now() + 2.0
        try:
            async with asyncio.timeout(3.0):
                while self._ended:
                    await self._round(0, end)
        except (TrexError, GaveUp, TimeoutError):
            pass

    def _must_go(self) -> bool:
        return self._leave_at is not None and self._now() >= self._leave_at

    # the pump

    async def _pump(self) -> None:
        while True:
            self._event.clear()
            if self.draining:
                # A round trip that was under way when the draining began may have brought claims.
                self._give_back_waiting("shutdown")
            self._start_waiting()
            if self._nothing_left():
                return
            if self._must_go():
                raise GaveUp
            room = self._room()
            if self._ended or room:
                started = self._now()
                await self._round(room)
                self._start_waiting()
                await self._linger(started)
                if self._more and self._room():
                    await asyncio.sleep(0)
                    continue
            if not self._ended:
                await self._runtime.wait(self._event, self._pause())
                if not self._event.is_set():
                    self._more = True

    def _nothing_left(self) -> bool:
        over = self.draining or self._plan.over
        return over and not self._held and not self._ended

    def _pause(self) -> float:
        if self.draining or self._plan.over:
            return 0.1
        if self._held:
            return min(self.settings.poll, 0.1)
        pauses = _IDLE_PAUSES
        self._idle_rounds += 1
        if self._idle_rounds >= 1:
            self._idle.set()
        number = self._idle_rounds - 1
        pause = pauses[number] if number < len(pauses) else self.settings.poll
        return min(pause, self.settings.poll)

    async def _linger(self, started: float) -> None:
        """While results come in one by one, leave time for some to gather."""
        if self._held and len(self._ended) < self.settings.batch:
            left = started + self.settings.linger - self._now()
            if left > 0:
                await self._runtime.sleep(left)

    def _room(self) -> int:
        """How many claims to ask for now; 0 is none."""
        if self.draining or self._plan.over or not (self._more or self._ended):
            return 0
        ahead = min(self.settings.prefetch, int(self._rate() * _RATE_SHARE))
        if len(self._waiting) > ahead // 2:
            return 0
        paused = min(self._paused, _MOST_PAUSED * self.settings.concurrency)
        room = self.settings.concurrency + ahead - (len(self._held) - paused)
        return self._plan.room(min(room, self.settings.batch)) if room > 0 else 0

    def _rate(self) -> float:
        """Deliveries ended per second, over the last second."""
        now, ends = self._now(), self._finished_starts
        while ends and ends[0] < now - 1.0:
            ends.popleft()
        if len(ends) == ends.maxlen:
            return len(ends) / max(now - ends[0], 0.001)
        return float(len(ends))

    async def _round(self, room: int, end: float | None = None) -> None:
        """One round trip: record what has ended, and claim up to `room`."""
        batch = self._next_batch()

        def until() -> bool:
            if end is not None:
                return self._now() > end
            return self._must_go() or (self.draining and not batch)

        reports = [report for _, report in batch]
        started = self._now()
        after, due_after = self._hints.next(started)
        if isinstance(self._plan, Once) and self._plan.sweep_next:
            after, due_after = 0, None
        asked = started

        async def trip(kernel: AsyncPostgresClient) -> Exchange:
            nonlocal asked
            asked = self._now()
            worker, lease, box = self._runtime.worker, self._lease, self.settings.box
            if self._plan.correlation_id is not None:
                recorded = await kernel.record(reports) if reports else []
                claims: list[Claim] = []
                if room:
                    asked = self._now()
                    claims = await kernel.claim(
                        worker,
                        room,
                        lease=lease,
                        box=box,
                        correlation_id=self._plan.correlation_id,
                    )
                return Exchange(recorded, claims)
            if not room:
                return Exchange(await kernel.record(reports), [])
            return await kernel.exchange(
                reports, worker, room, lease=lease, box=box, after=after, due_after=due_after
            )

        try:
            patience = _PATIENCE if reports else None
            answer = await self._pump_link.call(trip, until=until, patience=patience)
        except (InvalidArgument, DatabaseError):
            if not reports:
                raise
            await self._record_singly(batch, until)
            return
        except GaveUp:
            self._ended.extendleft(reversed(batch))
            if end is None and not self._must_go():
                return
            raise
        except BaseException:
            self._ended.extendleft(reversed(batch))
            raise
        ended = self._now()
        self._settle(batch, answer.recorded, ended)
        if reports:
            self._telemetry.observe("record", ended - asked)
        if room:
            self._telemetry.observe("claim", ended - asked)
            swept = self._plan.correlation_id is not None or (after == 0 and due_after is None)
            self._hints.done(
                asked,
                ended,
                swept=swept,
                claims=answer.claims,
                limit=room,
                lease=self._lease,
            )
            self._receive(answer.claims, asked, ended, swept=swept)
            # A run goes on at once until a sweep is empty, and then when something has ended.
            to_sweep = isinstance(self._plan, Once) and (bool(answer.claims) or not swept)
            self._more = len(answer.claims) >= room or to_sweep
        self._telemetry.holding(len(self._held))

    def _next_batch(self) -> list[tuple[Held | None, Report]]:
        """Take ended claims for one call: each message at most once, the rest stays."""
        batch: list[tuple[Held | None, Report]] = []
        later: list[tuple[Held | None, Report]] = []
        seen: set[int] = set()
        while self._ended and len(batch) < _MOST_REPORTS:
            entry = self._ended.popleft()
            if entry[1].message_id in seen:
                later.append(entry)
            else:
                seen.add(entry[1].message_id)
                batch.append(entry)
        self._ended.extendleft(reversed(later))
        return batch

    async def _record_singly(
        self, batch: list[tuple[Held | None, Report]], until: Callable[[], bool]
    ) -> None:
        """A report was refused: find it, so that it stops nobody else.

        What can be refused is a snapshot. The sink has taken the message, so it stays uncertain and
        is asked for again; if it is refused again then, the delivery is recorded without it. If
        that is refused too, the claim is left to its lease.
        """
        for number, (held, report) in enumerate(batch):
            instead = Report(report.message_id, report.fence, "unknown", reason="write_back_failed")
            if held is not None and held.claim.uncertain and report.balance is not None:
                instead = replace(report, balance=None, version=None)
            try:
                for tried in (report, instead):
                    try:
                        recorded = await self._record_one(tried, until)
                    except (InvalidArgument, DatabaseError):
                        self._telemetry.event(
                            Event.REPORT_REFUSED,
                            "error",
                            reason="write_back_failed",
                            message_id=report.message_id,
                        )
                        self._telemetry.alert(Alert.WRITE_BACK_FAILED, reason="write_back_failed")
                    else:
                        self._settle([(held, tried)], recorded, self._now())
                        break
                else:
                    if held is not None:
                        self._plan.ended(held.claim, "left")
            except BaseException:
                self._ended.extendleft(reversed(batch[number:]))
                raise

    async def _record_one(self, report: Report, until: Callable[[], bool]) -> list[Recorded]:
        return await self._pump_link.call(
            lambda kernel: kernel.record([report]), until=until, patience=_PATIENCE
        )

    def _settle(
        self,
        batch: Sequence[tuple[Held | None, Report]],
        recorded: Sequence[Recorded],
        now: float,
    ) -> None:
        """The commit is acknowledged: count and log what is on the books, and what was lost."""
        for (held, report), result in zip(batch, recorded, strict=True):
            if held is None:
                if result.status in {"recorded", "already_recorded"}:
                    self.counts["set_aside"] += 1
                continue
            self._settle_one(held, report, result, now)

    def _settle_one(self, held: Held, report: Report, result: Recorded, now: float) -> None:
        claim = held.claim
        if result.status in {"recorded", "already_recorded"}:
            name = self._telemetry.recorded(claim, report, result.state)
            self.counts[name] += 1
            self._plan.ended(claim, name)
            if report.reason == "consumer:none":
                self._telemetry.alert(Alert.NO_CONSUMER, reason=report.reason)
            if name in {"delivered", "duplicate"}:
                born = (claim.lease_until - self._lease - claim.enqueued_at).total_seconds()
                self._telemetry.observe("end_to_end", max(0.0, born + now - held.received))
        else:
            self._lose(held, result.status)

    def _lose(self, held: Held, status: str) -> None:
        """A lost claim: counted and said, and nothing else happens."""
        claim = held.claim
        self.counts["claim_lost"] += 1
        self._plan.ended(claim, "claim_lost")
        self._telemetry.count("claim_lost", claim, "lease_expired")
        self._telemetry.event(
            Event.CLAIM_LOST,
            "warning",
            result=status,
            topic=claim.topic,
            correlation=claim.correlation_id,
            message_id=claim.message_id,
            attempt=claim.attempt,
            fence=claim.fence,
        )
        self._telemetry.alert(Alert.CLAIM_LOST, message_id=claim.message_id)

    def _receive(self, claims: Sequence[Claim], asked: float, now: float, *, swept: bool) -> None:
        mine, back = self._plan.take(claims, swept=swept, now=now)
        self._ended.extend((None, report) for report in back)
        deadline = asked + self._lease.total_seconds()
        for claim in mine:
            held = Held(claim, received=now, deadline=deadline)
            self._held[held.key] = held
            self._waiting.append(held)
            self._telemetry.count("claimed", claim)
        if mine:
            self.counts["claimed"] += len(mine)
            self._idle_rounds = 0
            self._idle.clear()
            taken_at = mine[-1].lease_until - self._lease
            self._database_ahead = taken_at.timestamp() - self._runtime.wall()
            self._telemetry.event(Event.CLAIMED, "debug", count=len(mine))

    # deliveries

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self.settings.concurrency and not self.draining:
            held = self._waiting.popleft()
            if held.lost:
                self._drop(held)
            elif not self.may_send(held):
                self._finish(held, _released(held, "not_started"))
            else:
                self._running += 1
                held.started = self._now()
                held.task = asyncio.create_task(self._deliver(held))

    async def _deliver(self, held: Held) -> None:
        outcome: Report | Recorded | None = None
        try:
            outcome = await self._processor.process(held, self)
        except asyncio.CancelledError:
            # Leaving, or it took too long. What certainly hasn't left is given back. Otherwise a
            # call that took too long is unknown, and one cut off by leaving ends with its lease.
            context = held.context
            unsent = context is not None and not context.sent and not held.marked
            if unsent or held.overdue:
                outcome = Report(
                    held.claim.message_id,
                    held.claim.fence,
                    "unknown" if not unsent else "retry" if held.overdue else "released",
                    reason="timeout" if held.overdue else "shutdown",
                )
        except Exception:  # noqa: BLE001
            self._telemetry.event(Event.ADAPTER_FAILED, "error", reason="adapter_error")
            self._telemetry.alert(Alert.ADAPTER_FAILED, reason="adapter_error")
            outcome = Report(
                held.claim.message_id, held.claim.fence, "unknown", reason="adapter_error"
            )
        finally:
            held.task = None
            self._running -= 1
        now = self._now()
        self._telemetry.observe("deliver", now - held.started)
        self._finished_starts.append(now)
        if isinstance(outcome, Report):
            self._finish(held, outcome)
        elif outcome is not None:
            del self._held[held.key]
            delivered = outcome.state == "delivered"
            report = held.reported or Report(
                held.claim.message_id, held.claim.fence, "completed" if delivered else "retry"
            )
            self._settle_one(held, report, outcome, now)
        if self._waiting:
            self._start_waiting()
        self._event.set()

    def _finish(self, held: Held, report: Report) -> None:
        self._held.pop(held.key, None)
        self._ended.append((held, report))
        self._event.set()

    def _drop(self, held: Held) -> None:
        """A claim that was lost before its delivery began."""
        self._held.pop(held.key, None)
        self._lose(held, "claim_lost")

    def _give_back_waiting(self, reason: str) -> None:
        while self._waiting:
            held = self._waiting.popleft()
            if held.lost:
                self._drop(held)
            else:
                self._finish(held, _released(held, reason))

    # what a processor may ask

    def may_send(self, held: Held) -> bool:
        """Whether the lease still has a tenth of its time, at most a second, before it ends."""
        margin = min(1.0, 0.1 * self._lease.total_seconds())
        return not held.lost and self._now() < held.deadline - margin

    async def mark_sent(self, held: Held) -> bool:
        """Commit that this message is about to be sent; False when the claim is lost."""
        claim = held.claim
        try:
            result = await self._aux_link.call(
                lambda kernel: kernel.mark_sent(claim.message_id, claim.fence, on_lost="report"),
                until=lambda: not self.may_send(held) or self._must_go(),
            )
        except (GaveUp, TrexError):
            return False
        return result.status in {"recorded", "already_recorded"}

    async def will_hold(self, held: Held) -> None:
        """Leave this claim out of every extension that begins from now on."""
        async with self._extending:
            held.holding = True

    async def pause(self, held: Held, seconds: float) -> bool:
        """Wait without using up a delivery slot; False when the worker is leaving."""
        del held
        self._running -= 1
        self._paused += 1
        self._event.set()
        try:
            return not await self._runtime.wait(self._leaving, seconds)
        finally:
            self._running += 1
            self._paused -= 1

    # beside the pump

    async def _extend_leases(self) -> None:
        """Extend every lease that has used up 40 % of its time; end calls that take too long."""
        lease = self._lease.total_seconds()
        while True:
            await self._runtime.sleep(lease / 10)
            now = self._now()
            # A call that outlived its lease may still be held when its message is claimed again.
            newest = {held.claim.message_id: held for held in self._held.values()}
            old: list[Held] = []
            for held in self._held.values():
                held.lost = held.lost or newest[held.claim.message_id] is not held
                if held.task is not None and now - held.started > self.settings.longest_call:
                    held.overdue = True
                    held.task.cancel()
                elif not (held.lost or held.holding) and held.deadline - now < 0.6 * lease:
                    old.append(held)
            for start in range(0, len(old), 500):
                await self._extend(old[start : start + 500])

    async def _extend(self, held: list[Held]) -> None:
        asked = self._now()
        last = max(one.deadline for one in held)
        try:

            async def extend(kernel: AsyncPostgresClient) -> list[tuple[int, int, str]]:
                nonlocal asked
                async with self._extending:
                    free = [one for one in held if not one.holding]
                    if not free:
                        return []
                    asked = self._now()
                    answer = await kernel.extend(
                        [one.claim.message_id for one in free],
                        [one.claim.fence for one in free],
                        lease=self._lease,
                    )
                return [(row.message_id, row.fence, row.status) for row in answer]

            rows = await self._aux_link.call(extend, until=lambda: self._now() > last)
        except (GaveUp, TrexError):
            return
        by_key = {one.key: one for one in held}
        for message_id, fence, status in rows:
            one = by_key[message_id, fence]
            if status == "extended":
                one.deadline = max(one.deadline, asked + self._lease.total_seconds())
            elif status != "ended_otherwise":
                one.lost = True

    async def _listen(self) -> None:
        """While idle: a listener row, LISTEN, one more claim, then wait to be woken."""
        while True:
            await self._idle.wait()
            try:
                await self._listen_link.run(self._listen_while_idle)
            except (GaveUp, TrexError):
                await self._runtime.sleep(1.0)

    async def _listen_while_idle(self, session: Session) -> None:
        worker = self._runtime.worker
        channel = await session.kernel.listen(worker, _LISTEN)
        await session.conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._wake()
        renew_at = self._now() + _LISTEN.total_seconds() / 2
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        descriptor = session.conn.fileno()
        loop.add_reader(descriptor, heard.set)
        try:
            while self._idle.is_set() and self._now() < renew_at:
                if await self._runtime.wait(heard, 1.0):
                    heard.clear()
                    session.conn.pgconn.consume_input()
                    while session.conn.pgconn.notifies() is not None:
                        pass
                    self._wake()
        finally:
            loop.remove_reader(descriptor)
        if not self._idle.is_set():
            await session.kernel.unlisten(worker)

    def _wake(self) -> None:
        self._more = True
        self._event.set()

    async def _read_stats(self) -> None:
        while True:
            try:
                stats = await self._aux_link.call(
                    lambda kernel: kernel.stats(box=self.settings.box, cap=10_000)
                )
                cash = await self._aux_link.call(lambda kernel: kernel.pending_cash_delta())
            except TrexError:
                await self._runtime.sleep(self.settings.stats)
                continue
            age = 0.0
            if stats.oldest_due_at is not None:
                now = datetime.fromtimestamp(self._runtime.wall() + self._database_ahead, UTC)
                age = (now - stats.oldest_due_at).total_seconds()
            self._telemetry.stats(stats, sum(row.entries for row in cash), age)
            await self._runtime.sleep(self.settings.stats)


def _released(held: Held, reason: str) -> Report:
    return Report(held.claim.message_id, held.claim.fence, "released", reason=reason)
