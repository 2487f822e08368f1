"""Once through the whole API: a history that shows what chance seldom does, so that nothing is
never seen."""

from __future__ import annotations

import inspect
from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.py.parity.machine import Worlds
from tests.py.parity.whole import REPORTS, WIDER, M, WholeMachine
from tests.support.backends import WHO
from trex_client.memory import MemoryClient
from trex_client.model import Movement, Report
from trex_client.model_authority import Viewer

ODD: tuple[Any, ...] = (
    None, "", " x", "é" * 256, -1, 2**63, Decimal("NaN"), timedelta(-1), [None], {},
)  # fmt: skip
OTHER = 15
"""A step of the instance `other`."""


class Tour(WholeMachine):
    events = 0

    def tour(self) -> None:
        self.begin_history()
        try:
            self.tour_of_rights()
            self.tour_of_operations()
            self.tour_of_boxes()
            self.tour_of_reconciliation()
            self.tour_of_refusals()
        finally:
            self.teardown()

    def event(self, invoice: str = "in_1") -> tuple[int, int]:
        """A new event, claimed."""
        self.events += 1
        self.step(0, "receive", "stripe", "acct_1", f"T{self.events}", "paid", invoice, b"raw", {})
        claims: Any = self.step(0, "claim", "w", 1, box="inbox", correlation_id=invoice)
        return claims[0].message_id, claims[0].fence

    def about(self, name: str, invoice: str = "in_1", **more: Any) -> None:
        """What an event of this invoice leads to, and the same call again."""
        claim = self.event(invoice)
        for _ in range(2):
            self.step(0, name, *claim, account="acct_1", invoice_id=invoice, **more)

    def tour_of_rights(self) -> None:
        step = self.step
        money: dict[str, Any] = {"currency": "USD", "evidence": "e"}
        licences = sorted(
            self.ours(self.shop._authority.licence),
            key=lambda row: (row.uses_max is not None, row.devices_max is not None),
        )
        unlimited, devices, uses = (row.licence_id for row in licences)
        paid: dict[str, Any] = {"order_id": "ord_1", "status": "paid"}
        self.about("finalize_paid", **paid)
        self.about("finalize_paid", **{**paid, "status": "unpaid"})
        self.about("finalize_paid", **{**paid, "order_id": "ord_2"})
        for number, licence in enumerate((*[uses] * 5, *[unlimited] * 4, devices)):
            step(0, "issue_capability", f"C{number}", licence, "b1", lifetime=timedelta(days=9))
        step(0, "issue_capability", "C0", uses, "b1")
        step(0, "issue_capability", "C0", "none", "b1")
        step(0, "bind_device", "none", "t1")
        step(0, "issue_capability", "C0", uses, "b2")
        step(0, "issue_capability", "short", unlimited, "b1", lifetime=timedelta(seconds=1))
        self.w.advance(2)
        for on_refused in ("report", "raise"):
            more = {"on_refused": on_refused}
            for capability, subject, usage in (
                ("C0", "b1", "U0"), ("C0", "b1", "U0"), ("C1", "b1", "U1"), ("C2", "b1", "U2"),
                ("C0", "b1", "U9"), ("C5", "b1", "U0"), ("C3", "b2", "U3"), ("short", "b1", "U4"),
                ("none", "b1", "U5"), ("C9", "b1", "U6"),
            ):  # fmt: skip
                step(0, "execute_licence", capability, subject, usage, **more)
        step(0, "operation_history", unlimited)
        for thumbprint in ("t1", "t1", "t2"):
            step(0, "bind_device", devices, thumbprint)
        step(0, "execute_licence", "C9", "b1", "U6", thumbprint="t1")
        for name in (
            "list_entitlements", "list_usage", "list_counters", "list_devices",
            "list_security_events",
        ):  # fmt: skip
            for viewer, seller in (
                (Viewer("admin", "acct_1"), None), (Viewer("seller", "acct_1", "s1"), None),
                (Viewer("seller", "acct_1", "s1"), "s2"), (Viewer("buyer", "acct_1"), None),
                (Viewer(None), None), (Viewer("admin", "acct_2"), None),
            ):  # fmt: skip
                step(0, name, viewer, "acct_1", seller=seller)
            step(0, name, Viewer("admin", "acct_2"), "acct_2")
        for refund_id, amount in (("R1", 4), ("R1", 4), ("R1", 5), ("R2", 7), ("R2", 6)):
            self.about("apply_refund", refund_id=refund_id, amount=amount, **money)
        self.about("apply_refund", "in_9", refund_id="R9", amount=1, **money)
        for invoice in ("in_2", "in_2", "in_9"):
            self.about("apply_provider_cancel", invoice, cause="cancelled", evidence="e")
        step(0, "execute_licence", "C3", "b1", "U7", on_refused="report")
        step(0, "issue_capability", "late", uses, "b1")
        step(0, "list_entitlements", Viewer("admin", "acct_1"), "acct_1")
        self.about("finalize_paid", "in_4", order_id="ord_4", status="paid")
        step(0, "register_order", "acct_1", "in_6", "ord_6", **self.sold(6))
        self.about("finalize_paid", "in_6", order_id="ord_6", status="paid")
        step(0, "record_payment", "acct_1", "in_6", "unpaid")
        for number, amount in ((10, 3), (11, 11)):
            invoice = f"in_{number}"
            self.about("apply_refund", invoice, refund_id=invoice, amount=amount, **money)
            step(0, "register_order", "acct_1", invoice, "ord", **self.sold(number))
            self.about("finalize_paid", invoice, order_id="ord", status="paid")
        # What else a claim can be when its event is handled.
        message_id, fence = self.event()
        step(0, "postpone", message_id, fence, timedelta(0))
        claims = (self.completed(), (message_id, fence), (message_id, fence + 999), (10**6, fence))
        for name, more in (
            ("finalize_paid", paid), ("apply_refund", {**money, "refund_id": "R3", "amount": 1}),
            ("apply_provider_cancel", {"cause": "revoked", "evidence": "e"}),
        ):  # fmt: skip
            for claim in claims:
                step(0, name, *claim, account="acct_1", invoice_id="in_6", **more)
        step(0, "inbox_status", self.completed()[0])
        self.w.advance(90_000)
        for _ in range(2):
            step(0, "expire_entitlements", **WHO)
        for status in ("paid", "paid", "refunded"):
            step(0, "record_payment", "acct_1", "in_3", status)
        step(0, "record_payment", "acct_1", "in_8", "paid")
        for back, status in ((60, "active"), (30, "cancelled"), (90, "expired")):
            now = self.w.clock()
            step(
                0, "update_subscription", "acct_1", "sub", "in_3", status=status,
                period_end=now - timedelta(seconds=5), asked_at=now - timedelta(seconds=back),
            )  # fmt: skip
        for number in (1, 1, 5):
            step(
                0, "register_order", "acct_1", f"in_{number}", "ord_1",
                **self.sold(number) | ({"item": "other"} if number == 5 else {}),
            )  # fmt: skip
        step(0, "register_order", "acct_1", "in_5", "ord_1", **self.sold(5))

    def tour_of_operations(self) -> None:
        step = self.step
        who = {"actor": "a", "role": "clerk", "reason": "r"}
        for definition in (M, WIDER, M):
            step(0, "machine_load", "m", definition, **WHO)
        step(0, "machine_show", "m")
        for on_refused in ("report", "raise"):
            for entity, event, version, operation in (
                ("t", "open", 0, "top1"), ("t", "open", 0, "top1"), ("t", "hold", 1, "top1"),
                ("t", "hold", 7, "top2"), ("t", "open", 1, "top3"), ("none", "hold", 1, "top4"),
                ("t", "hold", 1, "top5"),
            ):  # fmt: skip
                step(
                    0, "transition", "m", entity, event, version, operation, amount=9,
                    on_refused=on_refused, **who,
                )  # fmt: skip
            for operation, adjustment, amount, version in (
                ("top1", "A1", -1, 0), ("top1", "A1", -1, 0), ("top1", "A1", -2, 1),
                ("top1", "A2", 1, 0), ("top1", "A3", -99, 1), ("none", "A4", 1, 0),
            ):  # fmt: skip
                step(
                    0, "correct", operation, adjustment, "fee", amount, version, evidence="e",
                    on_refused=on_refused, **who,
                )  # fmt: skip
        for entity in ("t", "e1", "none"):
            step(0, "entity_status", "m", entity)
            step(0, "entity_history", "m", entity)
        step(0, "transition", "m", "e1", "go_on", 1, "top9", **who)
        for operation in ("top1", "op0", "none"):
            step(0, "operation_history", operation)
        step(0, "machine_show", "none")

    def tour_of_boxes(self) -> None:
        step = self.step
        claims = [self.event("in_8") for _ in range(6)]
        for (message_id, fence), name in zip(
            claims, ("dead_letter", "fail", "retry", "mark_unknown", "conflict"), strict=False
        ):
            step(0, name, message_id, fence)
            step(0, "inbox_status", message_id)
        step(0, "inbox_status", claims[5][0])
        step(0, "postpone", *self.event("in_8"), timedelta(hours=1))
        self.event("in_8")
        for effect in (
            "intent_recorded", "in_progress", "waiting", "failed", "rejected", "unknown",
            "succeeded",
        ):  # fmt: skip
            step(0, "effect_states", effect, box="inbox")
        step(0, "receive", "stripe", "acct_1", "fresh", "paid", None, b"raw", {})
        step(0, "effect_states", box="inbox")
        status: Any = step(0, "inbox_status", provider="stripe", account="acct_1", event_id="fresh")
        step(0, "inbox_status", provider="stripe", account="acct_1", event_id="none")
        for message_id in (status.message_id, 10**6):
            step(0, "inbox_event", message_id)
            step(0, "resolve", message_id, "abandon", evidence="e", **WHO)
        # Six claims before the last two: the first was parked as a dead letter.
        again = f"T{self.events - 7}"
        for _ in range(2):
            step(0, "receive", "stripe", "acct_1", again, "paid", "in_8", b"raw2", {})
        parked = [
            row.message_id for row in self.ours(self.w.memory.delivery) if row.parked is not None
        ]
        ids = [row.message_id for row in self.ours(self.w.memory.delivery)]
        step(0, "redrive", [*ids, 1, 10**6], **WHO)
        step(0, "expedite", [*ids, 1, 10**6], **WHO)
        for message_id in parked:
            for resolution in ("delivered", "delivered", "absent", "abandon"):
                step(0, "resolve", message_id, resolution, evidence="e", **WHO)
        for key, payload in (("tk", "{}"), ("tk", "{}"), ("tk", "[]")):
            for on_conflict in ("report", "raise"):
                step(
                    0, "enqueue", "t", key, payload_json=payload, on_conflict=on_conflict
                )  # fmt: skip
                step(
                    0, "enqueue_many",
                    [Movement("t", f"{key}{on_conflict}", payload_json=payload)],
                    on_conflict=on_conflict,
                )  # fmt: skip
        step(0, "enqueue_many", [Movement("t", "tkraise", payload_json="[]")])
        step(0, "enqueue_many", [])
        step(OTHER, "claim", "w")
        self.tour_of_claims()

    def tour_of_claims(self) -> None:
        """Every outcome of a claim that is unknown, lost, or has ended otherwise."""
        step = self.step
        step(0, "enqueue", "t", "old", payload_json="1", correlation_id="old")
        ((old_id, old),) = self.taken("old")
        step(0, "enqueue", "t", "new", payload_json="1", correlation_id="new")
        ((new_id, new),) = self.taken("new")
        step(0, "release", old_id, old)
        ended = (old_id, old)
        targets = {"ended": ended, "lost": (new_id, new - 1), "unknown": (10**6, new)}
        for name in sorted(REPORTS - {"record", "exchange", "report_stale"}):
            for what, target in targets.items():
                more: dict[str, Any] = {"delay": timedelta(1)} if name == "postpone" else {}
                if what == "ended" and name == "release":
                    target = self.completed()
                step(0, name, *target, **more)
        step(0, "report_stale", old_id, old, "retry")
        step(0, "report_stale", 10**6, old, "retry")
        step(0, "extend", [old_id, new_id, 10**6], [old, new, new])
        step(0, "extend", [new_id], [new - 1])
        completed = self.completed()
        for _ in range(2):
            reports = [
                Report(*completed, "completed"), Report(old_id, old, "retry"),
                Report(new_id, new - 1, "retry"), Report(10**6, new, "retry"),
            ]  # fmt: skip
            step(0, "record", reports)
            step(0, "exchange", reports, "w")
        step(0, "mark_sent", new_id, new)
        step(0, "hold", new_id, new)
        for name in (
            "mark_unknown", "retry", "conflict", "fail", "dead_letter", "complete",
            "complete_duplicate",
        ):  # fmt: skip
            step(0, "enqueue", "t", f"to {name}", payload_json="1", correlation_id=name)
            ((message_id, fence),) = self.taken(name)
            step(0, name, message_id, fence)
        step(0, "record", [Report(new_id, new, "completed")])
        step(0, "enqueue", "t", "x", payload_json="1", correlation_id="x")
        (taken,) = self.taken("x")
        step(0, "exchange", [Report(*taken, "completed")], "w")
        for name in ("status", "stats", "policy", "list_pending", "list_parked"):
            step(0, name, *([new_id] if name == "status" else []))
        step(0, "status", 10**6)
        step(0, "pending_cash_delta")
        for name in ("pause", "resume"):
            step(0, name, **WHO)
        step(0, "listen", "w", timedelta(seconds=9))
        step(0, "unlisten", "w")
        step(0, "purge", timedelta(0), **WHO)
        step(0, "bump_epoch", **WHO)
        for exponent in (2, 3):
            step(0, "register_currency", f"TX{Worlds.number}", exponent, **WHO)
        for name in ("bind", "unbind"):
            step(0, name, "somebody", **WHO)
            self.w.call("nowhere", name, "somebody", **WHO)
        step(0, "register_instance", max_attempts=3, **WHO)
        for quarantine_id, key in ((2, None), (2, None), (3, "new"), (4, None), (9, None)):
            step(
                0, "adopt", self.w.first_quarantined + quarantine_id - 1, evidence="e", topic="t",
                idempotency_key=key, **WHO,
            )  # fmt: skip
        self.w.begin()
        step(0, "claim", "w")
        step(0, "exchange", [], "w")
        self.w.end(commit=False)

    def taken(self, correlation_id: str) -> list[tuple[int, int]]:
        claims: Any = self.step(0, "claim", "w", 10, correlation_id=correlation_id)
        return [(claim.message_id, claim.fence) for claim in claims]

    def completed(self) -> tuple[int, int]:
        """A claim that was completed."""
        row = next(
            row for row in self.ours(self.w.memory.receipt) if row.confirmed_by != "operator"
        )
        return row.message_id, row.fence

    def tour_of_reconciliation(self) -> None:
        step = self.step
        right = self.ours(self.shop._authority.entitlement)[0]
        self.plant_counter(right, "2029-01")
        self.plant_right(right, None)
        self.event("in_7")
        self.w.advance(4000)
        report: Any = step(0, "reconcile", limit=7, **WHO)
        while report.state == "running":
            report = step(0, "reconcile", run_id=report.run_id, limit=7, **WHO)
        step(0, "reconcile", run_id=99, **WHO)
        step(0, "reconcile_findings", 99)
        step(0, "reconcile", limit=1, **WHO)
        step(OTHER, "reconcile", **WHO)
        for name in ("reconcile_reports", "reconcile_findings"):
            step(0, name)
            step(OTHER, name)
        step(0, "overdue")
        step(OTHER, "overdue")

    def tour_of_refusals(self) -> None:
        """Each call once more for an instance that isn't the caller's, on a standby, and with each
        argument missing or odd."""
        once = {name: (args, kwargs) for name, args, kwargs in self.repeatable}
        for name, (args, kwargs) in sorted(once.items()):
            for twist in ("foreign", "standby"):
                self.twist = twist
                self.step(0, name, *args, **kwargs)
            for more in ({"limit": 0}, {"cap": 0}, {"account": ""}):
                known = inspect.signature(getattr(MemoryClient, name)).parameters
                if not args and more.keys() <= known.keys():
                    self.step(0, name, **kwargs | more)
            for value in ODD:
                for number in range(len(args)):
                    self.w.call("shop", name, *args[:number], value, *args[number + 1 :], **kwargs)
                for key in kwargs:
                    self.w.call("shop", name, *args, **kwargs | {key: value})
            self.w.compare()
            self.counts["steps"] += 1
