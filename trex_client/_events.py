"""What the bytes of a provider's event say: its id, type and object."""

from __future__ import annotations

import json
from typing import NamedTuple

from trex_client._values import is_key


class Content(NamedTuple):
    """What is taken from an event: never the account."""

    event_id: str | None
    event_type: str
    object_id: str | None
    payload_json: str


def read_content(text: str, object_id: str) -> Content | None:
    """Read id, type and object id; what isn't a key is left out. None: it isn't JSON.

    Args:
        object_id: path of the object's id, such as `data.object.id`.
    """
    text = text.removeprefix("\ufeff")
    try:
        # Whole numbers as their digits: some ids are numbers, and any length is fine.
        body = json.loads(text, parse_constant=_refuse, parse_int=str)
    except (ValueError, RecursionError):
        return None
    kind = _at(body, "type")
    return Content(_at(body, "id"), kind or "unspecified", _at(body, object_id), text)


def _refuse(_: str) -> object:
    raise ValueError


def _at(body: object, path: str) -> str | None:
    for name in path.split("."):
        if not isinstance(body, dict):
            return None
        body = body.get(name)
    return body if isinstance(body, str) and is_key(body) else None
