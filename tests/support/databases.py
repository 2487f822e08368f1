"""PostgreSQL servers and databases for tests.

`Server` is a running server, `Database` one database in it. A test gets them from the fixtures
`pg_server`, `pg_db`, `empty_db`, `new_db` and `private_server` in `tests/conftest.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support import canaries
from trex_client.embedded import EmbeddedServer, ServerBinaries, find_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

SIBLING_ROLES = ("trex_app", "trex_worker", "trex_operator", "trex_reader")

TEST_ROLES: dict[str, tuple[str, ...]] = {
    "app": ("trex_app",),
    "worker": ("trex_worker",),
    "operator": ("trex_operator",),
    "reader": ("trex_reader",),
    "other": SIBLING_ROLES,
}
"""Login roles `trex_test_<name>` and the roles granted to them. `other` has every right that the
schema gives to anybody, and tests bind it to nothing."""

_EXTERNAL_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
_ROLES_LOCK = 7_420_001
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(8)
_ROLE_PASSWORD = hashlib.sha256(f"trex test {_RUN}".encode()).hexdigest()[:24]
_NUMBER = itertools.count(1)

FAST: dict[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "120",
    "max_prepared_transactions": "8",
    "autovacuum_naptime": "20s",
    "jit": "off",
}
"""Settings of the test servers: quick, and safe as long as the machine itself doesn't crash."""


@dataclass(frozen=True)
class ServerSpec:
    """A server that the tests can use: binaries to start, or the address of a running one."""

    version: int
    full: str
    binaries: ServerBinaries | None = None
    dsn: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        where = "given by TREX_DSN or libpq's variables" if self.dsn is not None else "own"
        return f"PostgreSQL {self.full} ({where})"


