"""One connection that is made again after every loss: when, how often, and what is said of it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.fake_time import on_fake_time
from trex_client.errors import (
    AccessDenied,
    CommitUnknown,
    DatabaseError,
    ImmutableFact,
    InvalidArgument,
    InvariantViolated,
    NotFound,
    NotPrimary,
    SerializationFailure,
    WrongTransaction,
)
from trex_client.telemetry import Alert, Event
from trex_client.worker import Runtime, WorkerSettings
from trex_client.worker.link import GaveUp, Link, Session, result_of, sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

pytestmark = pytest.mark.criterion("ac-0046")


@dataclass
class World:
    """A server that answers as told, its clock, and what was said of it.

    `connects` and `answers` are taken in order: an error is raised, a number takes so many seconds;
    afterwards all goes well.
    """

    connects: list[Any] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    closing: float = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def link(self, *, main: bool = True, **settings: Any) -> Link:
        loop = asyncio.get_running_loop()
        runtime = Runtime(monotonic=loop.time, wall=loop.time, random=lambda: 0.5)
        return Link(self.connect, WorkerSettings(**settings), self, runtime, main=main)  # type: ignore[arg-type]

    async def connect(self) -> Session:
        self.opened.append(self.now())
        await self._next(self.connects)
        number = len(self.opened)

        async def close() -> None:
            await asyncio.sleep(self.closing)
            self.closed.append(number)

        pgconn = SimpleNamespace(finish=lambda: self.dropped.append(number))
        return Session(SimpleNamespace(pgconn=pgconn, close=close), number)  # type: ignore[arg-type]

    async def operation(self, kernel: Any) -> Any:
        self.asked.append(self.now())
        await self._next(self.answers)
        return kernel

    async def _next(self, script: list[Any]) -> None:
        step = script.pop(0) if script else 0.0
        if isinstance(step, BaseException):
            raise step
        await asyncio.sleep(step)

    def is_connected(self, box: str, *, connected: bool) -> None:
        assert box == "outbox"
        self.said.append(connected)

    def event(self, event: Event, level: str = "info", **fields: Any) -> None:
        self.said.append((event, level, fields))

    def alert(self, alert: Alert, **fields: Any) -> None:
        self.said.append((alert, fields))


def lost(attempt: int, result: str = "database_error") -> Any:
    return (Event.CONNECTION_LOST, "warning", {"result": result, "connection_attempt": attempt})


def failed(attempt: int, result: str = "database_error") -> Any:
    return (Event.CONNECT_FAILED, "warning", {"result": result, "connection_attempt": attempt})


def gaps(times: Iterable[float]) -> list[float]:
    return [round(b - a, 3) for a, b in itertools.pairwise(times)]


def play(test: Callable[[World], Any]) -> World:
    world = World()
    on_fake_time(test(world))
    return world


def test_the_first_answer_is_said_once_and_the_connection_is_kept() -> None:
    async def test(world: World) -> None:
        link = world.link()
        assert not link.up
        world.answers = [2.0]
        call = asyncio.create_task(link.call(world.operation))
        await asyncio.sleep(1.0)
        assert link.asked_at == 0.0
        assert await call == 1
        assert link.up
        assert link.asked_at is None
        assert await link.call(world.operation) == 1
        assert world.said == [True, (Event.CONNECTED, "info", {})]
        await link.close()
        await link.close()
        assert (world.closed, world.dropped) == ([1], [])

    play(test)


def test_pauses_double_up_to_the_cap_and_begin_anew_after_an_answer() -> None:
    async def test(world: World) -> None:
        link = world.link(backoff=0.1, backoff_cap=1.0)
        world.connects = [OSError() for _ in range(6)]
        await link.call(world.operation)
        # 0.1 s, doubled up to the cap, and half of it by chance: here three quarters of it.
        assert gaps(world.opened) == [0.075, 0.15, 0.3, 0.6, 0.75, 0.75]
        said = [line for n in range(1, 7) for line in (False, failed(n))]
        assert world.said == [*said, True, (Event.CONNECTED, "info", {})]
        world.said.clear()
        world.answers = [psycopg.OperationalError(), psycopg.OperationalError()]
        before = len(world.opened)
        assert await link.call(world.operation) == before + 2
        assert gaps(world.asked[-3:]) == [0.075, 0.15]
        assert world.said[:4] == [False, lost(1), False, lost(2)]
        assert world.dropped == [before, before + 1]

    play(test)


def test_pauses_stay_finite_after_many_losses() -> None:
    async def test(world: World) -> None:
        link = world.link(backoff=1e-6, backoff_cap=1000.0)
        world.connects = [OSError() for _ in range(20)]
        await link.call(world.operation)
        assert gaps(world.opened)[-3:] == [0.049] * 3

    play(test)


def test_an_alert_comes_after_half_a_minute_and_only_for_the_main_connection() -> None:
    async def test(world: World) -> None:
        link = world.link(backoff=10.0, backoff_cap=10.0)
        world.connects = [NotPrimary(), *(OSError() for _ in range(5))]
        await link.call(world.operation)
        alerts = [line for line in world.said if isinstance(line, tuple) and len(line) == 2]
        # One attempt every 7.5 s.
        assert alerts == [
            (Alert.NOT_PRIMARY, {}),
            (Alert.DATABASE_UNREACHABLE, {"seconds": pytest.approx(30.0)}),
            (Alert.DATABASE_UNREACHABLE, {"seconds": pytest.approx(37.5)}),
        ]
        world.said.clear()
        world.connects = [NotPrimary(), *(OSError() for _ in range(5))]
        beside = world.link(main=False, backoff=10.0, backoff_cap=10.0)
        await beside.call(world.operation)
        assert beside.up
        assert world.said == []

    play(test)


def test_an_outage_is_counted_from_its_own_beginning() -> None:
    async def test(world: World) -> None:
        link = world.link(backoff=8.0, backoff_cap=8.0)
        for _ in range(3):
            world.answers = [OSError() for _ in range(4)]
            await link.call(world.operation)
            await asyncio.sleep(100.0)
        assert not [line for line in world.said if line and isinstance(line, tuple) and line[0]
                    is Alert.DATABASE_UNREACHABLE]  # fmt: skip

    play(test)


@pytest.mark.parametrize(
    "error", [AccessDenied(), InvalidArgument("limit"), ImmutableFact(), InvariantViolated(),
              WrongTransaction()], ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_no_attempt_can_help_is_raised_at_once(error: Exception) -> None:
    async def test(world: World) -> None:
        link = world.link()
        world.answers = [error]
        with pytest.raises(type(error)):
            await link.call(world.operation)
        assert (len(world.asked), world.dropped, world.said) == (1, [1], [])
        assert link.asked_at is None
        # The next call has a new connection.
        assert await link.call(world.operation) == 2

    play(test)


@pytest.mark.parametrize("code", ["42501", "42883"])
def test_a_missing_right_is_final_and_a_missing_function_is_not(code: str) -> None:
    async def test(world: World) -> None:
        link = world.link()
        world.answers = [DatabaseError(code)]
        if code == "42501":
            with pytest.raises(AccessDenied) as caught:
                await link.call(world.operation)
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__
            assert (len(world.asked), world.said) == (1, [])
        else:
            assert await link.call(world.operation) == 2
        assert world.dropped == [1]

    play(test)


def test_a_lost_race_is_tried_again_on_the_same_connection() -> None:
    async def test(world: World) -> None:
        link = world.link()
        world.answers = [SerializationFailure(), SerializationFailure()]
        assert await link.call(world.operation) == 1
        assert gaps(world.asked) == [0.03, 0.03]
        assert world.said == [True, (Event.CONNECTED, "info", {})]

    play(test)


@pytest.mark.parametrize("code", ["22003", "23514", "P0001", "XX000"])
def test_what_the_data_cause_is_raised_when_patience_ends(code: str) -> None:
    async def test(world: World) -> None:
        link = world.link()
        world.answers = [DatabaseError(code), OSError(), DatabaseError("57P01"),
                         *(DatabaseError(code) for _ in range(9))]  # fmt: skip
        with pytest.raises(DatabaseError) as caught:
            await link.call(world.operation, patience=3)
        assert caught.value.code == code
        assert len(world.asked) == 5
        assert world.dropped == [1, 2, 3, 4, 5]
        # Without a limit it goes on until there is an answer.
        assert await link.call(world.operation) == 13

    play(test)


def test_who_needs_no_answer_any_more_gives_up() -> None:
    async def test(world: World) -> None:
        link = world.link(backoff=10.0, backoff_cap=10.0)
        with pytest.raises(GaveUp):
            await link.call(world.operation, until=lambda: True)
        assert world.opened == []
        world.connects = [OSError() for _ in range(100)]
        with pytest.raises(GaveUp):
            await link.call(world.operation, until=lambda: world.now() >= 3.1)
        # During the pause as well, and soon.
        assert world.opened == [0.0]
        assert 3.1 <= world.now() <= 3.36

    play(test)


def test_no_answer_in_time_is_a_loss() -> None:
    async def test(world: World) -> None:
        link = world.link(call_timeout=5.0, backoff=1.0)
        world.connects, world.answers = [6.0, 4.0], [6.0, 4.0]
        assert await link.call(world.operation) == 3
        # A connection of 5 s that failed, one of 4; a call of 5 s that failed, one of 4.
        assert world.opened == pytest.approx([0.0, 5.75, 16.25])
        assert world.asked == pytest.approx([9.75, 16.25])
        assert world.now() == pytest.approx(20.25)
        assert [line for line in world.said if line and line is not True] == [
            failed(1), lost(2), (Event.CONNECTED, "info", {}),
        ]  # fmt: skip
        assert world.dropped == [2]

    play(test)


def test_a_cancelled_call_leaves_no_connection_in_its_middle() -> None:
    async def test(world: World) -> None:
        link = world.link()
        world.answers = [100.0]
        call = asyncio.create_task(link.call(world.operation))
        await asyncio.sleep(1.0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (world.dropped, link.asked_at) == ([1], None)
        assert await link.call(world.operation) == 2

    play(test)


def test_calls_come_one_after_another() -> None:
    async def test(world: World) -> None:
        link = world.link()
        world.answers = [3.0, 3.0]
        await asyncio.gather(*(link.call(world.operation) for _ in range(3)))
        assert world.asked == [0.0, 3.0, 6.0]
        assert world.opened == [0.0]

    play(test)


@pytest.mark.parametrize(("takes", "dropped"), [(1.9, []), (2.1, [1])])
def test_a_slow_goodbye_is_cut_short(takes: float, dropped: list[int]) -> None:
    async def test(world: World) -> None:
        link = world.link()
        await link.call(world.operation)
        world.closing = takes
        await link.close()
        assert world.dropped == dropped
        assert world.now() == pytest.approx(min(takes, 2.0))

    play(test)


def test_what_is_said_of_an_error() -> None:
    class Named(psycopg.Error):
        sqlstate = "57P01"

    assert sqlstate_of(DatabaseError("22012")) == "22012"
    assert sqlstate_of(Named()) == "57P01"
    assert sqlstate_of(psycopg.Error()) == sqlstate_of(OSError()) == ""
    assert sqlstate_of(NotFound()) == NotFound.sqlstate
    assert result_of(CommitUnknown()) == "commit_unknown"
    assert result_of(NotPrimary()) == NotPrimary.sqlstate
    # A code that isn't known could carry anything.
    assert result_of(DatabaseError("zz9zz")) == result_of(OSError()) == "database_error"
