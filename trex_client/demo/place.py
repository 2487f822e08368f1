"""Where the demo runs: a server of its own, or databases and roles of its own on a given one.

Everything has a name that nobody else has, and `close` removes it. Sessions act as one of the
demo's roles through the setting `role` at their start, so that no password is needed.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trex_client import migrate
from trex_client._session import SETTING
from trex_client.ledger import install
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

ACTOR = "trex-demo"
_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
_TREX_ROLES = (
    "trex_owner", "trex_app", "trex_worker", "trex_operator", "trex_reader", "trex_adopter",
)  # fmt: skip
# Cluster-wide roles that were missing carry this comment; whichever demo ends last drops them.
_MARK = "made by trex demo, which drops it"

# Whatever the server's default or PGOPTIONS say.
_READ_COMMITTED = rf"-c {SETTING}=read\ committed"

_BUSINESS_TABLE = """
create table shop.movement (
    instance_key text not null,
    movement_key text not null,
    account text not null,
    currency text not null,
    amount numeric not null,
    message_id bigint not null,
    booked_at timestamptz not null default clock_timestamp(),
    primary key (instance_key, movement_key)
)
"""


class NoPlace(Exception):  # noqa: N818
    """The demo can't be set up here; the text is constant but for names."""


def given_dsn(dsn: str | None) -> str | None:
    """Return the connection string of the server to use, None for a server of our own."""
    if dsn is not None:
        return dsn
    if os.environ.get("TREX_DSN"):
        return os.environ["TREX_DSN"]
    return "" if any(os.environ.get(name) for name in _VARIABLES) else None


