"""The simulation and every PostgreSQL server behind one door, for tests of the API.

A test takes the fixture `backend` (see `tests/py/conformance/conftest.py`) and never asks which one
it got: what a backend can't do is a capability flag. Each test starts with sequences at one, the
clock frozen at `START`, and instance keys of its own in a database that the module's tests share.

On PostgreSQL every call is written down. When the test ends, the same calls run on a fresh
simulation: each must have the same result or the same error, and all tables must end alike.
"""

from __future__ import annotations

import itertools
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from psycopg import sql

from tests.support.dumps import Dump, Dumper, Row, difference, memory_dump
from trex_client.errors import InvalidArgument, TrexError
from trex_client.memory import Clock, MemoryClient, MemoryDatabase
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from tests.support.databases import Database, Server
    from trex_client.api import Trex

START = datetime(2030, 1, 1, tzinfo=UTC)
WHO: dict[str, Any] = {"actor": "test", "reason": "test"}

ROLES = {
    "full": "trex_test_full",
    "second": "trex_test_second",
    "stranger": "trex_test_stranger",
}
"""Roles with every right that the schema gives to anybody. `full` and `second` are bound to each
instance that `Backend.register` makes, `stranger` to none."""

_GRANTED = ("trex_app", "trex_worker", "trex_operator", "trex_reader", "trex_adopter")
_NUMBER = itertools.count(1)


def make_roles(server: Server) -> None:
    """Make the login roles of `ROLES` on a server that has trex's own roles."""
    with server.admin() as conn:
        conn.execute("select pg_advisory_lock(7420001)")
        for role in ROLES.values():
            server._create_login(conn, role, _GRANTED)


@dataclass
class Step:
    """Something that a test did to a backend: a call, or a move of clock, server, transaction."""

    what: str
    client: Trex | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    result: object = None

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        where = f"{self.client.instance_key}." if self.client is not None else ""
        return f"{where}{self.what}({', '.join(arguments)}) -> {self.result!r}"


def outcome(call: Callable[[], object]) -> object:
    """The result of a call, or the error of ours that it raised."""
    try:
        return call()
    except TrexError as error:
        return refusal(error)


@dataclass(frozen=True)
class Refusal:
    """What an error says to a program: its type, and which argument of which row it refuses."""

    kind: type[TrexError]
    argument: str | None


def refusal(error: TrexError) -> Refusal:
    named = re.fullmatch(r"[^:]*: ((?:[a-z]+ \d+: )?\w+)\b.*", str(error), re.DOTALL)
    argument = named[1] if named and isinstance(error, InvalidArgument) else None
    return Refusal(type(error), argument)


class Backend:
    """What all backends share. Instances are named by the test, stored under keys of their own."""

    concurrent = False
    """Other sessions see committed rows while a transaction is open, and wait for its locks."""
    privileges = False
    """Tables and functions have grants."""

    def __init__(self) -> None:
        self.suffix = f"-{next(_NUMBER)}"
        self.instances: list[str] = []
        self.steps: list[Step] = []

    def key(self, instance: str) -> str:
        """The stored key of an instance that the test calls `instance`."""
        key = f"{instance}{self.suffix}"
        if key not in self.instances:
            self.instances.append(key)
        return key

    def client(self, instance: str = "shop", role: str = "full") -> Trex:
        """A client of its own session, bound to the instance. `role`: a key of `ROLES`."""
        raise NotImplementedError

    def register(self, instance: str = "shop", **policy: Any) -> Trex:
        """Register an instance, bind `full` and `second` to it, and return a client of it."""
        client = self.client(instance)
        client.register_instance(**WHO, **policy)
        for role in ("full", "second"):
            client.bind(ROLES[role], **WHO)
        return client

    def transaction(self, *clients: Trex) -> Any:
        """The caller's transaction, or a savepoint inside one, on these clients' sessions."""
        raise NotImplementedError

    @contextmanager
    def rolled_back(self, *clients: Trex) -> Iterator[None]:
        """A transaction whose work is undone when the block ends."""
        with suppress(_Abandoned), self.transaction(*clients):
            yield
            raise _Abandoned

    def read_only(self) -> Any:
        """While it is open, the server takes no writes of sessions of this backend."""
        raise NotImplementedError

    def now(self) -> datetime:
        raise NotImplementedError

    def advance(self, by: timedelta | float) -> datetime:
        """Move the frozen clock, by a span or by seconds; return the new time."""
        raise NotImplementedError

    def restart(self) -> None:
        """As after a restart of the server: what the next claim sees."""
        raise NotImplementedError

    def quarantine(self, source: str, source_key: str, **columns: Any) -> int:
        """Put a row of an older outbox into quarantine; return its id."""
        raise NotImplementedError

    def dump(self) -> Dump:
        """Every table, as far as it is this test's."""
        raise NotImplementedError

    def rows(self, table: str, **columns: Any) -> list[Row]:
        """The test's rows of one table that have these values."""
        return [
            row
            for row in self.dump()[table]
            if all(row[name] == value for name, value in columns.items())
        ]

    def row(self, table: str, **columns: Any) -> Row:
        (row,) = self.rows(table, **columns)
        return row


