"""A full disk: calls fail as a whole, nothing acknowledged is lost, and work goes on when there is
room again.

With the right to mount, the tables (and, in another test, the WAL) lie on a small tmpfs of their
own. Everywhere PostgreSQL's own error is raised at each write of each function. `TREX_DISK_ROUNDS`
sets how often the disk fills.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.py.failover.clusters import KEY, WHO, connected, embedded, prepare
from tests.py.failover.history import Log
from tests.support.counts import emit, scale
from tests.support.databases import FAST
from tests.support.invariants import violations
from trex_client.embedded import EmbeddedServer
from trex_client.errors import DatabaseError, TrexError
from trex_client.model import Report
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.databases import Database, Server

ROUNDS = scale("DISK_ROUNDS", 1)
LEASE = timedelta(seconds=60)
FULL = "53100"
NO_MOUNT = "no right to mount a small disk: the same error at every write was tried instead"

pytestmark = [pytest.mark.criterion("ac-0065"), pytest.mark.timeout(300 + 60 * ROUNDS)]


def _may_mount() -> bool:
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return probe.returncode == 0


@contextmanager
def small_disk(folder: Path, size: str, like: Path) -> Iterator[None]:
    """Mount a tmpfs on a folder, owned as another one is. In the end the folder goes, and the one
    around it when its server has left nothing else there."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        status = like.stat()
        os.chown(folder, status.st_uid, status.st_gid)
        folder.chmod(0o700)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()
        with suppress(OSError):
            folder.parent.rmdir()


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No byte is free while this lasts."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        except OSError:
            pass
    try:
        yield
    finally:
        filler.unlink()


def work(client: PostgresClient, log: Log, prefix: str, number: int) -> Counts:
    """Enqueue, claim and complete, and write down what was acknowledged."""
    counts: Counts = {"refused": 0, "done": 0}
    for n in range(number):
        key = f"{prefix}{n}"
        try:
            log.enqueue(key, client.enqueue("pay", key, {"n": "x" * 2000}))
            claims = client.claim("w", 1, lease=LEASE)
            log.claim(claims)
            for claim in claims:
                answer = client.complete(claim.message_id, claim.fence)
                log.complete(claim.message_id, claim.fence, answer)
                counts["done"] += 1
        except DatabaseError as error:
            if error.code != FULL:
                raise
            counts["refused"] += 1
    return counts


Counts = dict[str, int]


def test_the_disk_of_the_tables_is_full(private_server: Callable[..., Server]) -> None:
    if not _may_mount():
        pytest.skip(NO_MOUNT)
    started = time.monotonic()
    server = private_server(None, autovacuum="off")
    process = embedded(server)
    log = Log(KEY)
    small = process.root / "small"
    refused = done = 0
    with ExitStack() as stack:
        stack.enter_context(small_disk(small, "48m", process.data))
        stack.callback(process.close)
        with server.admin() as conn:
            conn.execute(f"create tablespace small location '{small}'")
        dbname = prepare(server)
        with server.admin() as conn:
            conn.execute(f"alter database {dbname} set tablespace small")
        for number in range(ROUNDS):
            with connected(process, dbname) as conn:
                client = PostgresClient(conn, KEY)
                assert work(client, log, f"b{number}-", 20)["refused"] == 0
                with filled(small):
                    full = work(client, log, f"f{number}-", 120)
                    assert full["refused"] > 0, "the disk never was full"
                    refused += full["refused"]
                    log.check(conn)
                after = work(client, log, f"a{number}-", 20)
                assert after == {"refused": 0, "done": 20}
                done += full["done"] + after["done"]
                log.check(conn)
    emit(
        "disk full: tables", {"fillings": ROUNDS, "refused": refused, "done": done},
        seconds=time.monotonic() - started, server=server.full,
    )  # fmt: skip


def test_the_disk_of_the_wal_is_full(private_server: Callable[..., Server]) -> None:
    """PostgreSQL stops all sessions then; once there is room it comes back with all that it
    acknowledged."""
    if not _may_mount():
        pytest.skip(NO_MOUNT)
    started = time.monotonic()
    binaries = embedded(private_server(None)).binaries
    log = Log(KEY)
    settings = {**FAST, "autovacuum": "off", "max_wal_size": "32MB", "min_wal_size": "32MB",
                "wal_recycle": "off", "restart_after_crash": "off"}  # fmt: skip
    with ExitStack() as stack:
        process = EmbeddedServer(binaries, settings=settings)
        process.create()
        wal, aside = process.data / "pg_wal", process.root / "pg_wal"
        stack.enter_context(small_disk(aside, "80m", process.data))
        stack.callback(process.close)
        subprocess.run(["cp", "-a", f"{wal}/.", aside], check=True)
        subprocess.run(["rm", "-r", wal], check=True)
        wal.symlink_to(aside)
        process.start()
        server = _as_server(process)
        dbname = prepare(server)
        crashes = 0
        for number in range(ROUNDS):
            with connected(process, dbname) as conn:
                client = PostgresClient(conn, KEY)
                assert work(client, log, f"b{number}-", 20)["refused"] == 0
                with filled(aside), pytest.raises((TrexError, psycopg.Error)):
                    _until_it_stops(conn, client, log, f"f{number}-")
                crashes += 1
            end = time.monotonic() + 30
            while process.running and time.monotonic() < end:
                time.sleep(0.05)
            process.kill9()
            process.start()
            with connected(process, dbname) as conn:
                log.check(conn)
                assert work(PostgresClient(conn, KEY), log, f"a{number}-", 20)["done"] == 20
                log.check(conn)
    emit(
        "disk full: WAL", {"fillings": ROUNDS, "crashes": crashes, **log.counts},
        seconds=time.monotonic() - started, server=binaries.full,
    )  # fmt: skip


