"""Calls that are cut off by a timeout change nothing or everything; a frozen worker blocks nobody
for longer than its hold.

`TREX_TIMEOUT_ROUNDS` sets how many calls are cut off, `TREX_FROZEN_ROUNDS` how many workers freeze.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.conftest import SOME_VERSIONS
from tests.py.failover.clusters import KEY, WHO, until
from tests.support.counts import emit, scale
from tests.support.invariants import violations
from trex_client.errors import CommitUnknown, DatabaseError
from trex_client.model import Movement, Report
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from tests.support.databases import Database

CALLS = scale("TIMEOUT_ROUNDS", 50)
FREEZES = scale("FROZEN_ROUNDS", 5)
BATCH = 400
LEASE = timedelta(seconds=30)

pytestmark = pytest.mark.timeout(300 + 2 * CALLS + 5 * FREEZES)


def shop(database: Database) -> PostgresClient:
    client = PostgresClient(database.connect(), KEY)
    client.register_instance(**WHO, max_attempts=1000)
    for role in ("postgres", database.server.user, "trex_test_worker"):
        client.bind(role, **WHO)
    return client


def enqueue(client: PostgresClient, name: str, number: int) -> None:
    client.enqueue_many([
        Movement("pay", f"{name}{n}", {"n": n}, account="a", currency="USD", cash_delta=n)
        for n in range(number)
    ])  # fmt: skip


@pytest.mark.criterion("ac-0053")
@pytest.mark.parametrize("version", SOME_VERSIONS)
@pytest.mark.parametrize("what", ["claim", "complete", "retry", "exchange"])
def test_a_timeout_swept_over_a_call(new_db: Any, what: str, version: int) -> None:
    """All or nothing, wherever `statement_timeout` strikes."""
    started = time.monotonic()
    database: Database = new_db(version)
    client = shop(database)
    enqueue(client, "k", BATCH)
    worker = database.connect("worker")
    mine = PostgresClient(worker, KEY)
    tables = database.connect()

    def books() -> tuple[Any, ...]:
        row = tables.execute(
            "select (select count(*) from trex.delivery where lease_until > trex._now()),"
            " (select count(*) from trex.outcome), (select count(*) from trex.receipt),"
            " (select coalesce(sum(attempts), 0) from trex.delivery)"
        ).fetchone()
        assert row is not None
        return tuple(row)

    usual = 0.0
    cut = done = turn = 0
    for number in range(CALLS // 4):
        # Whatever is needed before the call.
        held = []
        if what != "claim":
            held = mine.claim("w", BATCH, lease=LEASE)
            assert len(held) == BATCH
        result = "completed" if what == "complete" else "retry"
        reports = [Report(c.message_id, c.fence, result) for c in held]  # type: ignore[arg-type]
        before = books()
        if number > 1:
            # Swept over the length of the last call that was done; the first ones measure it.
            share = 1.3 * number / max(1, CALLS // 4 - 1)
            limit = 1 if number <= 3 else max(1, round(1000 * usual * share))
            worker.execute(f"set statement_timeout = {limit}")
        begin = time.monotonic()
        code = None
        try:
            if what == "claim":
                mine.claim("w", BATCH, lease=LEASE)
            elif what == "exchange":
                mine.exchange(reports, "w", BATCH, lease=LEASE)
            else:
                mine.record(reports)
        except DatabaseError as error:
            code = error.code
        if code is not None:
            assert code == "57014"
            assert books() == before, "a call that was cut off left something"
            cut += 1
        else:
            usual = time.monotonic() - begin
            assert books() != before
            done += 1
        worker.execute("set statement_timeout = 0")
        assert not violations(tables)
        # Back to where the next round can begin.
        database.clock.advance(timedelta(hours=2))
        if what == "complete":
            turn += 1
            left = tables.execute("select count(*) from trex.delivery").fetchone()
            if left == (0,):
                enqueue(client, f"t{turn}-", BATCH)
    assert cut >= 2
    assert done >= 1
    emit(
        "statement_timeout sweep", {"calls": cut + done, "cut off": cut, "done": done},
        seconds=time.monotonic() - started, call=what, server=database.server.full,
    )  # fmt: skip


@pytest.mark.criterion("ac-0053")
def test_a_worker_frozen_in_its_transaction(pg_db: Database) -> None:
    """I12: its effect isn't there, and after the hold's timeout another worker's is, once."""
    started = time.monotonic()
    client = shop(pg_db)
    admin = pg_db.connect()
    admin.execute("create table public.effect (message_id bigint, fence bigint)")
    admin.execute("grant all on public.effect to trex_test_worker")
    waits = 0
    longest = 0.0
    for number in range(FREEZES):
        enqueue(client, f"f{number}-", 1)
        frozen = pg_db.connect("worker", autocommit=False)
        mine = PostgresClient(frozen, KEY)
        frozen.autocommit = True
        (claim,) = mine.claim("frozen", 1, lease=timedelta(milliseconds=200))
        frozen.autocommit = False
        mine.hold(claim.message_id, claim.fence, timeout=timedelta(milliseconds=600))
        frozen.execute("insert into public.effect values (%s, %s)", (claim.message_id, claim.fence))
        begin = time.monotonic()
        # Here it freezes. Its lease ends, and its lock stays until the timeout.
        other = pg_db.connect("worker")
        theirs = PostgresClient(other, KEY)
        got = theirs.claim("other", 1)
        while not got:
            waits += 1
            assert time.monotonic() - begin < 10.0, "blocked for longer than the hold"
            time.sleep(0.05)
            got = theirs.claim("other", 1)
        longest = max(longest, time.monotonic() - begin)
        assert got[0].message_id == claim.message_id
        assert got[0].fence > claim.fence
        with other.transaction():
            other.execute(
                "insert into public.effect values (%s, %s)", (claim.message_id, got[0].fence)
            )
            assert theirs.complete(claim.message_id, got[0].fence).status == "recorded"
        # It wakes up, and goes on where it was.
        with pytest.raises((CommitUnknown, psycopg.OperationalError)):
            mine.complete(claim.message_id, claim.fence)
        frozen.close()
        rows = admin.execute(
            "select fence from public.effect where message_id = %s", (claim.message_id,)
        ).fetchall()
        assert rows == [(got[0].fence,)]
    assert waits >= FREEZES, "no other worker ever had to wait"
    assert not violations(admin)
    until(lambda: admin.execute("select count(*) from trex.delivery").fetchone() == (0,))
    emit(
        "frozen in a transaction", {"freezes": FREEZES, "claims that waited": waits},
        seconds=time.monotonic() - started, longest_wait=round(longest, 2),
        server=pg_db.server.full,
    )  # fmt: skip