@dataclass(slots=True)
class Place:
    """Two databases, `name` with trex and the business table and `name_ledger`, and four roles."""

    admin: str = field(repr=False)
    name: str
    version: str = ""
    bindir: str | None = None
    server: subprocess.Popen[str] | None = None
    databases: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    member: str | None = None

    @property
    def ledger_name(self) -> str:
        """The ledger's database."""
        return f"{self.name}_ledger"

    def dsn(self, role: str | None = None, *, ledger: bool = False) -> str:
        """Return how to connect: as the administrator, `trex_owner`, or one of the demo's roles."""
        dbname = self.ledger_name if ledger else self.name
        known = conninfo_to_dict(self.admin)
        options = [str(known.get("options") or os.environ.get("PGOPTIONS", "")), _READ_COMMITTED]
        if role is not None:
            name = role if role == "trex_owner" else self.role(role)
            options.append(f"-c role={name}")
        return make_conninfo(self.admin, dbname=dbname, options=" ".join(options).strip())

    def role(self, short: str) -> str:
        """Return the full name of a role: app, worker, operator or ledger."""
        return f"{self.name}_{short}"

    @contextmanager
    def connect(
        self, role: str | None = None, *, ledger: bool = False
    ) -> Iterator[psycopg.Connection[Any]]:
        """A connection in autocommit mode."""
        dsn = self.dsn(role, ledger=ledger)
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as conn:
            yield conn

    def set_up(self) -> None:
        """Make databases, roles and schema.

        Raises:
            NoPlace: a right is missing, or the server can't be reached.
        """
        try:
            with psycopg.connect(self.admin, autocommit=True, connect_timeout=10) as conn:
                self.version = conn.info.parameter_status("server_version") or ""
                self._make_database(conn, self.name)
                self._make_roles(conn)
                self._make_database(conn, self.ledger_name, self.role("ledger"))
            migrate.migrate(self.dsn())
            with self.connect() as conn:
                owner = sql.Identifier(self.role("app"))
                conn.execute(sql.SQL("create schema shop authorization {}").format(owner))
            with self.connect("app") as conn:
                conn.execute(_BUSINESS_TABLE)
            install(self.dsn("ledger", ledger=True))
        except psycopg.OperationalError:
            raise NoPlace("no connection to the server, or it was lost") from None
        except psycopg.errors.InsufficientPrivilege:
            raise NoPlace(
                "this login may not make databases and roles: it needs CREATEDB and CREATEROLE"
            ) from None
        except psycopg.Error as error:
            raise NoPlace(f"the server refused it with SQLSTATE {error.sqlstate}") from None
        except migrate.MigrationError as error:
            raise NoPlace(str(error)) from None

    def register(
        self, instances: Sequence[str], *, lease: timedelta, backoff: tuple[timedelta, timedelta]
    ) -> None:
        """Register the instances and bind the demo's roles to them."""
        with self.connect("operator") as conn:
            for instance in instances:
                client = PostgresClient(conn, instance)
                client.register_instance(
                    actor=ACTOR,
                    reason="demo",
                    lease_default=lease,
                    backoff_base=backoff[0],
                    backoff_cap=backoff[1],
                    on_parked="continue",
                )
                for role in ("app", "worker", "operator"):
                    client.bind(self.role(role), actor=ACTOR, reason="demo")

    def close(self, *, keep: bool = False) -> None:
        """Remove everything, or leave it and let the server live on.

        Raises:
            NoPlace: the given server is gone, or forbids it; the text says what to remove by hand.
        """
        if self.server is None:
            if self.databases and not keep:
                try:
                    self._remove()
                except psycopg.Error:
                    raise NoPlace(f"could not remove it all; by hand:\n{self.by_hand()}") from None
            return
        assert self.server.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):
            if keep:
                self.server.stdin.write("keep\n")
            self.server.stdin.close()
        if not keep:
            try:
                self.server.wait(20.0)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()

    def by_hand(self) -> str:
        """How to remove what was kept."""
        if self.server is not None:
            return f"kill {self.server.pid}"
        lines = [f"drop database {name} with (force);" for name in self.databases]
        lines += [f"drop role {name};" for name in self.roles]
        return "\n".join(lines)

    def _make_roles(self, conn: psycopg.Connection[Any]) -> None:
        row = conn.execute(
            "select current_user::text, rolsuper from pg_catalog.pg_roles"
            " where rolname = current_user"
        ).fetchone()
        assert row is not None  # noqa: S101 - current_user is a role
        me, superuser = row
        found = conn.execute(
            "select rolname::text, pg_catalog.pg_has_role(oid, 'member')"
            " from pg_catalog.pg_roles where rolname = any(%s)",
            (list(_TREX_ROLES),),
        ).fetchall()
        existing = dict(found)
        migrator = None if superuser or existing.get("trex_owner", False) else me
        migrate.apply_roles(self.dsn(), migrator)
        self.member = migrator
        with conn.transaction():
            for name in _TREX_ROLES:
                if name not in existing:
                    mark = sql.SQL("comment on role {} is {}")
                    conn.execute(mark.format(sql.Identifier(name), sql.Literal(_MARK)))
        grants = {"app": "trex_app", "worker": "trex_worker", "operator": "trex_operator"}
        for short in ("app", "worker", "operator", "ledger"):
            self.roles.append(self.role(short))
            role = sql.Identifier(self.role(short))
            conn.execute(sql.SQL("create role {} nologin").format(role))
            if not superuser:
                conn.execute(sql.SQL("grant {} to {}").format(role, sql.Identifier(me)))
            if short in grants:
                parent = sql.Identifier(grants[short])
                conn.execute(sql.SQL("grant {} to {}").format(parent, role))

    def _make_database(
        self, conn: psycopg.Connection[Any], name: str, owner: str | None = None
    ) -> None:
        self.databases.append(name)
        owned = sql.SQL("") if owner is None else sql.SQL("owner {}").format(sql.Identifier(owner))
        query = sql.SQL("create database {} template template0 encoding 'UTF8' {}")
        conn.execute(query.format(sql.Identifier(name), owned))

    def _remove(self) -> None:
        with psycopg.connect(self.admin, autocommit=True, connect_timeout=10) as conn:
            for name in self.databases:
                drop = sql.SQL("drop database if exists {} with (force)")
                conn.execute(drop.format(sql.Identifier(name)))
            for name in self.roles:
                conn.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))
            if self.member is not None:
                revoke = sql.SQL("revoke trex_owner from {}")
                conn.execute(revoke.format(sql.Identifier(self.member)))
            _drop_marked_roles(conn)


def _drop_marked_roles(conn: psycopg.Connection[Any]) -> None:
    """Drop the cluster-wide roles that a demo made, unless somebody uses them by now."""
    with suppress(psycopg.Error), conn.transaction():
        marked = [
            name
            for (name,) in conn.execute(
                "select rolname::text from pg_catalog.pg_roles where rolname = any(%s)"
                " and pg_catalog.shobj_description(oid, 'pg_authid') = %s",
                (list(_TREX_ROLES), _MARK),
            )
        ]
        for name in marked:
            conn.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def start_server() -> Place:
    """Start a server of our own.

    Raises:
        NoPlace: there is no PostgreSQL, or it doesn't start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "trex_client.demo.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    place = Place("", "trex_demo", server=process)
    try:
        said = _first_line(process.stdout)
    except BaseException:
        place.close()
        raise
    if "dsn" not in said:
        place.close()
        raise NoPlace(str(said.get("error", "the PostgreSQL server didn't start")))
    place.admin = said["dsn"]
    place.bindir = said["bindir"]
    return place


def use_server(dsn: str) -> Place:
    """Use a given server, under names of our own."""
    try:
        conninfo_to_dict(dsn)
    except psycopg.Error:
        raise NoPlace("the connection string can't be read") from None
    return Place(dsn, f"trex_demo_{secrets.token_hex(4)}")


def _first_line(stream: IO[str] | None) -> dict[str, Any]:
    text = "" if stream is None else stream.readline()
    said: dict[str, Any] = json.loads(text) if text else {}
    return said