def text(at: datetime) -> str:
    """A time as it stands in a dump."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")


class MemoryBackend(Backend):
    """The simulation."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(START)
        self.db = MemoryDatabase(self.clock)
        self._currencies = set(self.db.currency)

    def client(self, instance: str = "shop", role: str = "full") -> Trex:
        return MemoryClient(self.db, self.key(instance), ROLES[role])

    def transaction(self, *clients: Trex) -> Any:
        return self.db.transaction()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self.db.standby = True
        try:
            yield
        finally:
            self.db.standby = False

    def now(self) -> datetime:
        return self.clock()

    def advance(self, by: timedelta | float) -> datetime:
        return self.clock.advance(by if isinstance(by, timedelta) else timedelta(seconds=by))

    def restart(self) -> None:
        self.db.restart()

    def quarantine(self, source: str, source_key: str, **columns: Any) -> int:
        return self.db.quarantined(source, source_key, **columns)

    def dump(self) -> Dump:
        return memory_dump(self.db, None, self._currencies)


class Sessions:
    """One database of a PostgreSQL server for the tests of a module, with sessions that are used
    again from test to test."""

    def __init__(self, server: Server, template: str) -> None:
        make_roles(server)
        self.database: Database = server.create_database(template)
        self.admin = self.database.connect()
        self.admin.execute("set timezone = 'Asia/Kathmandu'")
        self.database.clock.freeze(START)
        self.dumper = Dumper(self.admin)
        self._free: dict[str, list[psycopg.Connection[Any]]] = {}
        self._used: list[tuple[str, psycopg.Connection[Any]]] = []

    def connect(self, role: str) -> psycopg.Connection[Any]:
        free = self._free.setdefault(role, [])
        conn = free.pop() if free else self.database.connect(ROLES[role])
        self._used.append((role, conn))
        return conn

    def give_back(self) -> None:
        for role, conn in self._used:
            if not conn.closed:
                conn.rollback()
                self._free[role].append(conn)
        self._used.clear()

    def start(self, number: int = 1) -> None:
        """Sequences, epoch and clock as in a new database."""
        self.admin.execute(
            "select setval('trex.message_id_seq', %s, false), setval('trex.fence_seq', %s, false)",
            (number, number),
        )
        with self.admin.transaction():
            # The guard lets nobody else turn the epoch back.
            self.admin.execute("alter table trex.epoch disable trigger guard_update")
            self.admin.execute("update trex.epoch set epoch = 0, postmaster_start = null")
            self.admin.execute("alter table trex.epoch enable always trigger guard_update")
        self.database.clock.freeze(START)

    def close(self) -> None:
        self.database.close()


