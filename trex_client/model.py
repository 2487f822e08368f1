"""Frozen results of the functions, named and ordered like the composite types in `sql/migrations`.

Times are aware datetimes in UTC. `due_at` is None for a message that waits for no time: ready,
leased, parked, or behind an earlier message of its ordering key. Money is `Decimal`, never float.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

Box = Literal["outbox", "inbox"]
EffectPolicy = Literal["idempotent", "lookup", "at_most_once"]
OnLost = Literal["raise", "report"]
OnConflict = Literal["raise", "report"]
ConfirmedBy = Literal["answer", "lookup", "same_key", "handler", "operator"]
Resolution = Literal["delivered", "resend", "absent", "abandon"]
Parked = Literal["dead_letter", "permanent", "conflict", "unknown"]
EnqueueStatus = Literal["enqueued", "duplicate", "conflict"]
RecordStatus = Literal["recorded", "already_recorded", "ended_otherwise", "claim_lost", "not_found"]
Result = Literal[
    "completed",
    "duplicate",
    "retry",
    "unknown",
    "conflict",
    "permanent",
    "dead_letter",
    "released",
    "postponed",
]
State = Literal[
    "ready", "deferred", "waiting", "leased", "lease_ended", "delivered", "dead_letter",
    "permanent", "conflict", "unknown",
]  # fmt: skip

BOXES: tuple[Box, ...] = ("outbox", "inbox")
EFFECT_POLICIES: tuple[EffectPolicy, ...] = ("idempotent", "lookup", "at_most_once")
CONFIRMED_BY: tuple[ConfirmedBy, ...] = ("answer", "lookup", "same_key", "handler", "operator")
RESULTS: tuple[Result, ...] = (
    "completed", "duplicate", "retry", "unknown", "conflict", "permanent", "dead_letter",
    "released", "postponed",
)  # fmt: skip
REASONS: frozenset[str] = frozenset({
    "adapter_error", "attempts_exhausted", "connect_failed", "connection_lost", "consumer:none",
    "expired", "handler_error", "host_not_allowed", "in_progress", "invalid_request",
    "key_conflict", "lease_expired", "lookup_absent", "lookup_failed", "lookup_unsupported",
    "no_order", "not_found", "not_paid", "not_started", "operator", "provider_unreachable",
    "rate_limited", "redirected", "rejected", "response_invalid", "response_too_large",
    "server_error", "shutdown", "stale_version", "timeout", "tls_failed", "unauthorized",
    "unavailable", "unspecified", "unsupported_policy", "waiting", "write_back_failed",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Movement:
    """One row for `enqueue_many`: the arguments of `enqueue`. `payload` is JSON data, or JSON
    text as `str` in `payload_json`; exactly one of the two."""

    topic: str
    idempotency_key: str
    payload: Any = None
    payload_json: str | None = None
    account: str | None = None
    currency: str | None = None
    cash_delta: Decimal | int | None = None
    correlation_id: str | None = None
    ordering_key: str | None = None
    effect_policy: EffectPolicy = "idempotent"
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    message_id: int
    status: EnqueueStatus


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed message. `payload_json` is the canonical jsonb text, byte-identical on every
    attempt."""

    message_id: int
    fence: int
    attempt: int
    tries: int
    lease_until: datetime
    uncertain: bool
    box: Box
    topic: str
    idempotency_key: str
    correlation_id: str | None
    ordering_key: str | None
    account: str | None = field(repr=False)
    currency: str | None
    cash_delta: Decimal | None = field(repr=False)
    payload_json: str = field(repr=False)
    effect_policy: EffectPolicy
    enqueued_at: datetime

    @property
    def payload(self) -> Any:
        """The payload as Python data; numbers with a point as Decimal."""
        return json.loads(self.payload_json, parse_float=Decimal)


