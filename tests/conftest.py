"""Servers, databases and the checks over the whole run, for all tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from pytest_postgresql import factories

from tests.support import canaries, criteria
from tests.support.counts import scale
from tests.support.databases import (
    Database,
    Server,
    ServerSpec,
    given_server,
    server_specs,
    start_server,
)
from tests.support.whole_run import WholeRun, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPECS = server_specs()
VERSIONS = [spec.version for spec in SPECS]
# For what is slow: the newest in CI, all of them in `make prove`.
SOME_VERSIONS = VERSIONS if scale("ALL_VERSIONS", 0) else VERSIONS[:1]


def _define_server(spec: ServerSpec) -> None:
    """Define the session fixtures of one server: the server, and its template database."""
    started: list[Server] = []

    @pytest.fixture(scope="session", name=f"server_{spec.version}")
    def server() -> Iterator[Server]:
        running = given_server(spec) if spec.binaries is None else start_server(spec.binaries)
        started.append(running)
        try:
            yield running
        finally:
            if running.embedded is not None:
                running.embedded.close()

    def load(*, dbname: str, **_: object) -> None:
        started[-1].load_schema(dbname)

    fixtures: dict[str, Any] = {
        f"server_{spec.version}": server,
        f"template_{spec.version}": factories.postgresql_noproc(
            depends_on=f"server_{spec.version}", dbname=f"trex_{os.getpid()}", load=[load]
        ),
    }
    globals().update(fixtures)


for _spec in SPECS:
    _define_server(_spec)
canaries.watch_servers()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """What workers and commands of the test have written holds no canary and no password."""
    yield
    canaries.search_watched()


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda v: f"pg{v}")
def pg_server(request: pytest.FixtureRequest) -> Server:
    """A running server, one run of the test for each version; without roles and schema."""
    server: Server = request.getfixturevalue(f"server_{request.param}")
    return server


@pytest.fixture
def new_db(request: pytest.FixtureRequest) -> Iterator[Callable[..., Database]]:
    """Make databases: `new_db(version, migrated=True)`, dropped when the test ends.

    Version is a major version out of `tests.conftest.VERSIONS`; None is the newest.
    """
    made: list[Database] = []

    def make(version: int | None = None, *, migrated: bool = True) -> Database:
        number = version or VERSIONS[0]
        server: Server = request.getfixturevalue(f"server_{number}")
        template = None
        if migrated:
            template = request.getfixturevalue(f"template_{number}").template_dbname
        database = server.create_database(template)
        made.append(database)
        request.node.user_properties.append(("postgresql", number))
        return database

    yield make
    for database in reversed(made):
        database.close()


@pytest.fixture
def pg_db(pg_server: Server, new_db: Callable[..., Database]) -> Database:
    """A fresh database with roles and the newest schema, for each server version."""
    return new_db(pg_server.version)


@pytest.fixture
def empty_db(pg_server: Server, new_db: Callable[..., Database]) -> Database:
    """A fresh database without anything in it, for each server version; no roles are made."""
    return new_db(pg_server.version, migrated=False)


@pytest.fixture(params=SOME_VERSIONS, ids=lambda v: f"pg{v}")
def private_server(request: pytest.FixtureRequest) -> Iterator[Callable[..., Server]]:
    """Start a server that the test may stop, kill and restart: `private_server(15, fsync="on")`.

    None is the version that the test runs for: the newest, and the others with
    `TREX_ALL_VERSIONS=1`. It has neither roles nor schema: `server.create_database()`, then
    `server.load_schema(dbname)`.
    """
    started: list[Server] = []
    by_version = {spec.version: spec for spec in SPECS}

    def start(version: int | None = None, **settings: str) -> Server:
        binaries = by_version[version or request.param].binaries
        if binaries is None:
            pytest.skip("this test needs a server of its own")
        server = start_server(binaries, settings)
        started.append(server)
        return server

    yield start
    for server in started:
        if server.embedded is not None:
            server.embedded.close()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        given = any(spec.dsn is not None for spec in SPECS)
        two_versions = bool(os.environ.get("CI")) and not given
        plugin = WholeRun(config, criteria.ROOT, versions_needed=2 if two_versions else 0)
        config.pluginmanager.register(plugin, "trex-whole-run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    label(items)


def pytest_report_header() -> str:
    return "servers: " + ("; ".join(str(spec) for spec in SPECS) or "no PostgreSQL found")
