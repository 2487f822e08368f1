"""The API: one method per public SQL function, same names, same arguments without `p_`.

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


class Trex(Protocol):
    """See `sql/functions/**/NAME.sql` for the rule behind each method."""

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