def _until_it_stops(
    conn: psycopg.Connection[Any], client: PostgresClient, log: Log, prefix: str
) -> None:
    conn.execute("create table if not exists public.noise (t text)")
    for n in range(100_000):
        key = f"{prefix}{n}"
        log.enqueue(key, client.enqueue("pay", key, {}))
        conn.execute(
            "insert into public.noise select repeat('x', 1000) from generate_series(1, 500)"
        )


def _as_server(process: EmbeddedServer) -> Server:
    from tests.support.databases import Server

    return Server(
        host=str(process.socket_dir), port=process.port, user="postgres",
        password=process.password, options="", maintenance_dbname="postgres",
        version=process.binaries.version, full=process.binaries.full, embedded=process,
    )  # fmt: skip


def test_the_error_at_every_write(pg_db: Database) -> None:
    """Every write of every function fails once with 53100: nothing of the call is left, and the
    same call works afterwards."""
    started = time.monotonic()
    admin = pg_db.connect()
    client = PostgresClient(admin, KEY)
    client.register_instance(**WHO, max_attempts=1000)
    client.bind("postgres", **WHO)
    client.bind(pg_db.server.user, **WHO)
    pg_db.clock.freeze()
    admin.execute(
        f"""
        create sequence public.writes;
        create table public.fault (number bigint);
        insert into public.fault values (0);
        create function public.fail() returns trigger language plpgsql
        security definer set search_path = pg_catalog, pg_temp as $$
        begin
            if nextval('public.writes') = (select number from public.fault) then
                raise exception using errcode = '{FULL}', message = 'could not extend file';
            end if;
            return null;
        end $$;
        """
    )
    for (table,) in admin.execute(
        "select c.relname from pg_class c where c.relnamespace = 'trex'::regnamespace"
        " and c.relkind = 'r'"
    ).fetchall():
        admin.execute(
            f"create trigger zz_full after insert or update or delete on trex.{table}"
            " for each row execute function public.fail()"
        )
        admin.execute(f"alter table trex.{table} enable always trigger zz_full")
    calls: dict[str, Callable[[int], Any]] = {
        "enqueue": lambda n: client.enqueue("pay", f"k{n}", {}, ordering_key="o"),
        "claim": lambda n: client.claim("w", 1, lease=LEASE),
        "complete": lambda n: client.complete(*_claim(client, n)),
        "retry": lambda n: client.retry(*_claim(client, n)),
        "dead_letter": lambda n: client.dead_letter(*_claim(client, n)),
        "exchange": lambda n: client.exchange(
            [Report(*_claim(client, n), "unknown", "timeout")], "w", 1, lease=LEASE
        ),
        "redrive": lambda n: client.redrive([_parked(client, n)], **WHO),
        "pause": lambda n: client.pause(**WHO),
    }  # fmt: skip
    failed = 0
    for name, call in calls.items():
        for write in range(1, 12):
            admin.execute("update public.fault set number = 0")
            number = failed * 100 + write
            _ready(name, client, number)
            before = _books(admin)
            admin.execute("select setval('public.writes', 1, false)")
            admin.execute("update public.fault set number = %s", (write,))
            code = _code(call, number)
            if code is None:
                break
            assert code == FULL
            failed += 1
            assert _books(admin) == before, f"{name}: write {write} left something"
            admin.execute("update public.fault set number = 0")
            call(number)
        else:
            raise AssertionError(f"{name} never ran to its end")
        admin.execute("update public.fault set number = 0")
        assert not violations(admin)
    assert failed >= 15
    emit(
        "disk full: every write", {"writes": failed}, seconds=time.monotonic() - started,
        server=pg_db.server.full,
    )  # fmt: skip


def _code(call: Callable[[int], Any], number: int) -> str | None:
    """The SQLSTATE that a call ends with, or None."""
    try:
        call(number)
    except DatabaseError as error:
        return error.code
    return None


_CLAIMS: dict[int, tuple[int, int]] = {}
_PARKED: dict[int, int] = {}


def _claim(_: PostgresClient, number: int) -> tuple[int, int]:
    return _CLAIMS[number]


def _parked(_: PostgresClient, number: int) -> int:
    return _PARKED[number]


def _ready(name: str, client: PostgresClient, number: int) -> None:
    """Make what a call needs, before faults are on."""
    if name in ("complete", "retry", "dead_letter", "exchange", "redrive"):
        client.enqueue("pay", f"r{name}{number}", {}, account="a", currency="USD", cash_delta=1,
                       correlation_id=f"{name}{number}")  # fmt: skip
        (claim,) = client.claim("w", 1, lease=LEASE, correlation_id=f"{name}{number}")
        _CLAIMS[number] = (claim.message_id, claim.fence)
        if name == "redrive":
            client.dead_letter(claim.message_id, claim.fence)
            _PARKED[number] = claim.message_id
    elif name == "pause":
        client.resume(**WHO)
    elif name == "claim":
        client.enqueue("pay", f"c{number}", {})


def _books(conn: psycopg.Connection[Any]) -> list[Any]:
    tables = ("message", "delivery", "receipt", "outcome", "ledger_skip", "audit", "lane",
              "instance", "stale_report")  # fmt: skip
    rows = "select coalesce(json_agg(t order by t::text), '[]') from trex.{} t"
    return [conn.execute(rows.format(table)).fetchall() for table in tables]
