"""Frozen results of reconciliation, named and ordered like the composite types in `sql/migrations`.
Times are aware datetimes in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from datetime import datetime

RunState = Literal["running", "clean", "findings", "failed"]
FindingState = Literal["needs_review", "repaired"]
FindingType = Literal[
    "counter_drift", "duplicate_issuance_per_payment", "failed_or_stuck_outbox", "fence_gap",
    "orphan_row", "overdue_state", "paid_no_entitlement", "refunded_but_valid_entitlement",
    "skip_without_parked_row", "snapshot_drift", "subscription_expired_but_renewed",
    "unpaid_but_entitled", "unprocessed_inbox_events",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """One run. `found`: drifts that it saw; `fresh`: of these, unknown before. `failed_code`: the
    SQLSTATE of the check that couldn't be read."""

    run_id: int
    state: RunState
    at_check: str
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


@dataclass(frozen=True, slots=True)
class ReconcileFinding:
    """One drift, however many runs have seen it."""

    finding_id: str
    type: FindingType
    ref_ids: dict[str, Any] = field(repr=False)
    expected: str
    actual: str
    causal_events: list[str]
    recoverable: bool
    recommended_action: str
    state: FindingState
    first_run: int
    last_run: int
    found_at: datetime
    seen_at: datetime
