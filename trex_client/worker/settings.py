"""What a worker can be told, how it ends, and the clock and dice it uses."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING

from trex_client.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trex_client.model import Box


class Exit(IntEnum):
    """Why a worker ended; the exit code of its process, in line with all commands' codes."""

    OK = 0  # drained, or the run is complete
    INTERNAL = 1  # a bug
    USAGE = 2  # missing instance key, bad setting; nothing was connected
    ACCESS_DENIED = 3  # instance unknown or not bound to this role
    EMPTY = 4  # targeted processing found nothing that can be claimed now
    UNREACHABLE = 9  # the database didn't answer in time (daemons keep trying, runs don't)
    SCHEMA = 11  # this release doesn't know the database's schema
    INCOMPLETE = 12  # a run ended, and some of its messages are not delivered
    LEFT_IN_FLIGHT = 13  # the drain deadline passed; calls under way are left to their leases
    INVARIANT = 14  # TX901 or TX902: page somebody, don't restart
    INTERRUPTED = 130  # second signal


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker; times in seconds.

    Args:
        concurrency: deliveries under way at once, 1 to 10,000.
        batch: most claims, and most outcomes, of one round trip, 1 to 1,000.
        prefetch: most claims waiting in memory; never more than a quarter second's work.
        lease: None is the instance's `lease_default`.
        linger: least time between two round trips while results come in one by one.
        poll: longest pause between two claims when idle.
        listen: wake up by NOTIFY; off behind a pooler in transaction mode.
        drain: how long calls under way may go on after SIGTERM.
        longest_call: after this time a delivery is cancelled and its lease isn't extended any more.
        call_timeout: longest wait for one answer of the database.
        backoff, backoff_cap: pauses between attempts to reach the database.
        stats: pause between two readings of the gauges; 0 is never.
        reach: how long to try to reach the database at the start; 0 is for ever.

    Raises:
        InvalidArgument: a value is out of range.
    """

    box: Box = "outbox"
    concurrency: int = 256
    batch: int = 500
    prefetch: int = 1000
    lease: timedelta | None = None
    linger: float = 0.005
    poll: float = 1.0
    listen: bool = True
    drain: float = 30.0
    longest_call: float = 900.0
    call_timeout: float = 30.0
    backoff: float = 0.1
    backoff_cap: float = 10.0
    stats: float = 15.0
    reach: float = 0.0

    def __post_init__(self) -> None:
        checks = {
            "concurrency": 1 <= self.concurrency <= 10_000,
            "batch": 1 <= self.batch <= 1_000,
            "prefetch": 0 <= self.prefetch <= 100_000,
            "poll": 0.01 <= self.poll <= 300,
            "drain": 0 <= self.drain <= 86_400,
            "longest_call": 0.01 <= self.longest_call <= 86_400,
            "lease": self.lease is None
            or timedelta(milliseconds=100) <= self.lease <= timedelta(hours=24),
        }
        for name, fine in checks.items():
            if not fine:
                raise InvalidArgument(name)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Runtime:
    """Clock, sleep and dice. `wait(event, seconds)` returns whether the event came first."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    wait: Callable[[asyncio.Event, float], Awaitable[bool]] = _wait
    random: Callable[[], float] = random.random
    worker: str = field(default_factory=lambda: f"w-{secrets.token_hex(12)}")
