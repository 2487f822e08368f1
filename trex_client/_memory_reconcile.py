"""Reconciliation in the simulation; import it through `trex_client.memory`.

Rows are named and ordered like the columns in `sql/migrations/0005.reconcile.sql`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from trex_client._memory_authority import MemoryAuthority, _month
from trex_client.errors import NotFound
from trex_client.memory import (
    _LAST_ID,
    EXTENSIONS,
    INFINITY,
    _call,
    _canonical,
    _check_act,
    _is_after,
    _is_duration,
    _is_integer,
    _require,
)
from trex_client.model_reconcile import (
    FindingState,
    FindingType,
    ReconcileFinding,
    ReconcileReport,
    RunState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from trex_client.memory import InstanceRow

_CHECKS = (
    "messages", "deliveries", "receipts", "skips", "snapshots", "entities", "payments",
    "entitlements", "subscriptions", "licences",
)  # fmt: skip
_BY_ID = _CHECKS[:4]


@dataclass(slots=True)
class ReconcileRunRow:
    instance_key: str
    run_id: int
    state: RunState
    longest_stay: timedelta
    at_check: int
    after: str
    examined: int
    found: int
    fresh: int
    repaired: int
    failed_check: str | None
    failed_code: str | None
    actor: str
    reason: str
    started_at: datetime
    finished_at: datetime | None


@dataclass(slots=True)
class ReconcileFindingRow:
    instance_key: str
    finding_id: str
    type: FindingType
    ref_ids: str
    expected: str
    actual: str
    causal_events: str
    recoverable: bool
    recommended_action: str
    state: FindingState
    first_run: int
    last_run: int
    found_at: datetime
    seen_at: datetime


@dataclass
class ReconcileTables:
    reconcile_run: dict[tuple[str, int], ReconcileRunRow] = field(default_factory=dict)
    reconcile_finding: dict[tuple[str, str], ReconcileFindingRow] = field(default_factory=dict)


EXTENSIONS.append(ReconcileTables)


@dataclass(slots=True)
class Drift:
    """What one check has to say of one row. `claim`: a message and the fence whose lease ended."""

    type: FindingType
    ref_ids: dict[str, object]
    expected: str
    actual: str
    recommended_action: str
    causal_events: list[str] = field(default_factory=list)
    claim: tuple[int, int] | None = None

    @property
    def finding_id(self) -> str:
        return hashlib.sha256(_canonical([self.type, self.ref_ids]).encode()).hexdigest()


def _event(message_id: int | None) -> list[str]:
    return [] if message_id is None else [f"message:{message_id}"]


class MemoryReconcile(MemoryAuthority):
    """Comparing what should agree."""

    @property
    def _reconcile(self) -> ReconcileTables:
        return self.db.extension(ReconcileTables)

    @_call
    def reconcile(
        self,
        *,
        actor: str,
        reason: str,
        run_id: int | None = None,
        longest_stay: timedelta = timedelta(hours=1),
        limit: int = 1000,
    ) -> ReconcileReport:
        _check_act(actor, reason)
        _require(run_id is None or _is_integer(run_id, 1, _LAST_ID), "run_id")
        _require(
            _is_duration(longest_stay, timedelta(seconds=1), timedelta(days=366)), "longest_stay"
        )
        _require(_is_integer(limit, 1, 10_000), "limit")
        self._durable()
        instance = self._enter()
        db, table = self.db, self._reconcile.reconcile_run
        now = db._now()
        if run_id is None:
            run_id = max((r for i, r in table if i == self._instance_key), default=0) + 1
            run = ReconcileRunRow(
                self._instance_key, run_id, "running", longest_stay, 1, "0", 0, 0, 0, 0, None,
                None, actor, reason, now, None,
            )  # fmt: skip
            db.put(table, (self._instance_key, run_id), run)
            self._audit("reconcile", None, actor, reason, {"run_id": run_id}, now)
        else:
            known = table.get((self._instance_key, run_id))
            if known is None:
                raise NotFound
            run = known
            db.change(run)
        while run.state == "running" and limit > 0:
            check = _CHECKS[run.at_check - 1]
            places = self._places(check, run.after)[:limit]
            drifts = [drift for place in places for drift in self._drifts(check, place, run, now)]
            for drift in sorted(drifts, key=lambda d: d.finding_id):
                self._tell_drift(instance, run, drift, actor, reason, now)
            run.examined += len(places)
            if len(places) == limit:
                last = places[-1]
                run.after = str(last) if isinstance(last, int) else _canonical(list(last))
            elif run.at_check == len(_CHECKS):
                run.after = "[]"
                run.state = "findings" if run.found else "clean"
                run.finished_at = now
            else:
                run.at_check += 1
                run.after = "0" if _CHECKS[run.at_check - 1] in _BY_ID else "[]"
            limit -= len(places)
        return _report(run)

    def _tell_drift(
        self,
        instance: InstanceRow,
        run: ReconcileRunRow,
        drift: Drift,
        actor: str,
        reason: str,
        now: datetime,
    ) -> None:
        """A drift is one finding, however many runs see it; only an ended lease is repaired."""
        repaired = drift.claim is not None and self._reconcile_lease(
            instance, *drift.claim, actor, reason, now
        )
        table = self._reconcile.reconcile_finding
        key = (self._instance_key, drift.finding_id)
        row = table.get(key)
        if row is None:
            row = ReconcileFindingRow(
                *key, drift.type, _canonical(drift.ref_ids), drift.expected, drift.actual,
                _canonical(drift.causal_events), drift.claim is not None,
                drift.recommended_action, "repaired" if repaired else "needs_review", run.run_id,
                run.run_id, now, now,
            )  # fmt: skip
            self.db.put(table, key, row)
            run.fresh += 1
        else:
            self.db.change(row)
            row.last_run = max(row.last_run, run.run_id)
            row.seen_at = now
            row.actual = drift.actual
        run.found += 1
        run.repaired += repaired

    def _reconcile_lease(
        self,
        instance: InstanceRow,
        message_id: int,
        fence: int,
        actor: str,
        reason: str,
        now: datetime,
    ) -> bool:
        """A lease that ended without an outcome, long ago: turned back as by the next claim."""
        row = self._matched(message_id, fence)
        if row is None or row.lease_until is None or row.lease_until > now:
            return False
        self._sift(instance, [row], 1, now)
        if row.parked is None and row.deferred_until != INFINITY:
            self.db.defer(row, now)
        self._audit("reconcile", message_id, actor, reason, {"fence": fence}, now)
        return True

    def _places(self, check: str, after: str) -> list[Any]:
        """The keys that a check walks, in order, from the first above `after`."""
        db, authority = self.db, self._authority
        tables: dict[str, Iterable[tuple[Any, ...]]] = {
            "messages": db.message,
            "deliveries": db.delivery,
            "receipts": db.receipt,
            "skips": db.ledger_skip,
            "snapshots": db.ledger_snapshot,
            "entities": self._operations.entity,
            "payments": {key[:3] for key in authority.payment},
            "entitlements": authority.entitlement,
            "subscriptions": authority.subscription,
            "licences": authority.licence,
        }
        keys = sorted(key[1:] for key in tables[check] if key[0] == self._instance_key)
        if check in _BY_ID:
            return [key[0] for key in keys if key[0] > int(after)]
        begin = tuple(json.loads(after))
        return [key for key in keys if key > begin]

    def _drifts(
        self, check: str, place: Any, run: ReconcileRunRow, now: datetime
    ) -> Iterator[Drift]:
        before = now - run.longest_stay
        if check == "messages":
            yield from self._check_message(place, before)
        elif check == "deliveries" or check == "receipts":
            if (self._instance_key, place) not in self.db.message:
                name = "delivery" if check == "deliveries" else "receipt"
                yield Drift(
                    "orphan_row", {"table": name, "message_id": place}, "a message", "none",
                    "restore the missing fact from a backup",
                )  # fmt: skip
        elif check == "skips":
            yield from self._check_skip(place)
        elif check == "snapshots":
            yield from self._check_snapshot(*place)
        elif check == "entities":
            yield from self._check_entity(place[0], place[1], now)
        elif check == "payments":
            yield from self._check_payment(place[0], place[1], before)
        elif check == "entitlements":
            yield from self._check_entitlement(*place)
        elif check == "subscriptions":
            yield from self._check_subscription(place[0], place[1], now)
        else:
            yield from self._check_licence(*place)

    def _check_message(self, message_id: int, before: datetime) -> Iterator[Drift]:
        db = self.db
        key = (self._instance_key, message_id)
        m, row, receipt = db.message[key], db.delivery.get(key), db.receipt.get(key)
        if (row is None) == (receipt is None):
            yield Drift(
                "orphan_row", {"message_id": message_id}, "one delivery or one receipt",
                "neither" if row is None else "both", "restore the missing fact from a backup",
            )  # fmt: skip
            return
        ends = db.outcome_fences.get(key, [])
        if receipt is not None:
            attempts, is_open = receipt.attempt, int(receipt.confirmed_by != "operator")
        else:
            assert row is not None  # noqa: S101 - narrows a type
            attempts, is_open = row.attempts, int(row.lease_until is not None)
        if attempts != len(ends) + is_open:
            yield Drift(
                "fence_gap", {"message_id": message_id}, "attempts = ends + open claims",
                f"attempts {attempts}, ends {len(ends)}, open {is_open}",
                "find out who wrote past the functions",
            )  # fmt: skip
        if row is None or row.abandoned:
            return
        last = db.outcome[*key, ends[-1]] if ends else None
        moved_at = max(m.enqueued_at, row.lease_until or m.enqueued_at)
        if last is not None and last.kind != "postponed":
            moved_at = max(moved_at, last.recorded_at)
        waits = last is not None and last.kind == "postponed"
        due = row.deferred_until
        if not waits and due is not None and due != INFINITY:
            moved_at = max(moved_at, due)
        if row.parked is None and moved_at >= before:
            return
        refs: dict[str, object] = {"message_id": message_id}
        claim = None
        actual, action = "stuck", "start a worker, or find out what it waits for"
        if row.parked is not None:
            refs |= {"fence": row.fence, "parked": row.parked}
            actual = f"parked {row.parked}"
            action = "fix the cause, then redrive"
            if row.parked in ("unknown", "conflict"):
                action = "look up, then resolve with evidence"
        elif row.lease_until is not None:
            refs["fence"] = row.fence
            claim = (message_id, row.fence)
            actual, action = "lease ended", "end the lease, so that it is due again"
        yield Drift(
            "failed_or_stuck_outbox" if m.box == "outbox" else "unprocessed_inbox_events", refs,
            "delivered within the longest stay", actual, action, _event(message_id), claim,
        )  # fmt: skip

    def _check_skip(self, message_id: int) -> Iterator[Drift]:
        key = (self._instance_key, message_id)
        is_open = self.db.ledger_skip[key].resolved_at is None
        if is_open != (key in self.db.delivery):
            yield Drift(
                "skip_without_parked_row", {"message_id": message_id},
                "an undelivered message" if is_open else "a delivered message",
                "none" if is_open else "undelivered",
                "compare with the ledger, then correct the books",
            )  # fmt: skip

    def _check_snapshot(self, account: str, currency: str) -> Iterator[Drift]:
        s = self.db.ledger_snapshot[self._instance_key, account, currency]
        receipt = self.db.receipt.get((self._instance_key, s.message_id))
        if s.contradicted or receipt is None or receipt.fence != s.fence:
            yield Drift(
                "snapshot_drift", {"account": account, "currency": currency},
                "one balance for each version, from a receipt",
                "contradicted" if s.contradicted else "no receipt",
                "read the balance from the ledger again", _event(s.message_id),
            )  # fmt: skip

    def _check_entity(self, machine: str, entity: str, now: datetime) -> Iterator[Drift]:
        e = self._operations.entity[self._instance_key, machine, entity]
        s = self._operations.machine_state[
            self._instance_key, machine, self._revision(machine), e.state
        ]
        if s.longest_stay is not None and e.since < now - s.longest_stay:
            yield Drift(
                "overdue_state", {"machine": machine, "entity": entity, "version": e.version},
                "to leave the state within its longest stay", f"still {e.state}",
                s.next_action or "ask the owner of the state",
            )  # fmt: skip

    def _rights(self, account: str, invoice_id: str) -> list[str]:
        return sorted(
            e.entitlement_id
            for e in self._authority.entitlement.values()
            if (e.instance_key, e.account, e.invoice_id)
            == (self._instance_key, account, invoice_id)
        )

    def _check_payment(self, account: str, invoice_id: str, before: datetime) -> Iterator[Drift]:
        last = self._payments(account, invoice_id)[-1]
        if (
            last.status == "paid"
            and last.asked_at < before
            and not self._rights(account, invoice_id)
        ):
            yield Drift(
                "paid_no_entitlement", {"account": account, "invoice_id": invoice_id}, "a right",
                "none", "find the order, then let an event of the invoice be handled",
                _event(last.message_id),
            )  # fmt: skip

    def _check_entitlement(self, entitlement_id: str) -> Iterator[Drift]:
        key = (self._instance_key, entitlement_id)
        e = self._authority.entitlement[key]
        invoice: dict[str, object] = {"account": e.account, "invoice_id": e.invoice_id}
        payments = self._payments(e.account, e.invoice_id)
        last = payments[-1] if payments else None
        operation = self._operations.operation.get(key)
        refunds = [
            r.amount
            for r in self._authority.refund.values()
            if (r.instance_key, r.account, r.invoice_id)
            == (self._instance_key, e.account, e.invoice_id)
        ]
        refunded = last is not None and last.status == "refunded"
        if operation is not None and operation.amount is not None:
            left = [a.balance for a in self._adjustments(entitlement_id)[-1:]]
            refunded = refunded or (operation.amount > 0 and left == [0])
            refunded = refunded or (bool(refunds) and sum(refunds) >= operation.amount)
        if e.state == "active" and (refunded or last is None or last.status != "paid"):
            yield Drift(
                "refunded_but_valid_entitlement" if refunded else "unpaid_but_entitled",
                {"entitlement_id": entitlement_id, **invoice},
                "an ended right" if refunded else "a payment",
                last.status if last is not None else "none", "ask the provider, then end the right",
                _event(last.message_id if last is not None else None),
            )  # fmt: skip
        rights = self._rights(e.account, e.invoice_id)
        if len(rights) > 1 and rights[0] == entitlement_id:
            yield Drift(
                "duplicate_issuance_per_payment", invoice, "one right for one invoice",
                f"{len(rights)} rights", "decide which right stays, then end the other",
            )  # fmt: skip

    def _check_subscription(
        self, account: str, subscription_id: str, now: datetime
    ) -> Iterator[Drift]:
        s = self._authority.subscription[self._instance_key, account, subscription_id]
        if s.status not in ("cancelled", "expired") or s.period_end >= now:
            return
        for entitlement_id in self._rights(account, s.invoice_id):
            e = self._authority.entitlement[self._instance_key, entitlement_id]
            until = e.valid_until
            if e.state == "active" and (until is None or until > s.period_end):
                yield Drift(
                    "subscription_expired_but_renewed",
                    {"account": account, "subscription_id": subscription_id},
                    "no right beyond the paid period", f"subscription {s.status}",
                    "ask the provider, then end the right",
                )  # fmt: skip
                return

    def _check_licence(self, licence_id: str) -> Iterator[Drift]:
        used: Counter[str] = Counter()
        for use in self._authority.license_usage.values():
            if (use.instance_key, use.licence_id) == (self._instance_key, licence_id):
                used.update(("all", _month(use.used_at)))
        counted = {
            key[2]: row.uses
            for key, row in self._authority.usage_counter.items()
            if key[:2] == (self._instance_key, licence_id)
        }
        for period in used.keys() | counted.keys():
            if used[period] != counted.get(period, 0):
                yield Drift(
                    "counter_drift", {"licence_id": licence_id, "period": period},
                    f"{used[period]} uses", f"{counted.get(period, 0)} counted",
                    "count the records again",
                )  # fmt: skip

    @_call
    def reconcile_reports(
        self, *, limit: int = 100, before: int | None = None
    ) -> list[ReconcileReport]:
        _require(_is_integer(limit, 1, 10_000), "limit")
        _require(before is None or _is_integer(before, 1, _LAST_ID), "before")
        self._enter()
        runs = [
            row
            for (key, run_id), row in self._reconcile.reconcile_run.items()
            if key == self._instance_key and (before is None or run_id < before)
        ]
        runs.sort(key=lambda row: -row.run_id)
        return [_report(row) for row in runs[:limit]]

    @_call
    def reconcile_findings(
        self,
        run_id: int | None = None,
        *,
        state: FindingState | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[ReconcileFinding]:
        _require(run_id is None or _is_integer(run_id, 1, _LAST_ID), "run_id")
        _require(state is None or state in get_args(FindingState), "state")
        _require(_is_integer(limit, 1, 10_000), "limit")
        _require(_is_after(after, 64), "after")
        self._enter()
        if run_id is not None and (self._instance_key, run_id) not in self._reconcile.reconcile_run:
            raise NotFound
        table = self._reconcile.reconcile_finding
        rows = [
            f
            for _, f in sorted(table.items())
            if f.instance_key == self._instance_key
            and f.finding_id > after
            and (run_id is None or f.first_run <= run_id <= f.last_run)
            and state in (None, f.state)
        ]
        return [
            ReconcileFinding(
                f.finding_id, f.type, json.loads(f.ref_ids), f.expected, f.actual,
                json.loads(f.causal_events), f.recoverable, f.recommended_action, f.state,
                f.first_run, f.last_run, f.found_at, f.seen_at,
            )
            for f in rows[:limit]
        ]  # fmt: skip


def _report(run: ReconcileRunRow) -> ReconcileReport:
    return ReconcileReport(
        run.run_id, run.state, _CHECKS[run.at_check - 1], run.examined, run.found, run.fresh,
        run.repaired, run.failed_check, run.failed_code, run.actor, run.reason, run.started_at,
        run.finished_at,
    )  # fmt: skip
