"""The fixture `backend`; a folder's `conftest.py` imports what it needs from here.

from tests.support.backend_fixtures import backend, house, postgres, shop  # noqa: F401
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.backends import Backend, MemoryBackend, PostgresBackend, Sessions
from tests.support.databases import server_specs
from tests.support.invariants import violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trex_client.api import Trex

VERSIONS = [spec.version for spec in server_specs()]


def _sessions(request: pytest.FixtureRequest, version: int) -> Iterator[Sessions]:
    server = request.getfixturevalue(f"server_{version}")
    template = request.getfixturevalue(f"template_{version}").template_dbname
    sessions = Sessions(server, template)
    yield sessions
    sessions.close()


def _name(version: int | None) -> str:
    return "memory" if version is None else f"pg{version}"


@pytest.fixture(scope="module", params=[None, *VERSIONS], ids=_name)
def house(request: pytest.FixtureRequest) -> Iterator[tuple[int | None, Sessions | None]]:
    """What the tests of a module share: a database of each server; nothing of the simulation."""
    version: int | None = request.param
    if version is None:
        yield None, None
        return
    for sessions in _sessions(request, version):
        yield version, sessions


@pytest.fixture
def backend(
    house: tuple[int | None, Sessions | None], request: pytest.FixtureRequest
) -> Iterator[Backend]:
    """The simulation, then each PostgreSQL server; see `tests.support.backends`."""
    version, sessions = house
    if version is None or sessions is None:
        yield MemoryBackend()
        return
    yield from _postgres(sessions, version, request)


def _postgres(
    sessions: Sessions, version: int, request: pytest.FixtureRequest
) -> Iterator[PostgresBackend]:
    request.node.user_properties.append(("postgresql", version))
    made = PostgresBackend(sessions)
    yield made
    made.close()
    broken = violations(made.admin, made.instances)
    assert not broken, "\n".join(broken)
    made.compare()


@pytest.fixture(scope="module", params=VERSIONS, ids=_name)
def postgres_house(request: pytest.FixtureRequest) -> Iterator[tuple[int, Sessions]]:
    """A database of each server that the tests of a module share."""
    version: int = request.param
    for sessions in _sessions(request, version):
        yield version, sessions


@pytest.fixture
def postgres(
    postgres_house: tuple[int, Sessions], request: pytest.FixtureRequest
) -> Iterator[PostgresBackend]:
    """Only PostgreSQL, for tests with several sessions or with SQL of their own."""
    version, sessions = postgres_house
    yield from _postgres(sessions, version, request)


@pytest.fixture
def shop(backend: Backend) -> Trex:
    """A client of a registered instance whose allowance is three attempts."""
    return backend.register("shop", max_attempts=3)
