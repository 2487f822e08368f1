"""Dead rows, held snapshots and a full notification queue: what they cost, and who says so."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.support.counts import emit, scale
from tests.support.rig import KEY, movement, register
from trex_client.doctor import diagnose
from trex_client.model import Report
from trex_client.postgres import PostgresClient

pytestmark = pytest.mark.criterion("ac-0031")

# With 31,000 to 76,000 dead rows the index of claims is a level higher than the primary key.
CHURN = max(40_000, scale("CHURN", 40_000))


def buffers(conn, call):
    """How many buffers a call touches; it is rolled back."""
    with conn.transaction(force_rollback=True):
        (plan,) = conn.execute(
            f"explain (analyze, buffers, timing off, format json) select * from {call}"
        ).fetchone()
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


def health(conn):
    return {finding.check: (finding.status, finding.detail) for finding in diagnose(conn)}


def snapshot(database):
    """A session that holds back vacuum until it ends."""
    conn = database.connect(autocommit=False)
    conn.execute("set transaction isolation level repeatable read")
    conn.execute("select count(*) from trex.delivery")
    return conn


def test_e1_a_held_snapshot_costs_a_worker_nothing_and_is_named(pg_db):
    client = register(pg_db)
    conn = pg_db.connect()
    holder = snapshot(pg_db)
    started = time.monotonic()
    hint, hinted, swept, counted, listed = 0, [], [], [], []
    for start in range(0, CHURN, 1000):
        client.enqueue_many([movement(n) for n in range(start, start + 1000)])
        hinted.append(buffers(conn, f"trex.claim('{KEY}', 'w', 10, p_after => {hint})"))
        swept.append(buffers(conn, f"trex.claim('{KEY}', 'w', 10)"))
        claims = client.claim("w", 1000, after=hint)
        client.record([Report(c.message_id, c.fence, "completed") for c in claims])
        hint = claims[-1].message_id
        conn.execute("vacuum trex.delivery")
        counted.append(buffers(conn, f"trex.stats('{KEY}')"))
        listed.append(buffers(conn, f"trex.list_parked('{KEY}')"))
    emit("bloat", {"messages": CHURN}, seconds=time.monotonic() - started)
    # A sweep wades through what vacuum may not remove; a worker with its hint doesn't.
    assert max(hinted[1:]) < 300
    assert swept[-1] > 2 * hinted[-1]
    # Reads go by the index of claims too: stats wades through its dead ready rows once, and
    # nothing was ever parked.
    assert max(c / s for c, s in zip(counted[1:], swept[1:], strict=True)) < 1.5
    assert max(listed[1:]) < 50
    conn.execute(
        "do $$ begin for n in 1..100001 loop perform pg_current_xact_id(); commit; end loop; end $$"
    )
    status, detail = health(conn)["xmin"]
    assert (status, str(holder.info.backend_pid) in detail) == ("warn", True)
    conn.execute("analyze trex.delivery")
    status, detail = health(conn)["vacuum"]
    assert (status, "delivery" in detail) == ("warn", True)
    # It recovers by itself once the snapshot is gone.
    holder.rollback()
    conn.execute("vacuum trex.delivery")
    assert health(conn)["xmin"][0] == "ok"
    client.enqueue_many([movement(n, "last") for n in range(10)])
    recovered = buffers(conn, f"trex.claim('{KEY}', 'w', 10)")
    assert recovered < 1_000
    print({"hinted": max(hinted[1:]), "swept": swept[-1], "recovered": recovered})


def test_e2_enqueue_updates_no_row(pg_db):
    """Rows of one account leave no dead one, and nobody waits for another."""
    client = register(pg_db)
    conn = pg_db.connect()
    holder = snapshot(pg_db)
    client.enqueue_many([movement(n, account="a") for n in range(5000)])
    one, two = pg_db.connect("app", autocommit=False), pg_db.connect("app")
    two.execute("set lock_timeout = '1ms'")
    PostgresClient(one, KEY).enqueue("t", "one", {}, account="a", currency="USD", cash_delta=1)
    PostgresClient(two, KEY).enqueue("t", "two", {}, account="a", currency="USD", cash_delta=1)
    one.commit()
    (cash,) = client.pending_cash_delta()
    assert (int(cash.pending), cash.entries) == (5002, 5002)
    for session in (conn, one, two, client._conn):
        session.execute("select pg_stat_force_next_flush()")
        session.execute("select 1")
    one.commit()
    counted = conn.execute(
        "select relname, n_tup_ins, n_tup_upd + n_tup_del, n_dead_tup from pg_stat_user_tables"
        " where schemaname = 'trex' and relname in ('message', 'delivery', 'lane')"
    ).fetchall()
    assert sorted(counted) == [("delivery", 5002, 0, 0), ("lane", 0, 0, 0), ("message", 5002, 0, 0)]
    holder.rollback()


def test_e4_a_full_queue_stops_no_business_commit(private_server):
    server = private_server(None, max_notify_queue_pages="64")
    database = server.create_database()
    server.load_schema(database.dbname)
    client = register(database)
    channel = client.listen("w", client.policy().lease_max)
    stuck = database.connect(autocommit=False)
    stuck.execute(f"listen {channel}")
    stuck.commit()
    stuck.execute("select 1")  # and it stays in this transaction
    conn = database.connect()

    def fill(number):
        conn.execute(
            "select pg_notify(%s, repeat('x', 7000) || n) from generate_series(1, %s) as n",
            (channel, number),
        )

    assert health(conn)["notifications"][0] == "ok"
    fill(35)
    assert health(conn)["notifications"][0] == "fail"
    business = database.connect("app", autocommit=False)
    PostgresClient(business, KEY).enqueue("t", "k", {})
    business.commit()
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        fill(80)
    for number in range(20):
        PostgresClient(business, KEY).enqueue("t", f"k{number}", {})
        business.commit()
    # A poll finds them, and once the session goes on, wake-ups come back.
    assert len(client.claim("w", 50)) == 21
    stuck.rollback()
    stuck.close()
    listening = database.connect()
    listening.execute(f"listen {channel}")
    conn.execute("select pg_notification_queue_usage()")
    assert health(conn)["notifications"][0] == "ok"
    client.enqueue("t", "last", {})
    assert [n.channel for n in listening.notifies(timeout=10, stop_after=1)] == [channel]