class PostgresBackend(Backend):
    """One PostgreSQL server."""

    concurrent = True
    privileges = True

    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions
        self.database = sessions.database
        self.admin = sessions.admin
        self._connections: dict[int, psycopg.Connection[Any]] = {}
        self._compared = True
        sessions.start()
        self._marks = sessions.dumper.marks()
        self._quarantined = self._marks["quarantined"]

    def client(self, instance: str = "shop", role: str = "full") -> Trex:
        conn = self.sessions.connect(role)
        made = PostgresClient(conn, self.key(instance))
        traced = cast("Trex", _Traced(self, made, role))
        self._connections[id(traced)] = conn
        self.steps.append(Step("client", traced))
        return traced

    def connection(self, client: Trex) -> psycopg.Connection[Any]:
        """The session of a client."""
        return self._connections[id(client)]

    def again(self) -> None:
        """Begin once more: new instances, sequences and clock as at the start of a test."""
        self.sessions.give_back()
        self.sessions.start()
        self._connections.clear()
        self.steps.clear()
        self.suffix = f"-{next(_NUMBER)}"
        self.instances = []
        self._marks = self.sessions.dumper.marks()
        self._quarantined = self._marks["quarantined"]

    def uncompared(self) -> None:
        """For a test with threads, raw SQL or more than one open transaction: its calls aren't
        repeated on the simulation."""
        self._compared = False

    @contextmanager
    def transaction(self, *clients: Trex) -> Iterator[None]:
        conns = {id(conn): conn for conn in map(self.connection, clients)}
        (conn,) = conns.values()
        self.steps.append(Step("begin"))
        done = False
        try:
            with conn.transaction():
                yield
            done = True
        finally:
            self.steps.append(Step("commit" if done else "rollback"))

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self.steps.append(Step("standby", args=(True,)))
        conns = list(self._connections.values())
        for conn in conns:
            conn.execute("set default_transaction_read_only = on")
        try:
            yield
        finally:
            for conn in conns:
                conn.execute("set default_transaction_read_only = off")
            self.steps.append(Step("standby", args=(False,)))

    def now(self) -> datetime:
        return self.database.clock.now()

    def advance(self, by: timedelta | float) -> datetime:
        span = by if isinstance(by, timedelta) else timedelta(seconds=by)
        self.steps.append(Step("advance", args=(span,)))
        return self.database.clock.advance(span)

    def restart(self) -> None:
        self.steps.append(Step("restart"))
        self.admin.execute("update trex.epoch set postmaster_start = '-infinity'")

    def quarantine(self, source: str, source_key: str, **columns: Any) -> int:
        columns.setdefault("imported_at", self.now())
        self.steps.append(Step("quarantine", args=(source, source_key), kwargs=columns))
        values = {"source": f"{source}{self.suffix}", "source_key": source_key, **columns}
        row = self.admin.execute(
            sql.SQL("insert into trex.quarantine ({}) values ({}) returning quarantine_id").format(
                sql.SQL(", ").join(map(sql.Identifier, values)),
                sql.SQL(", ").join(sql.Placeholder() * len(values)),
            ),
            list(values.values()),
        ).fetchone()
        assert row is not None
        number: int = row[0]
        return number

    def dump(self) -> Dump:
        return self.sessions.dumper.dump(self.instances, self._marks)

    def close(self) -> None:
        self.sessions.give_back()

    def compare(self) -> None:
        """Repeat the test's calls on the simulation: same results, errors and tables."""
        if not self._compared:
            return
        memory = MemoryDatabase(clock := Clock(START))
        memory.quarantine_id_seq = self._quarantined
        currencies = set(memory.currency)
        clients: dict[int, MemoryClient] = {}
        open_blocks: list[Any] = []
        for number, step in enumerate(self.steps):
            match step.what:
                case "client":
                    traced = cast("_Traced", step.client)
                    clients[id(traced)] = MemoryClient(
                        memory, traced.instance_key, ROLES[traced.role]
                    )
                case "begin":
                    open_blocks.append(memory.transaction())
                    open_blocks[-1].__enter__()
                case "commit" | "rollback":
                    _leave(open_blocks.pop(), step.what)
                case "advance":
                    clock.advance(*step.args)
                case "restart":
                    memory.restart()
                case "standby":
                    (memory.standby,) = step.args
                case "quarantine":
                    source, source_key = step.args
                    memory.quarantined(f"{source}{self.suffix}", source_key, **step.kwargs)
                case name:
                    method = getattr(clients[id(step.client)], name)
                    simulated = outcome(lambda: method(*step.args, **step.kwargs))  # noqa: B023
                    assert simulated == step.result, (
                        f"step {number}, {step}\nthe simulation says {simulated!r}"
                    )
        lines = difference(memory_dump(memory, None, currencies), self.dump())
        assert not lines, "simulation (<) and PostgreSQL (>) differ:\n" + "\n".join(lines)


def _leave(block: Any, how: str) -> None:
    if how == "commit":
        block.__exit__(None, None, None)
        return
    with suppress(_Abandoned, TrexError):
        block.__exit__(_Abandoned, _Abandoned(), None)


class _Abandoned(Exception):
    """What leaves a block whose work is undone."""


class _Traced:
    """A client whose calls are written down."""

    def __init__(self, backend: PostgresBackend, client: PostgresClient, role: str) -> None:
        self._backend = backend
        self._client = client
        self.role = role
        self.instance_key = client.instance_key

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            step = Step(name, cast("Trex", self), args, kwargs)
            self._backend.steps.append(step)
            try:
                result = method(*args, **kwargs)
            except TrexError as error:
                step.result = refusal(error)
                raise
            # A copy: the test may sort or change what it got.
            step.result = list(result) if isinstance(result, list) else result
            return result

        return call