@dataclass(frozen=True, slots=True)
class Report:
    """One outcome for `record` and `exchange`. `absent`: a look-up or a same-key answer showed
    with certainty that no earlier attempt took effect (clears `uncertain`). `park`: park
    although the allowance isn't used up (an adapter that can't honour the effect policy).
    `balance` and `version` are the ledger's snapshot after the posting, both or neither, only
    for a message with cash and only with `completed` or `duplicate`."""

    message_id: int
    fence: int
    result: Result
    reason: str = "unspecified"
    delay: timedelta | None = None
    absent: bool = False
    park: bool = False
    confirmed_by: ConfirmedBy = "answer"
    reference: str | None = None
    balance: Decimal | None = field(default=None, repr=False)
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of one reported outcome. `state` is the message's state now (None when lost or
    not found)."""

    message_id: int
    fence: int
    status: RecordStatus
    state: State | None
    late: bool
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Exchange:
    recorded: list[Recorded]
    claims: list[Claim]


@dataclass(frozen=True, slots=True)
class Extended:
    message_id: int
    fence: int
    status: Literal["extended", "ended_otherwise", "claim_lost", "not_found"]
    lease_until: datetime | None


@dataclass(frozen=True, slots=True)
class Operated:
    """One row of an operator's call. `status`: what was done ('redriven', 'expedited'), or why
    nothing was: 'not_parked', 'needs_resolve', 'not_deferred', 'delivered', 'not_found'."""

    message_id: int
    status: str


@dataclass(frozen=True, slots=True)
class Pending:
    message_id: int
    box: Box
    state: State
    topic: str
    idempotency_key: str
    correlation_id: str | None
    ordering_key: str | None
    account: str | None
    currency: str | None
    cash_delta: Decimal | None
    due_at: datetime | None
    attempts: int
    tries: int
    uncertain: bool
    enqueued_at: datetime


@dataclass(frozen=True, slots=True)
class Cash:
    """Sums per account and currency. `pending`: live and certain, in flight included.
    `uncertain`: live or parked, may have reached the ledger. `skipped`: parked and certainly
    not there. `entries`: messages in the three sums."""

    account: str
    currency: str
    pending: Decimal
    uncertain: Decimal
    skipped: Decimal
    entries: int


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    message_id: int
    box: Box
    parked: Parked
    reason: str
    topic: str
    idempotency_key: str
    correlation_id: str | None
    ordering_key: str | None
    account: str | None
    currency: str | None
    cash_delta: Decimal | None
    attempts: int
    uncertain: bool
    abandoned: bool
    parked_at: datetime
    enqueued_at: datetime


@dataclass(frozen=True, slots=True)
class MessageStatus:
    message_id: int
    box: Box
    state: State
    reason: str | None
    topic: str
    idempotency_key: str
    attempts: int
    tries: int
    fence: int
    uncertain: bool
    worker: str | None
    lease_until: datetime | None
    due_at: datetime | None
    enqueued_at: datetime
    delivered_at: datetime | None
    duplicate: bool | None
    confirmed_by: ConfirmedBy | None
    reference: str | None


@dataclass(frozen=True, slots=True)
class InstanceStats:
    """Counts of undelivered messages of one box by state; each stops at the `cap` that was asked
    for (`capped`)."""

    box: Box
    ready: int
    due: int
    deferred: int
    waiting: int
    leased: int
    lease_ended: int
    dead_letter: int
    permanent: int
    conflict: int
    unknown: int
    abandoned: int
    blocked_keys: int
    oldest_due_at: datetime | None
    oldest_parked_at: datetime | None
    capped: bool


@dataclass(frozen=True, slots=True)
class InstancePolicy:
    instance_key: str
    paused: bool
    max_attempts: int
    lease_default: timedelta
    lease_max: timedelta
    backoff_base: timedelta
    backoff_cap: timedelta
    on_parked: Literal["block", "continue"]
    wake: bool
    payload_max: int
    bound_roles: list[str]
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class Purged:
    """`examined` messages looked at, `purged` payloads removed (or that would be),
    `last_message_id` to go on after."""

    examined: int
    purged: int
    last_message_id: int
