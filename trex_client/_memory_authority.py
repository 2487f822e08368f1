"""Grants, licences, capabilities and scoped reads in the simulation; import it through
`trex_client.memory`.

Rows are named and ordered like the columns in `sql/migrations/0004.authority.sql`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from trex_client._memory_operations import (
    MemoryOperations,
    OperationRow,
    _json,
    _operation_digest,
    _refuse_operation,
    _trim,
)
from trex_client.errors import (
    AccessDenied,
    EndedOtherwise,
    Forbidden,
    KeyReused,
    NotFound,
    NoViewer,
)
from trex_client.memory import (
    EXTENSIONS,
    _amount,
    _call,
    _canonical,
    _check_act,
    _check_on,
    _is_after,
    _is_duration,
    _is_integer,
    _is_key,
    _is_number,
    _is_slug,
    _is_text,
    _is_time,
    _refuse,
    _require,
)
from trex_client.model import Report
from trex_client.model_authority import (
    CapabilityIssued,
    Cause,
    CounterLine,
    DeviceLine,
    EntitlementLine,
    EntitlementStatus,
    Executed,
    ExecuteStatus,
    Finalized,
    SecurityKind,
    SecurityLine,
    SubscriptionStatus,
    UsageLine,
    Viewer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from trex_client.memory import InstanceRow
    from trex_client.model import Box
    from trex_client.model_operations import OnRefused

R = TypeVar("R")

_SECOND = timedelta(seconds=1)


@dataclass(slots=True)
class OrderInvoiceRow:
    instance_key: str
    account: str
    invoice_id: str
    order_id: str
    seller: str
    buyer: str
    item: str
    amount: Decimal
    currency: str
    uses_max: int | None
    devices_max: int | None
    valid_for: timedelta | None
    registered_at: datetime


@dataclass(slots=True)
class PaymentRow:
    instance_key: str
    account: str
    invoice_id: str
    asked: int
    status: str
    message_id: int | None
    asked_at: datetime


@dataclass(slots=True)
class RefundRow:
    instance_key: str
    account: str
    refund_id: str
    invoice_id: str
    amount: Decimal
    currency: str
    message_id: int
    refunded_at: datetime


@dataclass(slots=True)
class EntitlementRow:
    instance_key: str
    entitlement_id: str
    account: str
    invoice_id: str
    order_id: str
    seller: str
    buyer: str
    item: str
    state: EntitlementStatus
    version: int
    granted_at: datetime
    valid_until: datetime | None
    changed_at: datetime


@dataclass(slots=True)
class LicenceRow:
    instance_key: str
    licence_id: str
    entitlement_id: str
    account: str
    seller: str
    uses_max: int | None
    devices_max: int | None
    issued_at: datetime


@dataclass(slots=True)
class SubscriptionRow:
    instance_key: str
    account: str
    subscription_id: str
    invoice_id: str
    status: SubscriptionStatus
    period_end: datetime
    version: int
    asked_at: datetime


@dataclass(slots=True)
class CapabilityRow:
    instance_key: str
    capability_id: str
    licence_id: str
    subject: str
    issued_at: datetime
    expires_at: datetime
    consumed_by: str | None = None
    consumed_at: datetime | None = None


@dataclass(slots=True)
class LicenseUsageRow:
    instance_key: str
    usage_id: str
    capability_id: str
    licence_id: str
    account: str
    seller: str
    subject: str
    used_at: datetime


@dataclass(slots=True)
class UsageCounterRow:
    instance_key: str
    licence_id: str
    period: str
    account: str
    seller: str
    uses: int
    counted_at: datetime


@dataclass(slots=True)
class DeviceBindingRow:
    instance_key: str
    licence_id: str
    thumbprint: str
    account: str
    seller: str
    bound_at: datetime


@dataclass(slots=True)
class SecurityEventRow:
    instance_key: str
    capability_id: str
    kind: SecurityKind
    usage_id: str
    licence_id: str
    account: str
    seller: str
    subject: str
    seen_at: datetime


Triple = tuple[str, str, str]


@dataclass
class AuthorityTables:
    order_invoice: dict[Triple, OrderInvoiceRow] = field(default_factory=dict)
    payment: dict[tuple[str, str, str, int], PaymentRow] = field(default_factory=dict)
    refund: dict[Triple, RefundRow] = field(default_factory=dict)
    entitlement: dict[tuple[str, str], EntitlementRow] = field(default_factory=dict)
    licence: dict[tuple[str, str], LicenceRow] = field(default_factory=dict)
    subscription: dict[Triple, SubscriptionRow] = field(default_factory=dict)
    capability: dict[tuple[str, str], CapabilityRow] = field(default_factory=dict)
    license_usage: dict[tuple[str, str], LicenseUsageRow] = field(default_factory=dict)
    usage_counter: dict[Triple, UsageCounterRow] = field(default_factory=dict)
    device_binding: dict[Triple, DeviceBindingRow] = field(default_factory=dict)
    security_event: dict[tuple[str, str, str, str], SecurityEventRow] = field(default_factory=dict)


EXTENSIONS.append(AuthorityTables)


def _digest(*keys: str) -> str:
    return hashlib.sha256(_canonical(list(keys)).encode()).hexdigest()


def _grant_id(account: str, invoice_id: str) -> str:
    """The business key of a grant: one for each invoice of an account."""
    return "grant_entitlement:" + _digest(account, invoice_id, "grant_entitlement")


def _refund_id(account: str, refund_id: str) -> str:
    """The correction that one refund is."""
    return "refund:" + _digest(account, refund_id)


def _month(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m")


_WHY_NOT = {
    "expired": "the capability is expired",
    "not_active": "the right is not active",
    "exhausted": "the uses are exhausted",
    "device_unknown": "the device is unknown",
}


def _refuse_use(status: str) -> None:
    """Why a licence can't be used, as an error."""
    if status == "other_subject":
        raise NotFound
    if status == "operation_conflict":
        raise KeyReused
    if status == "consumed":
        raise EndedOtherwise
    raise Forbidden(_WHY_NOT[status])


