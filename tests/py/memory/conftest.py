"""A simulated database with a clock that stands still, and one instance that is bound."""

from __future__ import annotations

import pytest

from trex_client.memory import Clock, MemoryClient, MemoryDatabase


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def db(clock: Clock) -> MemoryDatabase:
    return MemoryDatabase(clock)


@pytest.fixture
def shop(db: MemoryDatabase) -> MemoryClient:
    client = MemoryClient(db, "shop")
    client.register_instance(actor="test", reason="test")
    client.bind("app", actor="test", reason="test")
    return client
