"""The inbox in the simulation; import it through `trex_client.memory`.

Rows are named and ordered like the columns in `sql/migrations/0002.inbox.sql`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trex_client.errors import NotFound
from trex_client.memory import (
    _LAST_ID,
    EXTENSIONS,
    DeliveryRow,
    MemoryKernel,
    MessageRow,
    _call,
    _canonical,
    _due_at,
    _is_integer,
    _is_key,
    _is_slug,
    _require,
    _state,
    canonical_json,
)
from trex_client.model_inbox import EventStatus, InboxEvent, InboxState, Received

if TYPE_CHECKING:
    from datetime import datetime

    from trex_client.model import State


@dataclass(slots=True)
class InboxEventRow:
    instance_key: str
    message_id: int
    provider: str
    account: str
    event_id: str
    event_type: str
    object_id: str | None
    raw: bytes
    body_hash: bytes
    key_id: str | None
    received_at: datetime


@dataclass(slots=True)
class InboxVariantRow:
    instance_key: str
    message_id: int
    body_hash: bytes
    key_id: str | None
    received_at: datetime


@dataclass
class InboxTables:
    inbox_event: dict[tuple[str, int], InboxEventRow] = field(default_factory=dict)
    inbox_variant: dict[tuple[str, int, bytes], InboxVariantRow] = field(default_factory=dict)


EXTENSIONS.append(InboxTables)


def _event_key(provider: str, account: str, event_id: str) -> str:
    """The idempotency key of a received event."""
    return hashlib.sha256(_canonical([provider, account, event_id]).encode()).hexdigest()


class MemoryInbox(MemoryKernel):
    """Receiving events, and what became of them."""

    @property
    def _inbox(self) -> InboxTables:
        return self.db.extension(InboxTables)

    @_call
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
    ) -> Received:
        _require(_is_slug(provider), "provider")
        _require(_is_key(account), "account")
        _require(event_id is None or _is_key(event_id), "event_id")
        _require(_is_key(event_type), "event_type")
        _require(object_id is None or _is_key(object_id), "object_id")
        _require(isinstance(raw, (bytes, bytearray, memoryview)), "raw")
        text = canonical_json(payload, payload_json)
        _require(key_id is None or _is_key(key_id), "key_id")
        self._durable()
        instance = self._enter()
        raw = bytes(raw)
        _require(len(raw) <= instance.payload_max, "raw")
        _require(len(text.encode()) <= instance.payload_max, "payload")
        body_hash = hashlib.sha256(raw).digest()
        event_id = event_id or f"sha256:{body_hash.hex()}"
        key = _event_key(provider, account, event_id)
        db = self.db
        now = db._now()
        db.message_id_seq += 1  # one that loses against an existing key is used up as well
        known = db.message_key.get((self._instance_key, "inbox", key))
        if known is None:
            message = MessageRow(
                self._instance_key, db.message_id_seq, "inbox", provider, key, object_id, None,
                None, None, None, text, hashlib.sha256(text.encode()).digest(), "idempotent", now,
            )  # fmt: skip
            db.put_message(message)
            db.put_delivery(
                DeliveryRow(self._instance_key, message.message_id, "inbox", None, None)
            )
            event = InboxEventRow(
                self._instance_key, message.message_id, provider, account, event_id, event_type,
                object_id, raw, body_hash, key_id, now,
            )  # fmt: skip
            db.put(self._inbox.inbox_event, (self._instance_key, message.message_id), event)
            return Received(message.message_id, "received", "ready", False)
        event = self._inbox.inbox_event[self._instance_key, known]
        differs = event.body_hash != body_hash
        variant = (self._instance_key, known, body_hash)
        if differs and variant not in self._inbox.inbox_variant:
            db.put(self._inbox.inbox_variant, variant, InboxVariantRow(*variant, key_id, now))
        row = db.delivery.get((self._instance_key, known))
        if row is not None and row.parked in ("dead_letter", "permanent") and not row.abandoned:
            detail: dict[str, object] = {"parked": row.parked}
            self._audit("redrive", known, provider, "received again", detail, now)
            db.change(row)
            row.parked = None
            row.tries = 0
            db.defer(row, now)
            return Received(known, "revived", "ready", differs)
        return Received(known, "deduplicated", self._message_state(known, now), differs)

    def _message_state(self, message_id: int, now: datetime) -> State:
        row = self.db.delivery.get((self._instance_key, message_id))
        if row is None:
            return "delivered"
        return _state(row.parked, row.lease_until, row.deferred_until, now)

    def _event(self, message_id: int | None) -> InboxEventRow:
        event = self._inbox.inbox_event.get((self._instance_key, message_id or 0))
        if event is None:
            raise NotFound
        return event

    @_call
    def inbox_event(self, message_id: int) -> InboxEvent:
        _require(_is_integer(message_id, 1, _LAST_ID), "message_id")
        self._enter()
        e = self._event(message_id)
        return InboxEvent(
            e.message_id, e.provider, e.account, e.event_id, e.event_type, e.object_id, e.raw,
            e.key_id, e.received_at,
        )  # fmt: skip

    @_call
    def inbox_status(
        self,
        message_id: int | None = None,
        *,
        provider: str | None = None,
        account: str | None = None,
        event_id: str | None = None,
    ) -> InboxState:
        names = (provider, account, event_id)
        if message_id is None:
            _require(_is_slug(provider) and _is_key(account) and _is_key(event_id), "message_id")
        else:
            _require(names == (None, None, None), "message_id")
            _require(_is_integer(message_id, 1, _LAST_ID), "message_id")
        self._enter()
        db = self.db
        if provider is not None and account is not None and event_id is not None:
            key = _event_key(provider, account, event_id)
            message_id = db.message_key.get((self._instance_key, "inbox", key))
        e = self._event(message_id)
        now = db._now()
        where = (self._instance_key, e.message_id)
        row = db.delivery.get(where)
        receipt = db.receipt.get(where)
        status: EventStatus = "received"
        reason = due_at = processed_at = None
        if row is None:
            attempts, processed_at = db.receipt[where].attempt, db.receipt[where].delivered_at
            status = "processed"
        else:
            attempts, due_at = row.attempts, _due_at(row)
            fences = db.outcome_fences.get(where)
            reason = db.outcome[*where, fences[-1]].reason if fences else None
            if row.parked is not None:
                status = "failed"
            elif row.lease_until is not None:
                status = "processing"
        assert (receipt is None) == (row is not None)  # noqa: S101
        variants = sum(key[:2] == where for key in self._inbox.inbox_variant)
        return InboxState(
            e.message_id, e.provider, e.account, e.event_id, e.event_type, e.object_id, status,
            self._message_state(e.message_id, now), reason, attempts, due_at, variants,
            e.received_at, processed_at,
        )  # fmt: skip