class MemoryAuthority(MemoryOperations):
    """Grants, licences, capabilities and scoped reads."""

    @property
    def _authority(self) -> AuthorityTables:
        return self.db.extension(AuthorityTables)

    def _exact(self, amount: object, currency: object, least: Decimal | None) -> Decimal:
        """An amount in the decimals of its currency, from 0 or above it."""
        _require(isinstance(currency, str) and currency in self.db.currency, "amount")
        _require(_is_number(amount), "amount")
        value = Decimal(amount)  # type: ignore[arg-type]
        exact = _amount(value, self.db.currency[str(currency)].exponent)
        _require(exact is not None and _amount(value, 18) is not None, "amount")
        assert exact is not None  # noqa: S101 - narrows a type
        _require(exact >= 0 if least is None else exact > least, "amount")
        return exact

    @_call
    def register_order(
        self,
        account: str,
        invoice_id: str,
        order_id: str,
        *,
        seller: str,
        buyer: str,
        item: str,
        amount: Decimal | int,
        currency: str,
        uses_max: int | None = None,
        devices_max: int | None = None,
        valid_for: timedelta | None = None,
    ) -> str:
        for name, value in (
            ("account", account), ("invoice_id", invoice_id), ("order_id", order_id),
            ("seller", seller), ("buyer", buyer), ("item", item),
        ):  # fmt: skip
            _require(_is_key(value), name)
        exact = self._exact(amount, currency, None)
        for name, most in (("uses_max", uses_max), ("devices_max", devices_max)):
            _require(most is None or _is_integer(most, 1, 2**31 - 1), name)
        _require(
            valid_for is None or _is_duration(valid_for, _SECOND, timedelta(days=36525)),
            "valid_for",
        )
        self._durable()
        self._enter()
        table = self._authority.order_invoice
        key = (self._instance_key, account, invoice_id)
        row = OrderInvoiceRow(
            *key, order_id, seller, buyer, item, exact, currency, uses_max, devices_max, valid_for,
            self.db._now(),
        )  # fmt: skip
        old = table.get(key)
        if old is None:
            self.db.put(table, key, row)
            return "registered"
        row.registered_at = old.registered_at
        if row != old:
            raise KeyReused
        return "duplicate"

    @_call
    def record_payment(self, account: str, invoice_id: str, status: str) -> bool:
        _require(_is_key(account), "account")
        _require(_is_key(invoice_id), "invoice_id")
        _require(_is_slug(status), "status")
        self._durable()
        self._enter()
        return self._note_payment(account, invoice_id, status, None, self.db._now())

    def _payments(self, account: str, invoice_id: str) -> list[PaymentRow]:
        key = (self._instance_key, account, invoice_id)
        rows = [row for k, row in self._authority.payment.items() if k[:3] == key]
        return sorted(rows, key=lambda row: row.asked)

    def _note_payment(
        self, account: str, invoice_id: str, status: str, message_id: int | None, now: datetime
    ) -> bool:
        """What the provider said when it was asked; only news is kept. A handler's answer may be
        older than what is stored, and a paid invoice never goes back to draft or open."""
        last = self._payments(account, invoice_id)[-1:]
        stale = message_id is not None and status in ("draft", "open")
        if last and (last[0].status == status or (stale and last[0].status == "paid")):
            return False
        key = (self._instance_key, account, invoice_id, last[0].asked + 1 if last else 1)
        self.db.put(self._authority.payment, key, PaymentRow(*key, status, message_id, now))
        return True

    def _check_event(self, message_id: int, fence: int, account: str, invoice_id: str) -> None:
        self._check_claimed(message_id, fence)
        _require(_is_key(account), "account")
        _require(_is_key(invoice_id), "invoice_id")

    def _hold_event(
        self, message_id: int, fence: int, account: str, reference: str, now: datetime
    ) -> bool:
        """True: the handler's claim on an event of this account is held. False: this very claim
        was completed before, by what the receipt's reference says."""
        event = self._inbox.inbox_event.get((self._instance_key, message_id))
        if event is None or event.account != account:
            raise NotFound
        if self._matched(message_id, fence) is not None:
            return True
        status, _, _, _ = self._tell(message_id, fence, "completed", now)
        _refuse(status)
        receipt = self.db.receipt.get((self._instance_key, message_id))
        if receipt is None or receipt.reference != reference:
            raise EndedOtherwise
        return False

    def _lock_invoice(self, grant_id: str) -> None:
        """Whatever gives or ends the right of one invoice takes its turn here."""
        lane: tuple[str, Box, str] = (self._instance_key, "inbox", grant_id)
        if lane not in self.db.lane:
            self.db.put(self.db.lane, lane, None)

    def _finish_event(
        self,
        instance: InstanceRow,
        message_id: int,
        fence: int,
        reference: str | None,
        now: datetime,
    ) -> None:
        report = Report(message_id, fence, "completed", confirmed_by="handler", reference=reference)
        self._record(instance, (report,), now)

    def _finalized(self, status: Any, grant_id: str) -> Finalized:
        right = self._authority.entitlement.get((self._instance_key, grant_id))
        known = grant_id if right is not None else None
        return Finalized(
            status, known, known, known, right.state if right is not None else None, "delivered"
        )

    @_call
    def finalize_paid(
        self,
        message_id: int,
        fence: int,
        *,
        account: str,
        invoice_id: str,
        order_id: str,
        status: str,
    ) -> Finalized:
        self._check_event(message_id, fence, account, invoice_id)
        _require(_is_key(order_id), "order_id")
        _require(_is_slug(status), "status")
        self._durable()
        instance = self._enter()
        db, tables = self.db, self._authority
        now = db._now()
        grant_id = _grant_id(account, invoice_id)
        key = (self._instance_key, grant_id)
        known = self._operations.operation.get(key)
        if not self._hold_event(message_id, fence, account, grant_id, now):
            if known is None or _json(known.arguments)["order_id"] != order_id:
                raise EndedOtherwise
            return self._finalized("replayed", grant_id)
        order = tables.order_invoice.get((self._instance_key, account, invoice_id))
        if status != "paid" or order is None or order.order_id != order_id:
            self._lock_invoice(grant_id)
            self._note_payment(account, invoice_id, status, message_id, now)
            if status != "paid":
                return Finalized("not_paid", None, None, None, None, "leased")
            return Finalized("no_order", None, None, None, None, "leased")
        arguments = _canonical(
            {
                "account": account,
                "invoice_id": invoice_id,
                "order_id": order_id,
                "currency": order.currency,
            }
        )
        kind = "grant_entitlement"
        digest = _operation_digest(kind, None, None, None, order.amount, arguments)
        if known is not None and known.digest != digest:
            raise KeyReused
        refunds = self._refunds(account, invoice_id)
        if known is None and (
            sum(r.amount for r in refunds) > order.amount
            or any(r.currency != order.currency for r in refunds)
        ):
            raise Forbidden
        self._lock_invoice(grant_id)
        self._note_payment(account, invoice_id, status, message_id, now)
        if known is None:
            provider = self._inbox.inbox_event[self._instance_key, message_id].provider
            operation = OperationRow(
                *key, kind, None, None, None, None, None, None, provider, "provider",
                _trim(order.amount), arguments, digest, "paid", message_id, now,
            )  # fmt: skip
            db.put(self._operations.operation, key, operation)
            until = None if order.valid_for is None else now + order.valid_for
            right = EntitlementRow(
                *key, account, invoice_id, order_id, order.seller, order.buyer, order.item,
                "active", 1, now, until, now,
            )  # fmt: skip
            db.put(tables.entitlement, key, right)
            licence = LicenceRow(
                *key, grant_id, account, order.seller, order.uses_max, order.devices_max, now
            )
            db.put(tables.licence, key, licence)
            self._audit("grant", message_id, provider, "paid", {"operation_id": grant_id}, now)
            for refund in refunds:
                self._end_right(
                    grant_id, _refund_id(account, refund.refund_id), "refunded", -refund.amount,
                    provider, "provider", "refunded", f"message:{refund.message_id}", now,
                )  # fmt: skip
        self._finish_event(instance, message_id, fence, grant_id, now)
        return self._finalized("granted" if known is None else "already_granted", grant_id)

    def _refunds(self, account: str, invoice_id: str) -> list[RefundRow]:
        of = (self._instance_key, account, invoice_id)
        rows = [
            row
            for row in self._authority.refund.values()
            if (row.instance_key, row.account, row.invoice_id) == of
        ]
        return sorted(rows, key=lambda row: (row.refunded_at, row.refund_id))

    def _end_right(
        self,
        grant_id: str,
        adjustment_id: str,
        cause: EntitlementStatus,
        amount: Decimal,
        actor: str,
        role: str,
        reason: str,
        evidence: str,
        now: datetime,
    ) -> str:
        """The end of a right, as a correction of the operation that gave it."""
        key = (self._instance_key, grant_id)
        if key not in self._operations.operation:
            return "no_grant"
        right = self._authority.entitlement.get(key)
        if right is not None and right.state != "active" and amount == 0:
            return "already_ended"
        corrected = self._correct(
            grant_id, adjustment_id, cause, amount, len(self._adjustments(grant_id)), None, actor,
            role, reason, evidence, now,
        )  # fmt: skip
        _refuse_operation(corrected.status)
        ends = amount == 0 or corrected.balance == 0
        if right is not None and right.state == "active" and corrected.status == "applied" and ends:
            self.db.change(right)
            right.state = cause
            right.version += 1
            right.changed_at = now
        return corrected.status

    @_call
    def apply_provider_cancel(
        self,
        message_id: int,
        fence: int,
        *,
        account: str,
        invoice_id: str,
        cause: Cause,
        evidence: str,
    ) -> Finalized:
        self._check_event(message_id, fence, account, invoice_id)
        _require(cause in get_args(Cause), "cause")
        _require(_is_text(evidence), "evidence")
        self._durable()
        instance = self._enter()
        now = self.db._now()
        grant_id = _grant_id(account, invoice_id)
        reference = f"{cause}:{grant_id}"
        if not self._hold_event(message_id, fence, account, reference, now):
            return self._finalized("replayed", grant_id)
        provider = self._inbox.inbox_event[self._instance_key, message_id].provider
        status = self._end_right(
            grant_id, f"{cause}:{message_id}", cause, Decimal(0), provider, "provider", cause,
            evidence, now,
        )  # fmt: skip
        self._lock_invoice(grant_id)
        self._finish_event(instance, message_id, fence, reference, now)
        return self._finalized("ended" if status == "applied" else status, grant_id)

    @_call
    def apply_refund(
        self,
        message_id: int,
        fence: int,
        *,
        account: str,
        invoice_id: str,
        refund_id: str,
        amount: Decimal | int,
        currency: str,
        evidence: str,
    ) -> Finalized:
        self._check_event(message_id, fence, account, invoice_id)
        _require(_is_key(refund_id), "refund_id")
        exact = self._exact(amount, currency, Decimal(0))
        _require(_is_text(evidence), "evidence")
        self._durable()
        instance = self._enter()
        db = self.db
        now = db._now()
        grant_id = _grant_id(account, invoice_id)
        reference = _refund_id(account, refund_id)
        held = self._hold_event(message_id, fence, account, reference, now)
        key = (self._instance_key, account, refund_id)
        row = RefundRow(*key, invoice_id, exact, currency, message_id, now)
        old = self._authority.refund.get(key)
        known = old is not None and (
            (old.invoice_id, old.amount, old.currency) == (invoice_id, exact, currency)
        )
        if not held:
            if not known:
                raise EndedOtherwise
            return self._finalized("replayed", grant_id)
        if old is not None and not known:
            raise KeyReused
        operation = self._operations.operation.get((self._instance_key, grant_id))
        if operation is not None and _json(operation.arguments)["currency"] != currency:
            raise Forbidden("another currency than what was paid")
        provider = self._inbox.inbox_event[self._instance_key, message_id].provider
        status = self._end_right(
            grant_id, reference, "refunded", -exact, provider,
            "provider", "refunded", evidence, now,
        )  # fmt: skip
        self._lock_invoice(grant_id)
        if old is None:
            db.put(self._authority.refund, key, row)
        self._finish_event(instance, message_id, fence, reference, now)
        words = {"applied": "refunded", "replayed": "already_refunded"}
        return self._finalized(words.get(status, status), grant_id)

    @_call
    def update_subscription(
        self,
        account: str,
        subscription_id: str,
        invoice_id: str,
        *,
        status: SubscriptionStatus,
        period_end: datetime,
        asked_at: datetime,
    ) -> str:
        _require(_is_key(account), "account")
        _require(_is_key(subscription_id), "subscription_id")
        _require(_is_key(invoice_id), "invoice_id")
        _require(status in get_args(SubscriptionStatus), "status")
        _require(_is_time(period_end), "period_end")
        _require(_is_time(asked_at), "asked_at")
        self._durable()
        self._enter()
        db = self.db
        period_end, asked_at = period_end.astimezone(UTC), asked_at.astimezone(UTC)
        _require(asked_at <= db._now(), "asked_at")
        key = (self._instance_key, account, subscription_id)
        row = self._authority.subscription.get(key)
        if row is None:
            row = SubscriptionRow(*key, invoice_id, status, period_end, 1, asked_at)
            db.put(self._authority.subscription, key, row)
            return "created"
        if asked_at <= row.asked_at:
            return "stale"
        db.change(row)
        row.invoice_id, row.status, row.period_end = invoice_id, status, period_end
        row.version += 1
        row.asked_at = asked_at
        return "updated"

    @_call
    def expire_entitlements(self, *, actor: str, reason: str, limit: int = 1000) -> int:
        _check_act(actor, reason)
        _require(_is_integer(limit, 1, 10_000), "limit")
        self._durable()
        self._enter()
        now = self.db._now()
        due = sorted(
            (row.valid_until, row.entitlement_id)
            for row in self._authority.entitlement.values()
            if row.instance_key == self._instance_key
            and row.state == "active"
            and row.valid_until is not None
            and row.valid_until <= now
            and (self._instance_key, row.entitlement_id) in self._operations.operation
        )
        ended = [
            self._end_right(
                grant_id, f"expired:{grant_id}", "expired", Decimal(0), actor, "operator", reason,
                "valid_until", now,
            )
            for _, grant_id in due[:limit]
        ]  # fmt: skip
        return ended.count("applied")

    def _is_active(self, right: EntitlementRow, now: datetime) -> bool:
        return right.state == "active" and (right.valid_until is None or right.valid_until > now)

    @_call
    def issue_capability(
        self,
        capability_id: str,
        licence_id: str,
        subject: str,
        *,
        lifetime: timedelta = timedelta(minutes=5),
    ) -> CapabilityIssued:
        _require(_is_key(capability_id), "capability_id")
        _require(_is_key(licence_id), "licence_id")
        _require(_is_key(subject), "subject")
        _require(_is_duration(lifetime, _SECOND, timedelta(days=30)), "lifetime")
        self._durable()
        self._enter()
        db, tables = self.db, self._authority
        now = db._now()
        licence = tables.licence.get((self._instance_key, licence_id))
        if licence is None:
            raise NotFound
        right = tables.entitlement[self._instance_key, licence.entitlement_id]
        key = (self._instance_key, capability_id)
        known = tables.capability.get(key)
        if known is None:
            if not self._is_active(right, now):
                raise Forbidden("the right is not active")
            row = CapabilityRow(*key, licence_id, subject, now, now + lifetime)
            db.put(tables.capability, key, row)
            return CapabilityIssued(capability_id, "issued", licence_id, row.expires_at)
        if (known.licence_id, known.subject) != (licence_id, subject):
            raise KeyReused
        return CapabilityIssued(capability_id, "duplicate", licence_id, known.expires_at)

    @_call
    def execute_licence(
        self,
        capability_id: str,
        subject: str,
        usage_id: str,
        *,
        thumbprint: str | None = None,
        on_refused: OnRefused = "raise",
    ) -> Executed:
        _require(_is_key(capability_id), "capability_id")
        _require(_is_key(subject), "subject")
        _require(_is_key(usage_id), "usage_id")
        _require(thumbprint is None or _is_key(thumbprint), "thumbprint")
        _check_on(on_refused, "on_refused")
        self._durable()
        self._enter()
        db, tables = self.db, self._authority
        capability = tables.capability.get((self._instance_key, capability_id))
        if capability is None:
            if on_refused == "raise":
                raise NotFound
            return Executed(usage_id, "not_found", None, None, None, None)
        now = db._now()
        licence_id = capability.licence_id
        licence = tables.licence[self._instance_key, licence_id]
        usage = tables.license_usage.get((self._instance_key, usage_id))
        total = self._uses(licence_id, "all")
        month = self._uses(licence_id, _month(usage.used_at if usage is not None else now))
        status = self._judge_use(capability, licence, usage, subject, total, thumbprint, now)
        if status == "replayed" and usage is not None:
            return Executed(usage_id, "replayed", licence_id, usage.used_at, total, month)
        if status != "executed":
            if on_refused == "raise":
                _refuse_use(status)
            if status not in ("operation_conflict", "not_found", "replayed"):
                kind = cast("SecurityKind", status)
                where = (self._instance_key, capability_id, kind, usage_id)
                if where not in tables.security_event:
                    event = SecurityEventRow(
                        *where, licence_id, licence.account, licence.seller, subject, now
                    )
                    db.put(tables.security_event, where, event)
            if status == "other_subject":
                return Executed(usage_id, "not_found", None, None, None, None)
            return Executed(usage_id, status, licence_id, None, total, month)
        db.change(capability)
        capability.consumed_by = usage_id
        capability.consumed_at = now
        used = LicenseUsageRow(
            self._instance_key, usage_id, capability_id, licence_id, licence.account,
            licence.seller, subject, now,
        )  # fmt: skip
        db.put(tables.license_usage, (self._instance_key, usage_id), used)
        return Executed(
            usage_id, "executed", licence_id, now, self._count(licence, "all", now),
            self._count(licence, _month(now), now),
        )  # fmt: skip

    def _judge_use(
        self,
        capability: CapabilityRow,
        licence: LicenceRow,
        usage: LicenseUsageRow | None,
        subject: str,
        total: int | None,
        thumbprint: str | None,
        now: datetime,
    ) -> ExecuteStatus | SecurityKind:
        """Whether this use may happen; the first reason against it."""
        right = self._authority.entitlement[self._instance_key, licence.entitlement_id]
        device = (self._instance_key, licence.licence_id, thumbprint or "")
        status: ExecuteStatus | SecurityKind = "executed"
        if capability.subject != subject:
            status = "other_subject"
        elif usage is not None:
            same = usage.capability_id == capability.capability_id
            status = "replayed" if same else "operation_conflict"
        elif capability.consumed_by is not None:
            status = "consumed"
        elif capability.expires_at <= now:
            status = "expired"
        elif not self._is_active(right, now):
            status = "not_active"
        elif licence.uses_max is not None and (total or 0) >= licence.uses_max:
            status = "exhausted"
        elif licence.devices_max is not None and device not in self._authority.device_binding:
            status = "device_unknown"
        return status

    def _uses(self, licence_id: str, period: str) -> int | None:
        row = self._authority.usage_counter.get((self._instance_key, licence_id, period))
        return row.uses if row is not None else None

    def _count(self, licence: LicenceRow, period: str, now: datetime) -> int:
        table = self._authority.usage_counter
        key = (self._instance_key, licence.licence_id, period)
        row = table.get(key)
        if row is None:
            row = UsageCounterRow(*key, licence.account, licence.seller, 1, now)
            self.db.put(table, key, row)
        else:
            self.db.change(row)
            row.uses += 1
            row.counted_at = now
        return row.uses

    @_call
    def bind_device(self, licence_id: str, thumbprint: str) -> str:
        _require(_is_key(licence_id), "licence_id")
        _require(_is_key(thumbprint), "thumbprint")
        self._durable()
        self._enter()
        tables = self._authority
        licence = tables.licence.get((self._instance_key, licence_id))
        if licence is None:
            raise NotFound
        key = (self._instance_key, licence_id, thumbprint)
        if key in tables.device_binding:
            return "duplicate"
        bound = sum(k[:2] == key[:2] for k in tables.device_binding)
        if licence.devices_max is not None and bound >= licence.devices_max:
            raise Forbidden("the licence has all its devices")
        row = DeviceBindingRow(*key, licence.account, licence.seller, self.db._now())
        self.db.put(tables.device_binding, key, row)
        return "bound"

    # Scoped reads.

    def _viewed(
        self,
        viewer: Viewer,
        account: str,
        seller: str | None,
        limit: int,
        after: str,
        rows: Iterable[Any],
        line: Callable[[Any], R],
    ) -> list[R]:
        """The rows that the viewer may see, as lines in the order of their ids."""
        _require(isinstance(viewer, Viewer), "viewer")
        _require(_is_key(account), "account")
        _require(seller is None or _is_key(seller), "seller")
        _require(_is_integer(limit, 1, 10_000), "limit")
        _require(_is_after(after, 1000), "after")
        self._enter()
        if (
            viewer.kind not in ("admin", "seller", "buyer")
            or not _is_key(viewer.tenant)
            or (viewer.kind == "seller" and not _is_key(viewer.seller))
        ):
            raise NoViewer
        if viewer.kind == "buyer":
            raise AccessDenied("not for buyers")
        shown = viewer.seller if viewer.kind == "seller" else seller
        if account != viewer.tenant or seller not in (None, shown):
            raise NotFound
        lines: list[Any] = [
            line(row)
            for row in rows
            if row.instance_key == self._instance_key
            and row.account == account
            and shown in (None, row.seller)
        ]
        return sorted((x for x in lines if x.id > after), key=lambda x: x.id)[:limit]

    @_call
    def list_entitlements(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[EntitlementLine]:
        return self._viewed(
            viewer, account, seller, limit, after, self._authority.entitlement.values(),
            lambda r: EntitlementLine(
                r.entitlement_id, r.account, r.invoice_id, r.order_id, r.seller, r.buyer, r.item,
                r.state, r.version, r.granted_at, r.valid_until,
            ),
        )  # fmt: skip

    @_call
    def list_usage(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[UsageLine]:
        return self._viewed(
            viewer, account, seller, limit, after, self._authority.license_usage.values(),
            lambda r: UsageLine(
                r.usage_id, r.licence_id, r.account, r.seller, r.subject, r.used_at
            ),
        )  # fmt: skip

    @_call
    def list_counters(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[CounterLine]:
        return self._viewed(
            viewer, account, seller, limit, after, self._authority.usage_counter.values(),
            lambda r: CounterLine(
                f"{r.licence_id}:{r.period}", r.licence_id, r.period, r.account, r.seller, r.uses
            ),
        )  # fmt: skip

    @_call
    def list_devices(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[DeviceLine]:
        return self._viewed(
            viewer, account, seller, limit, after, self._authority.device_binding.values(),
            lambda r: DeviceLine(
                f"{r.licence_id}:{r.thumbprint}", r.licence_id, r.thumbprint, r.account, r.seller,
                r.bound_at,
            ),
        )  # fmt: skip

    @_call
    def list_security_events(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[SecurityLine]:
        return self._viewed(
            viewer, account, seller, limit, after, self._authority.security_event.values(),
            lambda r: SecurityLine(
                f"{len(r.capability_id)}:{r.capability_id}:{r.kind}:{r.usage_id}", r.kind,
                r.licence_id, r.account, r.seller, r.subject, r.seen_at,
            ),
        )  # fmt: skip
