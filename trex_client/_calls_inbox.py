"""The inbox functions as SQL calls; see `trex_client._calls`."""

from __future__ import annotations

from typing import Any, Final

from trex_client._calls import (
    Call,
    Calls,
    Row,
    Statement,
    _integer,
    _optional_integer,
    _optional_text,
    _payload,
    _text,
    _with_times,
)
from trex_client.errors import InvalidArgument
from trex_client.model_inbox import InboxEvent, InboxState, Received


def _bytes(name: str, value: object) -> str:
    """As bytea's hex form."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"{name}: bytes")
    return "\\x" + bytes(value).hex()


def _received(rows: list[Row]) -> Received:
    return Received(*rows[0])


def _inbox_event(rows: list[Row]) -> InboxEvent:
    return InboxEvent(*_with_times(rows[0], 8))


def _inbox_state(rows: list[Row]) -> InboxState:
    return InboxState(*_with_times(rows[0], 10, 12, 13))


_RECEIVE: Final = Statement(
    "receive",
    "provider text, account text, event_id text, event_type text, object_id text, raw bytea, "
    "payload jsonb, key_id text",
    "message_id status state differs",
    _received,
)
_INBOX_EVENT: Final = Statement(
    "inbox_event",
    "message_id bigint",
    "message_id provider account event_id event_type object_id raw key_id received_at",
    _inbox_event,
)
_INBOX_STATUS: Final = Statement(
    "inbox_status",
    "message_id bigint, provider text, account text, event_id text",
    "message_id provider account event_id event_type object_id status state reason attempts due_at "
    "variants received_at processed_at",
    _inbox_state,
)


class InboxCalls(Calls):
    """The kernel's functions and the inbox's."""

    __slots__ = ()

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
    ) -> Call[Received]:
        """Store one event whose signature was verified over `raw`, in the caller's transaction.
        Answer the sender with 2xx only after the commit.

        `account` comes from the endpoint's configuration, never from the payload. `event_id` None:
        the digest of `raw` takes its place. `payload` is what `raw` says as JSON data, or JSON text
        in `payload_json`; exactly one of the two.
        """
        return _RECEIVE, (
            self.instance_key,
            _text("provider", provider),
            _text("account", account),
            _optional_text("event_id", event_id),
            _text("event_type", event_type),
            _optional_text("object_id", object_id),
            _bytes("raw", raw),
            _payload("payload", payload, payload_json),
            _optional_text("key_id", key_id),
        )

    def inbox_event(self, message_id: int) -> Call[InboxEvent]:
        """One received event with its raw bytes.

        Raises:
            NotFound: there is no such event in this instance.
        """
        return _INBOX_EVENT, (self.instance_key, _integer("message_id", message_id))

    def inbox_status(
        self,
        message_id: int | None = None,
        *,
        provider: str | None = None,
        account: str | None = None,
        event_id: str | None = None,
    ) -> Call[InboxState]:
        """What became of one received event, by id or by provider, account and event id.

        Raises:
            NotFound: there is no such event in this instance.
        """
        return _INBOX_STATUS, (
            self.instance_key,
            _optional_integer("message_id", message_id),
            _optional_text("provider", provider),
            _optional_text("account", account),
            _optional_text("event_id", event_id),
        )
