"""Frozen results of the inbox functions, named and ordered like the composite types in
`sql/migrations`. Times are aware datetimes in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from trex_client.model import State

ReceiveStatus = Literal["received", "deduplicated", "revived"]
EventStatus = Literal["received", "processing", "processed", "failed"]


@dataclass(frozen=True, slots=True)
class Received:
    """What `receive` made of one delivery. `state`: the inbox message's state now. `differs`: the
    bytes aren't those that were stored first."""

    message_id: int
    status: ReceiveStatus
    state: State
    differs: bool


@dataclass(frozen=True, slots=True)
class InboxEvent:
    """One received event with the raw bytes whose signature was verified."""

    message_id: int
    provider: str
    account: str = field(repr=False)
    event_id: str
    event_type: str
    object_id: str | None
    raw: bytes = field(repr=False)
    key_id: str | None
    received_at: datetime


@dataclass(frozen=True, slots=True)
class InboxState:
    """One received event and what became of it. `variants`: other bodies under the same id."""

    message_id: int
    provider: str
    account: str = field(repr=False)
    event_id: str
    event_type: str
    object_id: str | None
    status: EventStatus
    state: State
    reason: str | None
    attempts: int
    due_at: datetime | None
    variants: int
    received_at: datetime
    processed_at: datetime | None
