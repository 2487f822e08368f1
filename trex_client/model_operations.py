"""Frozen results of operations and machines, named and ordered like the composite types in
`sql/migrations`. Times are aware datetimes in UTC, amounts `Decimal`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from decimal import Decimal

    from trex_client.model import Box

OnRefused = Literal["raise", "report"]
OperationStatus = Literal[
    "applied", "replayed", "not_found", "operation_conflict", "version_conflict", "forbidden"
]
Effect = Literal[
    "intent_recorded", "in_progress", "waiting", "failed", "rejected", "unknown", "succeeded"
]


@dataclass(frozen=True, slots=True)
class MachineCell:
    """One state with one event; `to_state` None: forbidden. State '' is before an entity exists."""

    state: str
    event: str
    to_state: str | None
    roles: list[str]
    amount_min: Decimal | None
    amount_max: Decimal | None
    topic: str | None
    owner: str | None
    longest_stay: timedelta | None
    next_action: str | None
    alert: str | None
    final: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Transitioned:
    """What `transition` did. Applied and replayed: state and version that this operation led to.
    Refused: the entity's state and version now."""

    entity: str
    status: OperationStatus
    state: str | None
    version: int | None
    operation_id: str
    message_id: int | None
    done_at: datetime | None


@dataclass(frozen=True, slots=True)
class EntityState:
    machine: str
    entity: str
    state: str
    version: int
    operation_id: str
    since: datetime
    deadline: datetime | None
    owner: str | None
    next_action: str | None
    alert: str | None
    final: bool


@dataclass(frozen=True, slots=True)
class EntityStep:
    version: int
    operation_id: str
    event: str
    from_state: str
    to_state: str
    actor: str
    role: str
    amount: Decimal | None = field(repr=False)
    reason: str
    message_id: int | None
    done_at: datetime


@dataclass(frozen=True, slots=True)
class Corrected:
    """What `correct` did. Applied and replayed: version and balance after this correction. Refused:
    the operation's number of corrections and balance now."""

    adjustment_id: str
    status: OperationStatus
    version: int | None
    balance: Decimal | None = field(repr=False)
    on_state: str | None
    on_version: int | None
    adjusted_at: datetime | None


@dataclass(frozen=True, slots=True)
class OperationLine:
    """The original (`version` 0) or one correction, with the balance after it."""

    version: int
    kind: str
    id: str
    amount: Decimal | None = field(repr=False)
    balance: Decimal | None = field(repr=False)
    state: str | None
    entity_version: int | None
    actor: str
    role: str
    reason: str
    evidence: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class EffectState:
    """What is known of a message's effect, and who has to do what by when."""

    message_id: int
    box: Box
    topic: str
    effect: Effect
    reason: str | None
    attempts: int
    uncertain: bool
    since: datetime
    deadline: datetime | None
    owner: str | None
    next_action: str | None
    alert: str | None


@dataclass(frozen=True, slots=True)
class Overdue:
    """An entity, or a message's effect, that stays longer than its state allows."""

    source: Literal["entity", "effect"]
    machine: str
    entity: str | None
    message_id: int | None
    state: str
    since: datetime
    deadline: datetime
    owner: str | None
    next_action: str | None
    alert: str | None