def server_specs() -> list[ServerSpec]:
    """List the servers that tests run on, newest first.

    With `TREX_DSN` or libpq's own variables set, that one server; else all that are found.
    """
    dsn = os.environ.get("TREX_DSN")
    if dsn is None and any(os.environ.get(name) for name in _EXTERNAL_VARIABLES):
        dsn = ""
    if dsn is None:
        return [ServerSpec(found.version, found.full, found) for found in find_servers()]
    with psycopg.connect(dsn, connect_timeout=10) as conn:
        number = conn.info.server_version
    return [ServerSpec(number // 10_000, f"{number // 10_000}.{number % 10_000}", dsn=dsn)]


@dataclass
class Server:
    """A running server.

    The first six attributes are what pytest-postgresql's `depends_on` reads.
    """

    host: str
    port: int | str
    user: str
    password: str | None
    options: str
    maintenance_dbname: str
    version: int
    full: str
    embedded: EmbeddedServer | None = None
    template_dbname: str | None = None

    def dsn(self, dbname: str, role: str | None = None, *, tcp: bool = False) -> str:
        """Return a connection string.

        Args:
            dbname: database.
            role: None for the server's superuser, a key of `TEST_ROLES`, or any role's name.
            tcp: through loopback TCP where the server is our own.
        """
        user = self.user if role is None else role_name(role)
        if self.embedded is not None:
            return self.embedded.dsn(dbname, user, tcp=tcp)
        password = self.password if role is None else _ROLE_PASSWORD
        return make_conninfo(
            host=self.host, port=self.port, user=user, password=password, dbname=dbname
        )

    @contextmanager
    def admin(self) -> Iterator[psycopg.Connection]:
        """Connect to the maintenance database as superuser, in autocommit mode."""
        with psycopg.connect(self.dsn(self.maintenance_dbname), autocommit=True) as conn:
            yield conn

    def create_roles(self, dbname: str | None = None) -> None:
        """Run `sql/roles.sql` in a database and make the login roles of the tests.

        Args:
            dbname: the database that may then be migrated; by default the maintenance database.
        """
        from trex_client.migrate import apply_roles

        with self.admin() as conn:
            # Roles belong to the whole server: parallel runs on one server take turns.
            conn.execute("select pg_advisory_lock(%s)", (_ROLES_LOCK,))
            apply_roles(self.dsn(dbname or self.maintenance_dbname))
            for name, granted in TEST_ROLES.items():
                self._create_login(conn, role_name(name), granted)

    def load_schema(self, dbname: str) -> None:
        """Create the roles and migrate a database to the newest schema."""
        from trex_client.migrate import migrate

        self.create_roles(dbname)
        migrate(self.dsn(dbname))

    def _create_login(self, conn: psycopg.Connection, role: str, granted: tuple[str, ...]) -> None:
        password = self.embedded.password if self.embedded else _ROLE_PASSWORD
        known = conn.execute("select 1 from pg_roles where rolname = %s", (role,)).fetchone()
        statement = (
            "alter role {} login password {}" if known else "create role {} login password {}"
        )
        conn.execute(
            sql.SQL(statement).format(sql.Identifier(role), sql.Literal(password)),
        )
        for sibling in granted:
            conn.execute(
                sql.SQL("grant {} to {}").format(sql.Identifier(sibling), sql.Identifier(role))
            )

    def create_database(self, template: str | None = None) -> Database:
        """Make a database of its own, empty or as a copy of a template."""
        dbname = f"trex_test_{os.getpid()}_{next(_NUMBER)}"
        statement = sql.SQL("create database {}").format(sql.Identifier(dbname))
        if template is not None:
            statement += sql.SQL(" template {} strategy file_copy").format(sql.Identifier(template))
        with self.admin() as conn:
            conn.execute(statement)
        return Database(self, dbname)


def role_name(role: str) -> str:
    """Return the login role for a key of `TEST_ROLES`; other names stay as they are."""
    return f"trex_test_{role}" if role in TEST_ROLES else role


def start_server(binaries: ServerBinaries, settings: dict[str, str] | None = None) -> Server:
    """Start a server of its own; the caller calls `server.embedded.close()`."""
    embedded = EmbeddedServer(binaries, settings={**FAST, **(settings or {})})
    embedded.__enter__()
    canaries.passwords.add(embedded.password)
    return Server(
        host=str(embedded.socket_dir),
        port=embedded.port,
        user="postgres",
        password=embedded.password,
        options="",
        maintenance_dbname="postgres",
        version=binaries.version,
        full=binaries.full,
        embedded=embedded,
    )


def given_server(spec: ServerSpec) -> Server:
    """Use the running server that `TREX_DSN` or libpq's variables name."""
    with psycopg.connect(spec.dsn or "") as conn:
        info = conn.info
        password = conninfo_to_dict(spec.dsn or "").get("password") or info.password
        return Server(
            host=info.host,
            port=info.port,
            user=info.user,
            password=str(password) if password else None,
            options="",
            maintenance_dbname=info.dbname,
            version=spec.version,
            full=spec.full,
        )


class Database:
    """One database; `close` ends its connections and drops it."""

    def __init__(self, server: Server, dbname: str) -> None:
        self.server = server
        self.dbname = dbname
        self._connections: list[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]] = []
        self._clock: Clock | None = None

    @property
    def version(self) -> int:
        """PostgreSQL's major version."""
        return self.server.version

    def dsn(self, role: str | None = None, *, tcp: bool = False) -> str:
        """Return a connection string; see `Server.dsn`."""
        return self.server.dsn(self.dbname, role, tcp=tcp)

    def connect(self, role: str | None = None, **options: Any) -> psycopg.Connection[Any]:
        """Connect; the connection is closed when the test ends.

        Args:
            role: see `Server.dsn`.
            options: for `psycopg.connect`; `autocommit` is True unless given.
        """
        options.setdefault("autocommit", True)
        conn = psycopg.connect(self.dsn(role), **options)
        self._connections.append(conn)
        return conn

    async def aconnect(
        self, role: str | None = None, **options: Any
    ) -> psycopg.AsyncConnection[Any]:
        """Connect as `connect` does, for asyncio."""
        options.setdefault("autocommit", True)
        conn = await psycopg.AsyncConnection.connect(self.dsn(role), **options)
        self._connections.append(conn)
        return conn

    @property
    def clock(self) -> Clock:
        """The test clock of this database; installed at the first use."""
        if self._clock is None:
            self._clock = Clock(self)
        return self._clock

    def close(self) -> None:
        """Close all connections and drop the database."""
        for conn in self._connections:
            conn.pgconn.finish()
        self._connections.clear()
        with self.server.admin() as conn:
            conn.execute(
                sql.SQL("drop database if exists {} with (force)").format(
                    sql.Identifier(self.dbname)
                )
            )


class Clock:
    """What `trex._now()` returns in one test database; it runs with the server until moved."""

    def __init__(self, database: Database) -> None:
        self._conn = database.connect()
        with self._conn.transaction():
            self._conn.execute("create schema trex_test")
            self._conn.execute(
                "create table trex_test.clock"
                " (frozen_at timestamptz, shift interval not null default interval '0')"
            )
            self._conn.execute("insert into trex_test.clock default values")
            self._conn.execute("grant usage on schema trex_test to public")
            self._conn.execute("grant select on trex_test.clock to public")
            self._conn.execute(
                """
                create or replace function trex._now() returns timestamptz
                language plpgsql volatile parallel unsafe
                set search_path = pg_catalog, pg_temp
                as $$
                begin
                    return (
                        select coalesce(c.frozen_at, pg_catalog.clock_timestamp()) + c.shift
                        from trex_test.clock as c
                    );
                end
                $$
                """
            )

    def now(self) -> datetime:
        """Return what the functions see as the time now."""
        row = self._conn.execute("select trex._now()").fetchone()
        assert row is not None
        value: datetime = row[0]
        return value

    def freeze(self, at: datetime | None = None) -> datetime:
        """Stop the clock, at `at` (with time zone) or at the time it shows; return that time."""
        moment = at or self.now()
        self._conn.execute("update trex_test.clock set frozen_at = %s, shift = '0'", (moment,))
        return moment

    def advance(self, by: timedelta | float) -> datetime:
        """Move the clock, frozen or running, by a time span or seconds; return the new time."""
        span = by if isinstance(by, timedelta) else timedelta(seconds=by)
        self._conn.execute("update trex_test.clock set shift = shift + %s", (span,))
        return self.now()

    def run(self) -> None:
        """Let the clock run with the server's again."""
        self._conn.execute("update trex_test.clock set frozen_at = null, shift = '0'")
