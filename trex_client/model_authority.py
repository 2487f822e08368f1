"""Frozen results of grants, licences and scoped reads, named and ordered like the composite types
in `sql/migrations`. Times are aware datetimes in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime


EntitlementStatus = Literal["active", "cancelled", "expired", "refunded", "revoked"]
SubscriptionStatus = Literal["active", "past_due", "cancelled", "expired"]
Cause = Literal["cancelled", "expired", "revoked"]
ExecuteStatus = Literal[
    "executed", "replayed", "not_found", "operation_conflict", "consumed", "expired", "not_active",
    "exhausted", "device_unknown",
]  # fmt: skip
SecurityKind = Literal[
    "consumed", "device_unknown", "exhausted", "expired", "not_active", "other_subject"
]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks, verified by the calling service. `kind`: 'admin', 'seller', 'buyer', or None for
    nobody. `tenant`: the provider's account they belong to."""

    kind: str | None
    tenant: str | None = None
    seller: str | None = None


@dataclass(frozen=True, slots=True)
class Finalized:
    """What became of an event and the right that it is about."""

    status: Literal[
        "granted", "already_granted", "not_paid", "no_order", "ended", "already_ended", "refunded",
        "already_refunded", "no_grant", "replayed",
    ]  # fmt: skip
    operation_id: str | None
    entitlement_id: str | None
    licence_id: str | None
    entitlement_state: EntitlementStatus | None
    message_state: Literal["leased", "delivered"]


@dataclass(frozen=True, slots=True)
class CapabilityIssued:
    capability_id: str
    status: Literal["issued", "duplicate"]
    licence_id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Executed:
    """One use of a licence, or why there was none. `total`, `month`: the licence's counters as they
    are now, also when the use is replayed; `month`: of the month of the use."""

    usage_id: str
    status: ExecuteStatus
    licence_id: str | None
    used_at: datetime | None
    total: int | None
    month: int | None


@dataclass(frozen=True, slots=True)
class EntitlementLine:
    id: str
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


@dataclass(frozen=True, slots=True)
class UsageLine:
    id: str
    licence_id: str
    account: str
    seller: str
    subject: str
    used_at: datetime


@dataclass(frozen=True, slots=True)
class CounterLine:
    """`period`: 'all', or a month as YYYY-MM in UTC."""

    id: str
    licence_id: str
    period: str
    account: str
    seller: str
    uses: int


@dataclass(frozen=True, slots=True)
class DeviceLine:
    id: str
    licence_id: str
    thumbprint: str
    account: str
    seller: str
    bound_at: datetime


@dataclass(frozen=True, slots=True)
class SecurityLine:
    id: str
    kind: SecurityKind
    licence_id: str
    account: str
    seller: str
    subject: str
    seen_at: datetime
