"""The connection is cut at every wire message of a life of one message: enqueue in a transaction,
claim, complete. The client repeats the same call on a new connection, and nothing is done twice.

`TREX_CUT_ROUNDS` repeats the sweep; one sweep tries both directions, and before, amid and after
each message.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.conftest import VERSIONS
from tests.py.failover.clusters import KEY, WHO, until
from tests.py.failover.history import Log
from tests.py.failover.wire import Cut, How, Proxy
from tests.support.counts import emit, scale
from trex_client.errors import CommitUnknown
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database
    from trex_client.model import Claim

ROUNDS = scale("CUT_ROUNDS", 1)
LEASE = timedelta(seconds=30)

pytestmark = [
    pytest.mark.criterion("ac-0053"),
    pytest.mark.criterion("ac-0065"),
    pytest.mark.timeout(300 + 300 * ROUNDS),
]


class Shop:
    """A client behind the proxy that reconnects and repeats."""

    def __init__(self, proxy: Proxy, dsn: str, log: Log) -> None:
        self.proxy = proxy
        self.dsn = dsn
        self.log = log
        self.conn: psycopg.Connection[Any] | None = None

    def connect(self) -> PostgresClient:
        if self.conn is None or self.conn.closed:
            self.conn = psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None)
        return PostgresClient(self.conn, KEY)

    def lost(self) -> None:
        if self.conn is not None:
            self.conn.pgconn.finish()
        self.conn = None

    def enqueue(self, key: str) -> None:
        while True:
            client = self.connect()
            assert self.conn is not None
            try:
                with self.conn.transaction():
                    answer = client.enqueue("pay", key, {"k": key})
            except (CommitUnknown, psycopg.OperationalError):
                self.log.enqueue(key, None)
                self.lost()
                continue
            self.log.enqueue(key, answer)
            return

    def claim(self, database: Database) -> list[Claim]:
        while True:
            client = self.connect()
            try:
                claims = client.claim("w", 1, lease=LEASE)
            except CommitUnknown:
                self.log.claim(None)
                self.lost()
                # A fence that nobody was told may have been given: its lease has to end. The
                # server may still be busy with the call.
                self.settle(database)
                database.clock.advance(LEASE)
                continue
            self.log.claim(claims)
            return claims

    def settle(self, database: Database) -> None:
        with psycopg.connect(database.dsn(), autocommit=True) as conn:
            until(
                lambda: (
                    conn.execute(
                        "select count(*) from pg_stat_activity where datname = current_database()"
                        " and usename = 'trex_test_worker'"
                    ).fetchone()
                    == (0,)
                )
            )

    def complete(self, claim: Claim) -> str:
        while True:
            client = self.connect()
            try:
                answer = client.complete(claim.message_id, claim.fence)
            except CommitUnknown:
                self.log.complete(claim.message_id, claim.fence, None)
                self.lost()
                continue
            self.log.complete(claim.message_id, claim.fence, answer)
            return answer.status


@pytest.fixture
def place(pg_db: Database) -> Iterator[tuple[Database, Proxy, str]]:
    client = PostgresClient(pg_db.connect(), KEY)
    client.register_instance(**WHO, max_attempts=1000)
    for role in ("postgres", "trex_test_worker", pg_db.server.user):
        client.bind(role, **WHO)
    pg_db.clock.freeze()
    with psycopg.connect(pg_db.dsn(), autocommit=True) as conn:
        conn.execute("grant trex_app to trex_test_worker")
    parts = conninfo_to_dict(pg_db.dsn("worker", tcp=True))
    with Proxy(str(parts["host"]), int(str(parts["port"]))) as proxy:
        through: Any = {"host": "127.0.0.1", "port": proxy.port, "sslmode": "disable",
                   "gssencmode": "disable"}  # fmt: skip
        try:
            yield pg_db, proxy, make_conninfo(pg_db.dsn("worker", tcp=True), **through)
        finally:
            # Roles belong to the whole server, which other tests share.
            with psycopg.connect(pg_db.dsn(), autocommit=True) as conn:
                conn.execute("revoke trex_app from trex_test_worker")


def life(shop: Shop, database: Database, key: str) -> str:
    """One message from enqueue to completion, through whatever happens."""
    shop.enqueue(key)
    (claim,) = shop.claim(database)
    return shop.complete(claim)


def test_a_cut_at_every_wire_message(place: tuple[Database, Proxy, str], pg_db: Database) -> None:
    started = time.monotonic()
    database, proxy, dsn = place
    log = Log(KEY)
    shop = Shop(proxy, dsn, log)
    shop.connect()
    proxy.arm(None)
    assert life(shop, database, "first") == "recorded"
    seen = dict(proxy.seen)
    assert seen["client"] >= 10
    assert seen["server"] >= 10
    answers: list[str] = []
    hows: tuple[How, ...] = ("before", "amid", "after")
    if ROUNDS == 1:  # in CI the versions share the work
        hows = ("amid",) if pg_db.version == VERSIONS[-1] < VERSIONS[0] else ("before", "after")
    for number in range(ROUNDS):
        for side in ("client", "server"):
            for message in range(1, seen[side] + 1):
                for how in hows:
                    shop.connect()
                    cut = Cut(side, message, how)
                    proxy.arm(cut)
                    answers.append(life(shop, database, f"{number}-{side}-{message}-{how}"))
                    assert proxy.cut is None, f"{cut} never came"
                    shop.lost()
    shop.lost()
    log.check(database.connect())
    for name in ("enqueue unknown", "enqueue duplicate", "claim unknown", "complete unknown",
                 "complete already_recorded", "complete recorded"):  # fmt: skip
        assert log.counts[name] >= ROUNDS, f"{name}: {log.counts}"
    assert set(answers) == {"recorded", "already_recorded"}
    states = database.connect().execute(
        "select (select count(*) from trex.message), (select count(*) from trex.receipt)"
    ).fetchone()  # fmt: skip
    assert states == (len(answers) + 1, len(answers) + 1)
    emit(
        "wire cuts", {"cuts": proxy.cuts, **log.counts}, seconds=time.monotonic() - started,
        server=pg_db.server.full,
    )  # fmt: skip


def test_the_checker_finds_what_is_lost(pg_db: Database) -> None:
    client = PostgresClient(pg_db.connect(), KEY)
    client.register_instance(**WHO)
    client.bind("postgres", **WHO)
    log = Log(KEY)
    log.enqueue("a", client.enqueue("pay", "a", {}))
    (claim,) = client.claim("w")
    log.claim([claim])
    log.complete(claim.message_id, claim.fence, client.complete(claim.message_id, claim.fence))
    log.check(pg_db.connect())
    faults: list[tuple[str, Callable[[Log], None]]] = [
        ("lost", lambda bad: bad.enqueued.update(b=99)),
        ("gone", lambda bad: bad.completed.update({(98, 5): "recorded"})),
        ("twice", lambda bad: bad.fences.append((97, claim.fence))),
        ("two", lambda bad: bad.completed.update({(claim.message_id, 1): "recorded"})),
        ("fell", lambda bad: bad.fences.append((claim.message_id, 1))),
    ]
    for words, spoil in faults:
        bad = Log(KEY, enqueued=dict(log.enqueued), fences=log.fences[:],
                  completed=dict(log.completed))  # fmt: skip
        spoil(bad)
        with pytest.raises(AssertionError, match=words):
            bad.check(pg_db.connect())
    with pytest.raises(AssertionError, match="already recorded by whom"):
        Log(KEY).complete(1, 1, "already_recorded")
