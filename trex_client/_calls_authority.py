"""Grants, licences, capabilities and scoped reads as SQL calls; see `trex_client._calls`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from trex_client._calls import (
    _INSTANT,
    _NUMBER,
    _OPERATOR,
    Call,
    Params,
    Row,
    Statement,
    _bool_value,
    _duration,
    _int4,
    _int_value,
    _integer,
    _interval,
    _money,
    _optional_text,
    _text,
    _text_value,
    _time,
    _with_times,
)
from trex_client._calls_operations import OperationCalls
from trex_client.errors import InvalidArgument
from trex_client.model_authority import (
    CapabilityIssued,
    Cause,
    CounterLine,
    DeviceLine,
    EntitlementLine,
    Executed,
    Finalized,
    SecurityLine,
    SubscriptionStatus,
    UsageLine,
    Viewer,
)

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

    from trex_client.model_operations import OnRefused

T = TypeVar("T")


def _finalized(rows: list[Row]) -> Finalized:
    return Finalized(*rows[0])


def _capability(rows: list[Row]) -> CapabilityIssued:
    return CapabilityIssued(*_with_times(rows[0], 3))


def _executed(rows: list[Row]) -> Executed:
    return Executed(*_with_times(rows[0], 3))


def _entitlements(rows: list[Row]) -> list[EntitlementLine]:
    return [EntitlementLine(*_with_times(row, 9, 10)) for row in rows]


def _usages(rows: list[Row]) -> list[UsageLine]:
    return [UsageLine(*_with_times(row, 5)) for row in rows]


def _counters(rows: list[Row]) -> list[CounterLine]:
    return [CounterLine(*row) for row in rows]


def _devices(rows: list[Row]) -> list[DeviceLine]:
    return [DeviceLine(*_with_times(row, 5)) for row in rows]


def _security_events(rows: list[Row]) -> list[SecurityLine]:
    return [SecurityLine(*_with_times(row, 6)) for row in rows]


_FINALIZED: Final = "status operation_id entitlement_id licence_id entitlement_state message_state"
_EVENT: Final = "message_id bigint, fence bigint, account text, invoice_id text"
_VIEW: Final = (
    "viewer_kind text, viewer_tenant text, viewer_seller text, account text, seller text, "
    "limit integer, after text"
)

_REGISTER_ORDER: Final = Statement(
    "register_order",
    "account text, invoice_id text, order_id text, seller text, buyer text, item text, "
    "amount numeric, currency text, uses_max integer, devices_max integer, valid_for interval",
    "",
    _text_value,
)
_RECORD_PAYMENT: Final = Statement(
    "record_payment", "account text, invoice_id text, status text", "", _bool_value
)
_FINALIZE_PAID: Final = Statement(
    "finalize_paid", f"{_EVENT}, order_id text, status text", _FINALIZED, _finalized
)
_APPLY_PROVIDER_CANCEL: Final = Statement(
    "apply_provider_cancel", f"{_EVENT}, cause text, evidence text", _FINALIZED, _finalized
)
_APPLY_REFUND: Final = Statement(
    "apply_refund",
    f"{_EVENT}, refund_id text, amount numeric, currency text, evidence text",
    _FINALIZED,
    _finalized,
)
_UPDATE_SUBSCRIPTION: Final = Statement(
    "update_subscription",
    "account text, subscription_id text, invoice_id text, status text, period_end timestamptz, "
    "asked_at timestamptz",
    "",
    _text_value,
)
_EXPIRE_ENTITLEMENTS: Final = Statement(
    "expire_entitlements", f"{_OPERATOR}, limit integer", "", _int_value
)
_ISSUE_CAPABILITY: Final = Statement(
    "issue_capability",
    "capability_id text, licence_id text, subject text, lifetime interval",
    "capability_id status licence_id expires_at",
    _capability,
)
_EXECUTE_LICENCE: Final = Statement(
    "execute_licence",
    "capability_id text, subject text, usage_id text, thumbprint text, on_refused text",
    "usage_id status licence_id used_at total month",
    _executed,
)
_BIND_DEVICE: Final = Statement("bind_device", "licence_id text, thumbprint text", "", _text_value)
_LIST_ENTITLEMENTS: Final = Statement(
    "list_entitlements",
    _VIEW,
    "id account invoice_id order_id seller buyer item state version granted_at valid_until",
    _entitlements,
)
_LIST_USAGE: Final = Statement(
    "list_usage", _VIEW, "id licence_id account seller subject used_at", _usages
)
_LIST_COUNTERS: Final = Statement(
    "list_counters", _VIEW, "id licence_id period account seller uses", _counters
)
_LIST_DEVICES: Final = Statement(
    "list_devices", _VIEW, "id licence_id thumbprint account seller bound_at", _devices
)
_LIST_SECURITY_EVENTS: Final = Statement(
    "list_security_events",
    _VIEW,
    "id kind licence_id account seller subject seen_at",
    _security_events,
)


def _required_money(name: str, value: object) -> str:
    text = _money(name, value)
    if text is None:
        raise InvalidArgument(f"{name}: {_NUMBER}")
    return text


def _required_time(name: str, value: object) -> str:
    text = _time(name, value)
    if text is None:
        raise InvalidArgument(f"{name}: {_INSTANT}")
    return text


class AuthorityCalls(OperationCalls):
    """All functions up to grants, licences, capabilities and scoped reads."""

    __slots__ = ()

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
    ) -> Call[str]:
        """Register what was ordered under one invoice: 'registered' or 'duplicate'.

        Raises:
            KeyReused: the invoice exists with other content.
        """
        return _REGISTER_ORDER, (
            self.instance_key,
            _text("account", account),
            _text("invoice_id", invoice_id),
            _text("order_id", order_id),
            _text("seller", seller),
            _text("buyer", buyer),
            _text("item", item),
            _required_money("amount", amount),
            _text("currency", currency),
            None if uses_max is None else _int4("uses_max", uses_max),
            None if devices_max is None else _int4("devices_max", devices_max),
            _interval("valid_for", valid_for),
        )

    def record_payment(self, account: str, invoice_id: str, status: str) -> Call[bool]:
        """Store what the provider says of one invoice now; True if that is news."""
        return _RECORD_PAYMENT, (
            self.instance_key,
            _text("account", account),
            _text("invoice_id", invoice_id),
            _text("status", status),
        )

    def finalize_paid(
        self,
        message_id: int,
        fence: int,
        *,
        account: str,
        invoice_id: str,
        order_id: str,
        status: str,
    ) -> Call[Finalized]:
        """Grant what was paid for, once, and complete the claimed event; or do neither. `status` is
        what the provider answered, asked before this transaction. `not_paid` and `no_order` leave
        the claim held: postpone it.

        Raises:
            NotFound: no such event of this account; ClaimLost, EndedOtherwise: roll back.
        """
        return _FINALIZE_PAID, (
            *self._event(message_id, fence, account, invoice_id),
            _text("order_id", order_id),
            _text("status", status),
        )

    def _event(self, message_id: int, fence: int, account: str, invoice_id: str) -> Params:
        return (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("account", account),
            _text("invoice_id", invoice_id),
        )

    def apply_provider_cancel(
        self,
        message_id: int,
        fence: int,
        *,
        account: str,
        invoice_id: str,
        cause: Cause,
        evidence: str,
    ) -> Call[Finalized]:
        """End the right of one invoice because the provider did, and complete the claimed event.
        Errors as `finalize_paid`.
        """
        return _APPLY_PROVIDER_CANCEL, (
            *self._event(message_id, fence, account, invoice_id),
            _text("cause", cause),
            _text("evidence", evidence),
        )

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
    ) -> Call[Finalized]:
        """Correct the grant by money that went back, and complete the claimed event; the right ends
        when nothing is left. Errors as `finalize_paid`.

        Raises:
            KeyReused: the refund id has another content; Forbidden: more than is left, or another
            currency.
        """
        return _APPLY_REFUND, (
            *self._event(message_id, fence, account, invoice_id),
            _text("refund_id", refund_id),
            _required_money("amount", amount),
            _text("currency", currency),
            _text("evidence", evidence),
        )

    def update_subscription(
        self,
        account: str,
        subscription_id: str,
        invoice_id: str,
        *,
        status: SubscriptionStatus,
        period_end: datetime,
        asked_at: datetime,
    ) -> Call[str]:
        """Store a subscription as the provider states it: 'created', 'updated', or 'stale' when the
        stored answer is as new or newer. `asked_at`: when the provider was asked.
        """
        return _UPDATE_SUBSCRIPTION, (
            self.instance_key,
            _text("account", account),
            _text("subscription_id", subscription_id),
            _text("invoice_id", invoice_id),
            _text("status", status),
            _required_time("period_end", period_end),
            _required_time("asked_at", asked_at),
        )

    def expire_entitlements(self, *, actor: str, reason: str, limit: int = 1000) -> Call[int]:
        """End the rights whose time is over, at most `limit` (1 to 10,000); how many were."""
        return _EXPIRE_ENTITLEMENTS, (
            self.instance_key,
            _text("actor", actor),
            _text("reason", reason),
            _int4("limit", limit),
        )

    def issue_capability(
        self,
        capability_id: str,
        licence_id: str,
        subject: str,
        *,
        lifetime: timedelta = timedelta(minutes=5),
    ) -> Call[CapabilityIssued]:
        """Issue one use of a licence by one subject, for 1 second to 30 days.

        Raises:
            NotFound: no such licence; KeyReused: the id has another content; Forbidden: the right
            is not active.
        """
        return _ISSUE_CAPABILITY, (
            self.instance_key,
            _text("capability_id", capability_id),
            _text("licence_id", licence_id),
            _text("subject", subject),
            _duration("lifetime", lifetime),
        )

    def execute_licence(
        self,
        capability_id: str,
        subject: str,
        usage_id: str,
        *,
        thumbprint: str | None = None,
        on_refused: OnRefused = "raise",
    ) -> Call[Executed]:
        """Use a licence once: consume the capability, record the use and count it, or nothing of
        it. With `on_refused='report'` a refusal is kept as a security event. 'replayed' has the
        time of then and the counters as they are now.

        Raises:
            NotFound: no such capability for this subject; KeyReused: the usage id has another
            capability; EndedOtherwise: consumed by another use; Forbidden: expired, right not
            active, uses exhausted, or device unknown. Checked in this order.
        """
        return _EXECUTE_LICENCE, (
            self.instance_key,
            _text("capability_id", capability_id),
            _text("subject", subject),
            _text("usage_id", usage_id),
            _optional_text("thumbprint", thumbprint),
            _text("on_refused", on_refused),
        )

    def bind_device(self, licence_id: str, thumbprint: str) -> Call[str]:
        """Bind one more device, by its key's thumbprint: 'bound' or 'duplicate'.

        Raises:
            NotFound: no such licence; Forbidden: it has all its devices.
        """
        return _BIND_DEVICE, (
            self.instance_key,
            _text("licence_id", licence_id),
            _text("thumbprint", thumbprint),
        )

    def _view(
        self,
        statement: Statement[T],
        viewer: Viewer,
        account: str,
        seller: str | None,
        limit: int,
        after: str,
    ) -> Call[T]:
        if not isinstance(viewer, Viewer):
            raise InvalidArgument("viewer: a Viewer")
        return statement, (
            self.instance_key,
            _optional_text("viewer_kind", viewer.kind),
            _optional_text("viewer_tenant", viewer.tenant),
            _optional_text("viewer_seller", viewer.seller),
            _text("account", account),
            _optional_text("seller", seller),
            _int4("limit", limit),
            _text("after", after),
        )

    def list_entitlements(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Call[list[EntitlementLine]]:
        """Rights by id, from the first above `after`: an administrator sees all of their account, a
        seller their own.

        Raises:
            NoViewer: nobody, or anonymous; AccessDenied: a buyer; NotFound: another account, or
            another seller's.
        """
        return self._view(_LIST_ENTITLEMENTS, viewer, account, seller, limit, after)

    def list_usage(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Call[list[UsageLine]]:
        """Uses of licences, as `list_entitlements`."""
        return self._view(_LIST_USAGE, viewer, account, seller, limit, after)

    def list_counters(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Call[list[CounterLine]]:
        """Usage counters, as `list_entitlements`."""
        return self._view(_LIST_COUNTERS, viewer, account, seller, limit, after)

    def list_devices(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Call[list[DeviceLine]]:
        """Bound devices, as `list_entitlements`."""
        return self._view(_LIST_DEVICES, viewer, account, seller, limit, after)

    def list_security_events(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Call[list[SecurityLine]]:
        """Refused uses of licences, as `list_entitlements`."""
        return self._view(_LIST_SECURITY_EVENTS, viewer, account, seller, limit, after)
