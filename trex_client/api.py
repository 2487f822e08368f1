"""The API: one method per public SQL function, same names, same arguments without `p_`.

See `sql/functions/**/NAME.sql` for the rule behind each method, and `trex_client._calls*` for what
goes in, what comes out, and the errors.

`PostgresClient` (sync) and `AsyncPostgresClient` call the functions; `MemoryClient` is the
simulation. All three are bound to one instance in their constructor, which refuses an empty or
malformed key with `InvalidArgument` before anything else happens. The caller owns connection and
transaction; only `claim` and `exchange` refuse a connection inside a transaction
(`WrongTransaction`) and have committed when they return.

Units and ranges: `limit` 1 to 1,000 (reads: to 10,000); `lease` 100 ms to the instance's
`lease_max`; `delay` 0 to 30 days; keys 1 to 255 characters without control characters or blanks at
the ends; `reason` of an outcome from `model.REASONS`; `actor` a key; an operator's `reason` and
`evidence` 1 to 1,000 characters without control characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, Protocol

from trex_client.model import (
    Box,
    Cash,
    Claim,
    ConfirmedBy,
    EffectPolicy,
    Enqueued,
    Exchange,
    Extended,
    InstancePolicy,
    InstanceStats,
    MessageStatus,
    Movement,
    OnConflict,
    OnLost,
    Operated,
    ParkedMessage,
    Pending,
    Purged,
    Recorded,
    Report,
    Resolution,
    Result,
)
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
from trex_client.model_inbox import InboxEvent, InboxState, Received
from trex_client.model_operations import (
    Corrected,
    Effect,
    EffectState,
    EntityState,
    EntityStep,
    MachineCell,
    OnRefused,
    OperationLine,
    Overdue,
    Transitioned,
)
from trex_client.model_reconcile import FindingState, ReconcileFinding, ReconcileReport


class Kernel(Protocol):
    """The outbox, the claims of both boxes, reads and operators."""

    @property
    def instance_key(self) -> str: ...

    # outbox: write

    def enqueue(
        self,
        topic: str,
        idempotency_key: str,
        payload: Any = None,
        *,
        payload_json: str | None = None,
        account: str | None = None,
        currency: str | None = None,
        cash_delta: Decimal | int | None = None,
        correlation_id: str | None = None,
        ordering_key: str | None = None,
        effect_policy: EffectPolicy = "idempotent",
        delay: timedelta | None = None,
        on_conflict: OnConflict = "raise",
    ) -> Enqueued: ...

    def enqueue_many(
        self, movements: Sequence[Movement], *, on_conflict: OnConflict = "raise"
    ) -> list[Enqueued]: ...

    # claim

    def claim(
        self,
        worker: str,
        limit: int = 1,
        *,
        lease: timedelta | None = None,
        box: Box = "outbox",
        correlation_id: str | None = None,
        after: int = 0,
        due_after: datetime | None = None,
    ) -> list[Claim]: ...

    def extend(
        self, message_ids: Sequence[int], fences: Sequence[int], *, lease: timedelta | None = None
    ) -> list[Extended]: ...

    def release(
        self, message_id: int, fence: int, *, reason: str = "not_started", on_lost: OnLost = "raise"
    ) -> Recorded: ...

    def postpone(
        self,
        message_id: int,
        fence: int,
        delay: timedelta,
        *,
        reason: str = "waiting",
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def mark_sent(self, message_id: int, fence: int, *, on_lost: OnLost = "raise") -> Recorded: ...

    def hold(
        self, message_id: int, fence: int, *, timeout: timedelta = timedelta(seconds=10)
    ) -> Recorded: ...

    def listen(self, worker: str, duration: timedelta) -> str: ...

    def unlisten(self, worker: str) -> None: ...

    # outcome

    def complete(
        self,
        message_id: int,
        fence: int,
        *,
        reference: str | None = None,
        confirmed_by: ConfirmedBy = "answer",
        balance: Decimal | None = None,
        version: int | None = None,
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def complete_duplicate(
        self,
        message_id: int,
        fence: int,
        *,
        reference: str | None = None,
        confirmed_by: ConfirmedBy = "answer",
        balance: Decimal | None = None,
        version: int | None = None,
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def retry(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        delay: timedelta | None = None,
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def mark_unknown(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        delay: timedelta | None = None,
        park: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def conflict(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "key_conflict",
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def fail(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "rejected",
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def dead_letter(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded: ...

    def record(self, reports: Sequence[Report]) -> list[Recorded]: ...

    def exchange(
        self,
        reports: Sequence[Report],
        worker: str,
        limit: int = 1,
        *,
        lease: timedelta | None = None,
        box: Box = "outbox",
        after: int = 0,
        due_after: datetime | None = None,
    ) -> Exchange: ...

    def report_stale(self, message_id: int, fence: int, result: Result) -> bool: ...

    # read

    def list_pending(
        self,
        *,
        limit: int = 100,
        after: int = 0,
        box: Box = "outbox",
        include_parked: bool = False,
    ) -> list[Pending]: ...

    def pending_cash_delta(
        self, *, account: str | None = None, currency: str | None = None
    ) -> list[Cash]: ...

    def list_parked(
        self, *, limit: int = 100, after: int = 0, box: Box = "outbox"
    ) -> list[ParkedMessage]: ...

    def status(
        self,
        message_id: int | None = None,
        *,
        idempotency_key: str | None = None,
        box: Box = "outbox",
    ) -> MessageStatus: ...

    def stats(self, *, box: Box = "outbox", cap: int = 100_000) -> InstanceStats: ...

    def policy(self) -> InstancePolicy: ...

    # operator

    def register_instance(
        self,
        *,
        actor: str,
        reason: str,
        max_attempts: int | None = None,
        lease_default: timedelta | None = None,
        lease_max: timedelta | None = None,
        backoff_base: timedelta | None = None,
        backoff_cap: timedelta | None = None,
        on_parked: Literal["block", "continue"] | None = None,
        wake: bool | None = None,
        payload_max: int | None = None,
    ) -> str: ...

    def bind(self, role_name: str, *, actor: str, reason: str) -> bool: ...

    def unbind(self, role_name: str, *, actor: str, reason: str) -> bool: ...

    def pause(self, *, actor: str, reason: str) -> bool: ...

    def resume(self, *, actor: str, reason: str) -> bool: ...

    def redrive(self, message_ids: Sequence[int], *, actor: str, reason: str) -> list[Operated]: ...

    def resolve(
        self,
        message_id: int,
        resolution: Resolution,
        *,
        evidence: str,
        actor: str,
        reason: str,
        reference: str | None = None,
    ) -> Recorded: ...

    def expedite(
        self, message_ids: Sequence[int], *, actor: str, reason: str
    ) -> list[Operated]: ...

    def purge(
        self,
        older_than: timedelta,
        *,
        actor: str,
        reason: str,
        limit: int = 1000,
        after: int = 0,
        dry_run: bool = False,
    ) -> Purged: ...

    def bump_epoch(self, *, actor: str, reason: str) -> int: ...

    def register_currency(
        self, currency: str, exponent: int, *, actor: str, reason: str
    ) -> bool: ...

    def adopt(
        self,
        quarantine_id: int,
        *,
        evidence: str,
        actor: str,
        reason: str,
        topic: str | None = None,
        idempotency_key: str | None = None,
        effect_policy: EffectPolicy = "lookup",
    ) -> Enqueued: ...


class Inbox(Protocol):
    """What comes in, stored before it is acknowledged."""

    def receive(
        self,
        provider: str,
        account: str,
        event_id: str | None,
        event_type: str,
        object_id: str | None,
        raw: bytes,
        payload: Any = None,
        *,
        payload_json: str | None = None,
        key_id: str | None = None,
    ) -> Received: ...

    def inbox_event(self, message_id: int) -> InboxEvent: ...

    def inbox_status(
        self,
        message_id: int | None = None,
        *,
        provider: str | None = None,
        account: str | None = None,
        event_id: str | None = None,
    ) -> InboxState: ...


class Operations(Protocol):
    """Machines as data, the entities that they move, corrections, and effects of messages."""

    def machine_load(
        self,
        machine: str,
        definition: Any = None,
        *,
        definition_json: str | None = None,
        actor: str,
        reason: str,
    ) -> str: ...

    def machine_show(self, machine: str) -> list[MachineCell]: ...

    def transition(
        self,
        machine: str,
        entity: str,
        event: str,
        expected_version: int,
        operation_id: str,
        *,
        actor: str,
        role: str,
        reason: str,
        amount: Decimal | int | None = None,
        arguments: Any = None,
        on_refused: OnRefused = "raise",
    ) -> Transitioned: ...

    def entity_status(self, machine: str, entity: str) -> EntityState: ...

    def entity_history(
        self, machine: str, entity: str, *, limit: int = 100, after: int = 0
    ) -> list[EntityStep]: ...

    def correct(
        self,
        operation_id: str,
        adjustment_id: str,
        kind: str,
        amount: Decimal | int,
        expected_version: int,
        *,
        actor: str,
        role: str,
        reason: str,
        evidence: str,
        expected_balance: Decimal | int | None = None,
        on_refused: OnRefused = "raise",
    ) -> Corrected: ...

    def operation_history(self, operation_id: str) -> list[OperationLine]: ...

    def effect_states(
        self, effect: Effect | None = None, *, limit: int = 100, after: int = 0, box: Box = "outbox"
    ) -> list[EffectState]: ...

    def overdue(self, *, limit: int = 100) -> list[Overdue]: ...


class Authority(Protocol):
    """Orders, payments, rights, licences and their use."""

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
    ) -> str: ...

    def record_payment(self, account: str, invoice_id: str, status: str) -> bool: ...

    def finalize_paid(
        self,
        message_id: int,
        fence: int,
        *,
        account: str,
        invoice_id: str,
        order_id: str,
        status: str,
    ) -> Finalized: ...

    def apply_provider_cancel(
        self,
        message_id: int,
        fence: int,
        *,
        account: str,
        invoice_id: str,
        cause: Cause,
        evidence: str,
    ) -> Finalized: ...

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
    ) -> Finalized: ...

    def update_subscription(
        self,
        account: str,
        subscription_id: str,
        invoice_id: str,
        *,
        status: SubscriptionStatus,
        period_end: datetime,
        asked_at: datetime,
    ) -> str: ...

    def expire_entitlements(self, *, actor: str, reason: str, limit: int = 1000) -> int: ...

    def issue_capability(
        self,
        capability_id: str,
        licence_id: str,
        subject: str,
        *,
        lifetime: timedelta = timedelta(minutes=5),
    ) -> CapabilityIssued: ...

    def execute_licence(
        self,
        capability_id: str,
        subject: str,
        usage_id: str,
        *,
        thumbprint: str | None = None,
        on_refused: OnRefused = "raise",
    ) -> Executed: ...

    def bind_device(self, licence_id: str, thumbprint: str) -> str: ...


class Reads(Protocol):
    """What a verified viewer may see of rights and their use."""

    def list_entitlements(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[EntitlementLine]: ...

    def list_usage(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[UsageLine]: ...

    def list_counters(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[CounterLine]: ...

    def list_devices(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[DeviceLine]: ...

    def list_security_events(
        self,
        viewer: Viewer,
        account: str,
        *,
        seller: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[SecurityLine]: ...


class Reconciliation(Protocol):
    """Comparing what should agree."""

    def reconcile(
        self,
        *,
        actor: str,
        reason: str,
        run_id: int | None = None,
        longest_stay: timedelta = timedelta(hours=1),
        limit: int = 1000,
    ) -> ReconcileReport: ...

    def reconcile_reports(
        self, *, limit: int = 100, before: int | None = None
    ) -> list[ReconcileReport]: ...

    def reconcile_findings(
        self,
        run_id: int | None = None,
        *,
        state: FindingState | None = None,
        limit: int = 100,
        after: str = "",
    ) -> list[ReconcileFinding]: ...


class Trex(Kernel, Inbox, Operations, Authority, Reads, Reconciliation, Protocol):
    """All of it: what every client is."""
