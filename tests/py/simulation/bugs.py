"""Faults planted in the model. Each must be found, or the harness proves nothing.

A bug is a function that changes the model's class and returns what changes it back.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from trex_client import memory
from trex_client.memory import INFINITY, DeliveryRow, MemoryDatabase, MemoryKernel
from trex_client.model import Extended, Recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    Bug = Callable[[], Callable[[], None]]


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> Bug:
    def plant() -> Callable[[], None]:
        before = vars(owner)[name]
        setattr(owner, name, make(before))
        return lambda: setattr(owner, name, before)

    return plant


def _no_fence_check(_: Any) -> Any:
    def matched(self: Any, message_id: int, fence: int) -> DeliveryRow | None:
        row: DeliveryRow | None = self.db.delivery.get((self._instance_key, message_id))
        return row if row is not None and row.lease_until is not None else None

    return matched


def _lease_end_is_certain(settle: Any) -> Any:
    def certain(kind: Any, policy: Any, uncertain: bool, sent: bool, *rest: Any) -> Any:
        if kind == "lease_expired":
            kind, sent = "retry", False
        return settle(kind, policy, uncertain, sent, *rest)

    return certain


def _one_too_many(pick: Any) -> Any:
    def more(self: Any, box: Any, above: Any, last: Any, most: int, *rest: Any) -> Any:
        return pick(self, box, above, last, most + 1 if most else 0, *rest)

    return more


def _retry_keeps_the_lease(end: Any) -> Any:
    def keeps(self: Any, instance: Any, row: Any, kind: Any, *rest: Any) -> Any:
        lease, worker = row.lease_until, row.worker
        result = end(self, instance, row, kind, *rest)
        if kind == "retry" and row.parked is None:
            row.lease_until, row.worker = lease, worker
        return result

    return keeps


def _fence_per_row(lease: Any) -> Any:
    def counter(self: Any, rows: Any, worker: Any, epoch: int, until: Any) -> Any:
        before = {row.message_id: row.fence for row in rows}
        taken = lease(self, rows, worker, epoch, until)
        for row in taken:
            row.fence = epoch + (before[row.message_id] & (2**42 - 1)) + 1
        return taken

    return counter


def _forgets_outcomes(outcome: Any) -> Any:
    def forgets(self: Any, row: Any, kind: Any, *rest: Any) -> None:
        if kind != "lease_expired":
            outcome(self, row, kind, *rest)

    return forgets


def _revives_reclaimed(extend: Any) -> Any:
    def revives(self: Any, message_id: int, fence: int, now: Any, until: Any) -> Any:
        row = self.db.delivery.get((self._instance_key, message_id))
        if row is not None and row.fence > fence and row.lease_until is not None:
            return Extended(message_id, fence, "extended", row.lease_until)
        return extend(self, message_id, fence, now, until)

    return revives


def _shortens(extend: Any) -> Any:
    def shortens(self: Any, message_id: int, fence: int, now: Any, until: Any) -> Any:
        answer = extend(self, message_id, fence, now, until)
        row = self._matched(message_id, fence)
        if row is None or answer.status != "extended":
            return answer
        row.lease_until = now + timedelta(seconds=1)
        return Extended(message_id, fence, "extended", row.lease_until)

    return shortens


def _parked_claimable(end: Any) -> Any:
    def ready(self: Any, instance: Any, row: Any, *rest: Any) -> Any:
        result = end(self, instance, row, *rest)
        if row.parked is not None:
            self.db.defer(row, rest[-1])
        return result

    return ready


def _redrives_unknown(redrive: Any) -> Any:
    def also(self: Any, message_id: int, actor: str, reason: str, now: Any) -> Any:
        row = self.db.delivery.get((self._instance_key, message_id))
        if row is not None and row.parked == "unknown":
            self._audit("redrive", message_id, actor, reason, {"parked": row.parked}, now)
            self.db.change(row)
            row.parked, row.tries, row.abandoned = None, 0, False
            self.db.defer(row, now)
            return "redriven"
        return redrive(self, message_id, actor, reason, now)

    return also


def _redrive_keeps_abandoned(redrive: Any) -> Any:
    def keeps(self: Any, message_id: int, *rest: Any) -> Any:
        row = self.db.delivery.get((self._instance_key, message_id))
        before = row is not None and row.abandoned
        answer = redrive(self, message_id, *rest)
        if row is not None:
            row.abandoned = before
        return answer

    return keeps


def _ignores_content(_: Any) -> Any:
    return lambda a, b: True


def _ignores_rollback(_: Any) -> Any:
    def rollback(self: Any, mark: int) -> None:
        del self._undo[mark:]
        self._failed = False

    return rollback


def _mark_sent_unfenced(mark: Any) -> Any:
    def always(self: Any, message_id: int, fence: int, *, on_lost: Any = "raise") -> Any:
        del on_lost
        row = self.db.delivery.get((self._instance_key, message_id))
        if row is not None:
            row.sent_fence = row.fence
        return Recorded(message_id, fence, "recorded", "leased", False, None)

    del mark
    return always


def _forgets_sent(mark: Any) -> Any:
    def nothing(self: Any, message_id: int, fence: int, *, on_lost: Any = "raise") -> Any:
        row = self._matched(message_id, fence)
        before = None if row is None else row.sent_fence
        answer = mark(self, message_id, fence, on_lost=on_lost)
        if row is not None:
            row.sent_fence = before
        return answer

    return nothing


def _ends_on_mark(mark: Any) -> Any:
    def ends(self: Any, message_id: int, fence: int, *, on_lost: Any = "raise") -> Any:
        answer = mark(self, message_id, fence, on_lost=on_lost)
        row = self._matched(message_id, fence)
        if answer.status == "recorded" and row is not None:
            self._outcome(row, "retry", "deferred", "unspecified", False, self.db._now())
        return answer

    return ends


def _no_order(_: Any) -> Any:
    return lambda self, row, block: False


def _never_frees(_: Any) -> Any:
    return lambda self, *rest: None


def _other_instances(_: Any) -> Any:
    def matched(self: Any, message_id: int, fence: int) -> DeliveryRow | None:
        for (_owner, number), row in self.db.delivery.items():
            if number == message_id and row.fence == fence and row.lease_until is not None:
                return row  # type: ignore[no-any-return]
        return None

    return matched


def _abandon_ends_doubt(resolve: Any) -> Any:
    def certain(self: Any, message_id: int, resolution: Any, **rest: Any) -> Any:
        done = resolve(self, message_id, resolution, **rest)
        if resolution == "abandon":
            self.db.delivery[self._instance_key, message_id].uncertain = False
        return done

    return certain


def _tries_without_end(settle: Any) -> Any:
    def endless(kind: Any, policy: Any, uncertain: Any, sent: Any, tries: int, most: int,
                *rest: Any) -> Any:  # fmt: skip
        del most
        return settle(kind, policy, uncertain, sent, tries, 10**9, *rest)

    return endless


def _retry_clears(settle: Any) -> Any:
    def forgets(kind: Any, policy: Any, uncertain: bool, *rest: Any) -> Any:
        parked, after, tries = settle(kind, policy, uncertain, *rest)
        return parked, after and kind != "retry", tries

    return forgets


def _skip_stays(deliver: Any) -> Any:
    def without(self: Any, row: Any, *rest: Any) -> None:
        skip = self.db.ledger_skip.pop((row.instance_key, row.message_id), None)
        deliver(self, row, *rest)
        if skip is not None:
            self.db.ledger_skip[row.instance_key, row.message_id] = skip

    return without


def _stranded(settle: Any) -> Any:
    def far(self: Any, row: Any, until: Any) -> None:
        settle(self, row, INFINITY if row.parked is None and row.tries > 1 else until)

    return far


def _purges_all(purge: Any) -> Any:
    def also(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = purge(self, *args, **kwargs)
        for (owner, _), message in self.db.message.items():
            if owner == self._instance_key and message.box == "inbox":
                message.topic = "gone"
        return answer

    return also


BUGS: dict[str, Bug] = {
    "no fence check": _swap(MemoryKernel, "_matched", _no_fence_check),
    "an ended lease is certain": _swap(memory, "_settle", _lease_end_is_certain),
    "limit off by one": _swap(MemoryKernel, "_pick", _one_too_many),
    "retry keeps the lease": _swap(MemoryKernel, "_end", _retry_keeps_the_lease),
    "fence is a counter of the row": _swap(MemoryKernel, "_lease", _fence_per_row),
    "an ended lease leaves no outcome": _swap(MemoryKernel, "_outcome", _forgets_outcomes),
    "heartbeat revives a reclaimed row": _swap(MemoryKernel, "_extend", _revives_reclaimed),
    "heartbeat shortens a lease": _swap(MemoryKernel, "_extend", _shortens),
    "parked row claimable": _swap(MemoryKernel, "_end", _parked_claimable),
    "redrive of unknown": _swap(MemoryKernel, "_redrive", _redrives_unknown),
    "a redriven row stays given up": _swap(MemoryKernel, "_redrive", _redrive_keeps_abandoned),
    "deduplication ignores content": _swap(memory, "_same", _ignores_content),
    "a rollback keeps what was written": _swap(MemoryDatabase, "_rollback", _ignores_rollback),
    "mark_sent not fenced": _swap(MemoryKernel, "mark_sent", _mark_sent_unfenced),
    "mark_sent stores nothing": _swap(MemoryKernel, "mark_sent", _forgets_sent),
    "mark_sent leaves an outcome": _swap(MemoryKernel, "mark_sent", _ends_on_mark),
    "ordering ignored": _swap(MemoryKernel, "_is_behind", _no_order),
    "keys never freed": _swap(MemoryKernel, "_free_heads", _never_frees),
    "record ignores the instance": _swap(MemoryKernel, "_matched", _other_instances),
    "retry ignores the allowance": _swap(memory, "_settle", _tries_without_end),
    "retry clears uncertain": _swap(memory, "_settle", _retry_clears),
    "abandon ends the doubt": _swap(MemoryKernel, "resolve", _abandon_ends_doubt),
    "skip resolved by nobody": _swap(MemoryKernel, "_deliver", _skip_stays),
    "a retried row waits for ever": _swap(MemoryDatabase, "defer", _stranded),
    "purge touches facts": _swap(MemoryKernel, "purge", _purges_all),
}

EXPECTED: dict[str, str] = {
    "no fence check": "I11",
    "an ended lease is certain": "I14",
    "limit off by one": "I10",
    "retry keeps the lease": "I6",
    "fence is a counter of the row": "I4",
    "an ended lease leaves no outcome": "I6",
    "heartbeat revives a reclaimed row": "I11",
    "heartbeat shortens a lease": "I5",
    "parked row claimable": "I10",
    "redrive of unknown": "I14",
    "a redriven row stays given up": "I22",
    "deduplication ignores content": "I16",
    "a rollback keeps what was written": "I3",
    "mark_sent not fenced": "I11",
    "mark_sent stores nothing": "I13",
    "mark_sent leaves an outcome": "I6",
    "ordering ignored": "I20",
    "keys never freed": "I19",
    "record ignores the instance": "I7",
    "retry ignores the allowance": "I19",
    "retry clears uncertain": "I14",
    "abandon ends the doubt": "I14",
    "skip resolved by nobody": "I22",
    "a retried row waits for ever": "I19",
    "purge touches facts": "I8",
}
"""The invariant that must find each: found by another, it is found for a wrong reason."""

WITHIN_REACH = {
    "no fence check": 0,
    "an ended lease is certain": 0,
    "retry keeps the lease": 0,
    "fence is a counter of the row": 0,
    "an ended lease leaves no outcome": 0,
    "parked row claimable": 1,
    "mark_sent stores nothing": 1,
    "ordering ignored": 2,
}
"""Those that the models of the search have the steps for, and which model (in test_search)."""
