"""Servers that are lost: what was acknowledged stays, or at least no fence is ever given twice.

`TREX_FAILOVER_ROUNDS` sets how many of each run. Every claim's epoch is the high bits of its fence.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.py.failover.clusters import (
    KEY,
    PRIMARY,
    caught_up,
    connected,
    embedded,
    from_backup,
    is_streaming,
    mutate,
    prepare,
    promote,
    until,
)
from tests.py.failover.history import Log
from tests.support.counts import emit, scale
from trex_client.errors import ClaimLost, CommitUnknown, NotFound, TrexError
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Server
    from trex_client.embedded import EmbeddedServer
    from trex_client.model import Claim

ROUNDS = scale("FAILOVER_ROUNDS", 1)
CRASHES = scale("CRASH_ROUNDS", 2)
LEASE = timedelta(seconds=30)

pytestmark = [pytest.mark.criterion("ac-0065"), pytest.mark.timeout(300 + 60 * ROUNDS)]


def epoch(fence: int) -> int:
    return fence >> 42


def fill(client: PostgresClient, log: Log, prefix: str, number: int) -> None:
    for n in range(number):
        key = f"{prefix}{n}"
        log.enqueue(key, client.enqueue("pay", key, {"n": n}))


def status_of(client: PostgresClient, claim: Claim) -> str:
    """What an old worker is told when it reports on the server that is there now."""
    try:
        return client.complete(claim.message_id, claim.fence).status
    except ClaimLost:
        return "claim_lost"
    except NotFound:
        return "not_found"


class Load:
    """Clients that enqueue, claim and complete until they are told to stop, and write it down."""

    def __init__(self, dsn: Callable[[], str], log: Log, clients: int = 3) -> None:
        self.dsn = dsn
        self.log = log
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._guard, args=(n,)) for n in range(clients)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(60)
        assert not self.errors, self.errors

    def _guard(self, number: int) -> None:
        try:
            self._work(number)
        except BaseException as error:
            self.errors.append(error)

    def _work(self, number: int) -> None:
        turn = 0
        conn: psycopg.Connection[Any] | None = None
        pending: list[Claim] = []
        key: str | None = None
        while not self.over.is_set():
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(self.dsn(), autocommit=True, connect_timeout=2)
                client = PostgresClient(conn, KEY)
                if key is None:
                    turn += 1
                    key = f"w{number}-{turn}"
                self.log.enqueue(key, client.enqueue("pay", key, {"n": turn}))
                key = None
                if not pending:
                    self._claim(client, f"w{number}", pending)
                while pending:
                    self._complete(client, pending[0])
                    pending.pop(0)
            except (CommitUnknown, psycopg.Error):
                if key is not None:
                    self.log.enqueue(key, None)
                if conn is not None:
                    conn.pgconn.finish()
                conn = None
                time.sleep(0.02)
        if conn is not None:
            conn.close()

    def _claim(self, client: PostgresClient, worker: str, pending: list[Claim]) -> None:
        try:
            claims = client.claim(worker, 2, lease=timedelta(seconds=2))
        except (TrexError, psycopg.Error):
            self.log.claim(None)
            raise
        self.log.claim(claims)
        pending.extend(claims)

    def _complete(self, client: PostgresClient, claim: Claim) -> None:
        try:
            answer = client.complete(claim.message_id, claim.fence)
        except ClaimLost:
            self.log.complete(claim.message_id, claim.fence, "claim_lost")
        except (TrexError, psycopg.Error):
            self.log.complete(claim.message_id, claim.fence, None)
            raise
        else:
            self.log.complete(claim.message_id, claim.fence, answer)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_synchronous_failover_loses_nothing(
    private_server: Callable[..., Server], number: int
) -> None:
    started = time.monotonic()
    primary = private_server(None, **PRIMARY)
    dbname = prepare(primary)
    log = Log(KEY)
    with ExitStack() as stack:
        standby = from_backup(primary, standby=True)
        stack.callback(standby.close)
        standby.start()
        until(lambda: is_streaming(primary, "async"))
        with primary.admin() as conn:
            conn.execute("alter system set synchronous_standby_names = '*'")
            conn.execute("select pg_reload_conf()")
        until(lambda: is_streaming(primary, "sync"))
        where = [embedded(primary)]
        load = Load(lambda: where[0].dsn(dbname), log)
        load.start()
        time.sleep(1.0 + 0.1 * (number % 10))
        before = log.counts.copy()
        embedded(primary).kill9()
        promote(standby)
        with connected(standby, dbname) as conn:
            conn.execute("alter system set synchronous_standby_names = ''")
            conn.execute("select pg_reload_conf()")
        where[0] = standby
        cut = len(log.fences)
        until(lambda: len(log.fences) > cut + 20)
        load.stop()
        with connected(standby, dbname) as conn:
            log.check(conn)
            rise = epoch(log.fences[-1][1]) - epoch(log.fences[0][1])
    assert before["complete recorded"] > 20
    assert rise == 1
    emit(
        "failover, synchronous", {"failovers": 1, **log.counts}, seconds=time.monotonic() - started,
        server=primary.full,
    )  # fmt: skip


@pytest.mark.parametrize("number", range(ROUNDS))
def test_asynchronous_failover_with_loss_gives_no_fence_twice(
    private_server: Callable[..., Server], number: int
) -> None:
    started = time.monotonic()
    primary = private_server(None, **PRIMARY)
    dbname = prepare(primary)
    log = Log(KEY)
    with ExitStack() as stack:
        standby = from_backup(primary, standby=True)
        stack.callback(standby.close)
        standby.start()
        until(lambda: is_streaming(primary, "async"))
        with psycopg.connect(primary.dsn(dbname), autocommit=True) as conn:
            client = PostgresClient(conn, KEY)
            fill(client, log, "kept", 12)
            known = client.claim("a", 4, lease=LEASE)
            log.claim(known)
            caught_up(primary, standby)
            cut_off(standby)
            # From here on everything is acknowledged, and lost.
            lost = client.claim("b", 4, lease=LEASE)
            log.claim(lost)
            completed = client.complete(lost[0].message_id, lost[0].fence)
            fill(client, log, "lost", 3 + number % 5)
            more = client.claim("c", 100, lease=LEASE)
            log.claim(more)
            embedded(primary).kill9()
        promote(standby)
        with connected(standby, dbname) as conn:
            after_loss(conn, log, known, [*lost, *more])
    assert completed.status == "recorded"
    emit(
        "failover with loss",
        {"failovers": 1, "fences lost": len(lost) + len(more), **log.counts},
        seconds=time.monotonic() - started, server=primary.full,
    )  # fmt: skip


def cut_off(standby: EmbeddedServer) -> None:
    """The network to the standby is gone."""
    with psycopg.connect(standby.dsn(), autocommit=True) as conn:
        conn.execute("alter system set primary_conninfo = ''")
        conn.execute("select pg_reload_conf()")
        until(lambda: conn.execute("select count(*) from pg_stat_wal_receiver").fetchone() == (0,))


def after_loss(
    conn: psycopg.Connection[Any], log: Log, known: list[Claim], lost: list[Claim]
) -> None:
    """On a server that forgot what came after some point: `known` is before it, `lost` after.

    Every lost fence is refused, before and after its message is claimed again.
    """
    assert known
    assert lost
    highest = max(claim.fence for claim in [*known, *lost])
    client = PostgresClient(conn, KEY)
    early = [status_of(client, claim) for claim in lost[: len(lost) // 2]]
    assert set(early) <= {"claim_lost", "not_found"}, early
    again = client.claim("d", 100, lease=LEASE)
    log.claim(again)
    assert again
    assert all(claim.fence > highest for claim in again), "a fence that may have been given before"
    assert {epoch(claim.fence) for claim in again} == {epoch(highest) + 1}
    assert {c.message_id for c in again} & {c.message_id for c in lost}
    late = [status_of(client, claim) for claim in lost]
    assert set(late) <= {"claim_lost", "not_found"}, late
    # What the server does remember is still its holder's.
    assert {status_of(client, claim) for claim in known} == {"recorded"}
    assert {status_of(client, claim) for claim in again} == {"recorded"}
    log.counts["lost fences refused"] += len(early) + len(late)
    log.check(conn, lossy=True)


def test_an_epoch_that_does_not_rise_is_found(private_server: Callable[..., Server]) -> None:
    with pytest.raises(AssertionError, match=r"given before|claim_lost"):
        restore(private_server, 0, planted=True)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_restored_backup_gives_no_fence_twice(
    private_server: Callable[..., Server], number: int
) -> None:
    restore(private_server, number)


def restore(private_server: Callable[..., Server], number: int, *, planted: bool = False) -> None:
    started = time.monotonic()
    primary = private_server(None, **PRIMARY)
    dbname = prepare(primary)
    log = Log(KEY)
    with ExitStack() as stack:
        with psycopg.connect(primary.dsn(dbname), autocommit=True) as conn:
            client = PostgresClient(conn, KEY)
            fill(client, log, "kept", 12)
            known = client.claim("a", 4, lease=LEASE)
            log.claim(known)
            if planted:
                mutate(conn, "_epoch", "v_start is distinct from", "v_start is null and v_start <>")
            restored = from_backup(primary, standby=False)
            stack.callback(restored.close)
            lost = client.claim("b", 4, lease=LEASE)
            fill(client, log, "lost", 1 + number % 5)
            lost += client.claim("c", 100, lease=LEASE)
            log.claim(lost)
            for claim in lost[:2]:
                assert client.complete(claim.message_id, claim.fence).status == "recorded"
            embedded(primary).kill9()
        restored.start()
        with connected(restored, dbname) as conn:
            after_loss(conn, log, known, lost)
    emit(
        "restored backup", {"restores": 1, "fences lost": len(lost), **log.counts},
        seconds=time.monotonic() - started, server=primary.full,
    )  # fmt: skip


def test_a_caller_without_synchronous_commit_and_a_crash(
    private_server: Callable[..., Server],
) -> None:
    crash(private_server, CRASHES)


def test_a_function_that_forces_nothing_is_found(private_server: Callable[..., Server]) -> None:
    with pytest.raises(AssertionError, match=r"lost|gone|given twice"):
        crash(private_server, 1, planted=True)


def crash(private_server: Callable[..., Server], rounds: int, *, planted: bool = False) -> None:
    """Acknowledged claims, outcomes and enqueues survive although the caller asked for less; a row
    that was written beside them shows that the crash does lose such commits."""
    started = time.monotonic()
    server = private_server(
        None, wal_writer_delay="10s", wal_writer_flush_after="1GB", autovacuum="off"
    )
    dbname = prepare(server)
    process = embedded(server)
    log = Log(KEY)
    controls = 0
    with connected(process, dbname) as conn:
        conn.execute("create table public.control (n integer)")
        if planted:
            mutate(conn, "_durable", "set_config('synchronous_commit', 'on', true)", "1")
    for number in range(rounds):
        with connected(process, dbname) as conn:
            conn.execute("set synchronous_commit = off")
            client = PostgresClient(conn, KEY)
            fill(client, log, f"r{number}-", 4)
            for key in (f"r{number}-tx",):
                with conn.transaction():
                    log.enqueue(key, client.enqueue("pay", key, {}))
            claims = client.claim("a", 3, lease=LEASE)
            log.claim(claims)
            log.complete(
                claims[0].message_id, claims[0].fence,
                client.complete(claims[0].message_id, claims[0].fence),
            )  # fmt: skip
            conn.execute("insert into public.control values (%s)", (number,))
            process.kill9()
        process.start()
        with connected(process, dbname) as conn:
            log.check(conn)
            rows = dict(conn.execute("select message_id, fence from trex.delivery where fence > 0"))
            assert all(rows[c.message_id] == c.fence for c in claims[1:]), "a claim is gone"
            client = PostgresClient(conn, KEY)
            again = client.claim("b", 1, lease=LEASE)
            log.claim(again)
            highest = max(fence for _, fence in log.fences[:-1])
            assert all(epoch(claim.fence) == epoch(highest) + 1 for claim in again)
            kept = conn.execute("select 1 from public.control where n = %s", (number,)).fetchone()
            controls += kept is None
    assert controls, "no crash lost anything, so this proves nothing"
    emit(
        "synchronous_commit off, crash", {"crashes": rounds, "controls lost": controls,
        **log.counts}, seconds=time.monotonic() - started, server=server.full,
    )  # fmt: skip
