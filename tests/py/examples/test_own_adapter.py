"""The example of an adapter of one's own, found through its entry point."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.py.examples.conftest import EXAMPLES
from trex_client.adapters import (
    Absent,
    Adapter,
    ConfigError,
    Conflict,
    Delivered,
    Duplicate,
    Found,
    NotSent,
    build_adapter,
    payload_digest,
)
from trex_client.adapters.base import context_for
from trex_client.model import Claim

pytestmark = pytest.mark.criterion("ac-0050")

CLAIM = Claim(
    message_id=1, fence=1, attempt=1, tries=1, lease_until=datetime.now(UTC), uncertain=False,
    box="outbox", topic="t", idempotency_key="k", correlation_id=None, ordering_key=None,
    account=None, currency=None, cash_delta=None, payload_json='{"a": 1}',
    effect_policy="idempotent", enqueued_at=datetime.now(UTC),
)  # fmt: skip


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """As pip would leave it: the module, and its metadata beside it."""
    source = EXAMPLES / "own-adapter"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    site = tmp_path / "site"
    info = site / "trex_folder_adapter-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "folder_adapter.py").write_text((source / "folder_adapter.py").read_text())
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n"
    )
    lines = [
        f"{name} = {target}" for name, target in project["entry-points"]["trex.adapters"].items()
    ]
    (info / "entry_points.txt").write_text("[trex.adapters]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    return tmp_path


async def test_it_is_found_by_its_name_and_delivers_once(installed):
    folder = installed / "spool"
    folder.mkdir()
    adapter = build_adapter("shop", {"kind": "folder", "path": str(folder)})
    assert isinstance(adapter, Adapter)
    context = context_for("shop", CLAIM)
    assert await adapter.lookup(context.wire_key) == Absent()
    assert isinstance(await adapter.deliver(CLAIM, context), Delivered)
    assert isinstance(await adapter.deliver(CLAIM, context), Duplicate)
    found = await adapter.lookup(context.wire_key)
    assert found == Found(reference=context.wire_key, digest=payload_digest(CLAIM))
    other = replace(CLAIM, payload_json='{"a": 2}')
    assert (found.is_of(CLAIM), found.is_of(other)) == (True, False)
    assert isinstance(await adapter.deliver(other, context), Conflict)
    assert [path.read_text() for path in folder.iterdir()] == ['{"a": 1}']
    await adapter.close()


async def test_without_its_folder_nothing_was_sent(installed):
    adapter = build_adapter("shop", {"kind": "folder", "path": str(installed / "missing")})
    context = context_for("shop", CLAIM)
    with pytest.raises(NotSent):
        await adapter.deliver(CLAIM, context)
    assert not context.sent


def test_a_mistyped_setting_is_refused(installed):
    for table in ({"kind": "folder"}, {"kind": "folder", "path": "/x", "pfad": "/y"}):
        with pytest.raises(ConfigError):
            build_adapter("shop", table)
