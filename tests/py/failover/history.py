"""What clients were told, and what must be true of the tables afterwards.

Clients write down every call and its answer, or that there was none. `check` looks at the tables
from outside and asks whether they can be explained by the log.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.invariants import violations

if TYPE_CHECKING:
    import psycopg

    from trex_client.model import Claim, Enqueued, Recorded


@dataclass
class Log:
    """One history of one instance; clients in several threads may write to it."""

    instance: str
    counts: Counter[str] = field(default_factory=Counter)
    enqueued: dict[str, int] = field(default_factory=dict)
    fences: list[tuple[int, int]] = field(default_factory=list)
    completed: dict[tuple[int, int], str] = field(default_factory=dict)
    doubts: set[tuple[int, int]] = field(default_factory=set)
    lock: Any = field(default_factory=threading.Lock)

    def enqueue(self, key: str, answer: Enqueued | None) -> None:
        """`None`: the commit's answer never came."""
        with self.lock:
            self.counts["enqueue unknown" if answer is None else f"enqueue {answer.status}"] += 1
            if answer is not None:
                known = self.enqueued.setdefault(key, answer.message_id)
                assert known == answer.message_id, f"{key} is {known} and {answer.message_id}"

    def claim(self, claims: list[Claim] | None) -> None:
        """Fences count as given only when the answer came."""
        with self.lock:
            self.counts["claim unknown" if claims is None else "claim"] += 1
            for claim in claims or ():
                self.fences.append((claim.message_id, claim.fence))
                self.counts["claimed"] += 1

    def complete(self, message_id: int, fence: int, answer: Recorded | str | None) -> None:
        """The answer of `complete`; a text is the status of one that raised."""
        status = answer if isinstance(answer, str) or answer is None else answer.status
        claim = (message_id, fence)
        with self.lock:
            self.counts[f"complete {status or 'unknown'}"] += 1
            if status is None:
                self.doubts.add(claim)
            elif status in ("recorded", "already_recorded"):
                first = claim not in self.completed
                self.completed.setdefault(claim, status)
                if status == "recorded":
                    assert first, f"recorded twice: {claim}"
                else:
                    assert not first or claim in self.doubts, f"already recorded by whom? {claim}"

    def check(self, conn: psycopg.Connection[Any], *, lossy: bool = False) -> None:
        """Assert that the tables agree with what was acknowledged.

        Args:
            conn: as superuser.
            lossy: acknowledged work may be gone, but no fence may have been given twice.
        """
        assert not violations(conn, [self.instance])
        numbers = [fence for _, fence in self.fences]
        assert len(numbers) == len(set(numbers)), "a fence was given twice"
        last: dict[int, int] = {}
        for message_id, fence in self.fences:
            assert fence > last.get(message_id, 0), f"the fence of {message_id} fell"
            last[message_id] = fence
        done: Counter[int] = Counter(message_id for message_id, _ in self.completed)
        if not lossy:
            assert max(done.values(), default=0) <= 1, "two recorded completions"
            stored = dict(
                conn.execute(
                    "select idempotency_key, message_id from trex.message where instance_key = %s",
                    (self.instance,),
                ).fetchall()
            )
            lost = {k: i for k, i in self.enqueued.items() if stored.get(k) != i}
            assert not lost, f"acknowledged, and lost: {lost}"
            receipts = {
                (row[0], row[1])
                for row in conn.execute(
                    "select message_id, fence from trex.receipt where instance_key = %s",
                    (self.instance,),
                )
            }
            assert set(self.completed) <= receipts, "an acknowledged completion is gone"
