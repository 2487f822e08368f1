"""An adapter of one's own: each message becomes a file in a folder, named by its key.

The file appears under its name at once and with all its content (`link` of a finished file), or not
at all. So the folder can be asked by key, and a second delivery of the same key finds the first:

    idempotent   the same key again changes nothing
    Duplicate    the file is there with the same content
    Conflict     the file is there with other content

`build` is the entry point: see `pyproject.toml` beside this file. The worker's settings name it:

    kind = "folder"
    path = "/var/spool/movements"
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trex_client.adapters import (
    Absent,
    BaseAdapter,
    ConfigError,
    Conflict,
    Delivered,
    Duplicate,
    Found,
    LookupResult,
    NotSent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trex_client.adapters import DeliveryContext, DeliveryResult
    from trex_client.model import Claim, EffectPolicy


class FolderAdapter(BaseAdapter):
    """Delivers into a folder that exists."""

    policy: EffectPolicy = "idempotent"
    can_lookup = True
    announces_sending = True
    # A write that is neither there nor failed after this time will never be.
    in_flight = timedelta(seconds=5)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Write one file."""
        if not self._folder.is_dir():
            raise NotSent("unavailable")
        await context.sending()
        return await asyncio.to_thread(self._write, context.wire_key, claim.payload_json.encode())

    async def lookup(self, wire_key: str) -> LookupResult:
        """Say whether the file is there, and what is in it: another program may have written it."""
        try:
            content = await asyncio.to_thread((self._folder / f"{wire_key}.json").read_bytes)
        except FileNotFoundError:
            return Absent()
        return Found(reference=wire_key, digest=hashlib.sha256(content).hexdigest())

    def _write(self, key: str, content: bytes) -> DeliveryResult:
        target = self._folder / f"{key}.json"
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".") as draft:
            draft.write(content)
            draft.flush()
            os.fsync(draft.fileno())
            try:
                os.link(draft.name, target)
            except FileExistsError:
                same = target.read_bytes() == content
                return Duplicate(reference=key) if same else Conflict()
        return Delivered(reference=key)


def build(instance_key: str, table: Mapping[str, Any]) -> FolderAdapter:
    """Make the adapter from the worker's settings."""
    del instance_key  # the key of a message already holds it
    path = table.get("path")
    if not isinstance(path, str) or set(table) != {"kind", "path"}:
        raise ConfigError("path")
    return FolderAdapter(Path(path))
