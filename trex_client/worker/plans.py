"""What to claim next: for ever (daemon), or what is due now (backfill, one correlation)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from trex_client.model import Claim, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRAIL = 0.2


class Hints:
    """Where a claim may start to look: for speed only.

    `after` is the highest message id got more than 200 ms ago, so that a row whose number is lower
    but that was committed a little later is found at once. `due_after` trails the time of the last
    claim that left nothing behind. A full sweep comes every max(1 s, 20 x the last sweep's length).
    """

    def __init__(self, now: float) -> None:
        self._got: deque[tuple[float, int]] = deque()
        self._after = 0
        self._due_after: datetime | None = None
        self._next_sweep = now

    def next(self, now: float) -> tuple[int, datetime | None]:
        """Return `after` and `due_after` for a claim now; (0, None) is a sweep."""
        if now >= self._next_sweep:
            return 0, None
        while self._got and self._got[0][0] <= now - _TRAIL:
            self._after = max(self._after, self._got.popleft()[1])
        return self._after, self._due_after

    def done(
        self,
        started: float,
        ended: float,
        *,
        swept: bool,
        claims: Sequence[Claim],
        limit: int,
        lease: timedelta,
    ) -> None:
        """Learn from a claim's answer."""
        if swept:
            self._next_sweep = ended + max(1.0, 20.0 * (ended - started))
        ready = [claim.message_id for claim in claims if claim.attempt == 1]
        if ready:
            self._got.append((ended, max(ready)))
        if claims and len(claims) < limit:
            # Nothing else was due at the time of this claim, by the database's clock.
            at = max(claim.lease_until for claim in claims) - lease
            self._due_after = at - timedelta(seconds=_TRAIL)


@dataclass(slots=True)
class Plan:
    """Claims for ever, everything. `over` ends the claiming."""

    correlation_id: str | None = None
    over: bool = False

    def room(self, room: int) -> int:
        """How many of `room` may be claimed now."""
        return 0 if self.over else room

    def take(
        self, claims: Sequence[Claim], *, swept: bool, now: float
    ) -> tuple[list[Claim], list[Report]]:
        """Return what to deliver, and reports for what is put back."""
        del swept, now
        return list(claims), []

    def ended(self, claim: Claim, name: str) -> None:
        """Learn how a claim ended: the name of its counter."""


@dataclass(slots=True)
class Once(Plan):
    """Claims what can be claimed now, and ends.

    It is over when a full sweep brings nothing that was enqueued before `until` and that this run
    hasn't tried yet, and none of those that it did bring is still under way: its end may free the
    next of its ordering key. What it meets of other topics is put back for a while without using
    up the allowance.

    Args:
        until: the database's time at the start.
        topic: only this one.
        limit: most messages to claim.
    """

    until: datetime | None = None
    topic: str | None = None
    limit: int | None = None
    started: float = 0.0
    claimed: int = 0
    sweep_next: bool = True
    tried: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)

    def room(self, room: int) -> int:
        """How many of `room` may be claimed now."""
        if self.over:
            return 0
        if self.limit is None or self.topic is not None:
            return room
        return max(0, min(room, self.limit - self.claimed))

    def take(
        self, claims: Sequence[Claim], *, swept: bool, now: float
    ) -> tuple[list[Claim], list[Report]]:
        """Return what to deliver, and reports for what is put back."""
        mine = [claim for claim in claims if self.topic in {None, claim.topic}]
        most = len(mine) if self.limit is None else self.limit - self.claimed
        mine, beyond = mine[:most], mine[most:]
        pause = timedelta(seconds=max(5.0, 2.0 * (now - self.started)))
        back = [
            Report(claim.message_id, claim.fence, "postponed", reason="waiting", delay=pause)
            for claim in claims
            if self.topic not in {None, claim.topic}
        ]
        back += [
            Report(claim.message_id, claim.fence, "released", reason="waiting") for claim in beyond
        ]
        self.claimed += len(mine)
        old = {
            claim.message_id
            for claim in claims
            if claim.message_id not in self.tried
            and (self.until is None or claim.enqueued_at <= self.until)
        }
        mine_ids = {claim.message_id for claim in mine}
        self.open |= old & mine_ids
        self.over = (swept and not old and not self.open) or (
            self.limit is not None and self.claimed >= self.limit
        )
        self.sweep_next = not old
        self.tried |= mine_ids
        return mine, back

    def ended(self, claim: Claim, name: str) -> None:
        """Forget what is done; only what could come back is remembered."""
        self.open.discard(claim.message_id)
        if name in {"delivered", "duplicate"}:
            self.tried.discard(claim.message_id)
