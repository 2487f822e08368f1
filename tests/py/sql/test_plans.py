"""What the functions read, in buffers, whatever the planner knew when it made its plans.

200,000 parked messages and ten that are due (field case E3). `never` planned while the tables were
new, `empty` while statistics said empty, `fresh` with true statistics; a pinned plan outlives all.
"""

from __future__ import annotations

import json
import time

import pytest

from tests.support.counts import emit

PARKED = 200_000
READY = 1_200
STATES = ("never", "empty", "fresh")
_TABLES = ("delivery", "message", "receipt", "outcome", "ledger_skip")


class Measured:
    """One database in one state of its statistics, and what calls cost in it."""

    def __init__(self, database, state: str) -> None:
        self.conn = database.connect()
        self.plans = 0
        run = self.conn.execute
        run("select trex.register_instance('shop', 'me', 'why', p_max_attempts => 100)")
        run("select trex.bind('shop', session_user::text, 'me', 'why')")
        for table in _TABLES:
            run(f"alter table trex.{table} set (autovacuum_enabled = off)")
            if state == "empty":
                run(f"analyze trex.{table}")
        if state != "fresh":
            for number in range(8):
                self._plan_everything(f"early-{number}")
        run(
            "insert into trex.delivery"
            " (instance_key, message_id, box, deferred_until, fence, attempts, tries, parked)"
            " select 'shop', nextval('trex.message_id_seq'), 'outbox', 'infinity', 1, 1, 1,"
            " 'dead_letter' from generate_series(1, %s)",
            (PARKED,),
        )
        self.enqueue(10, "due", "'0'")
        self.enqueue(READY, "ready")
        if state == "fresh":
            for table in _TABLES:
                run(f"vacuum analyze trex.{table}")

    def enqueue(self, count: int, prefix: str, delay: str = "null") -> None:
        row = self.conn.execute(
            "select count(*) from trex.enqueue_many('shop', array_fill('t'::text, array[%(n)s]),"
            " array(select %(prefix)s || '-' || k from generate_series(1, %(n)s) k),"
            " array_fill('{}'::jsonb, array[%(n)s]), p_delays => array_fill("
            f"{delay}::interval, array[%(n)s]), p_ordering_keys => case when %(prefix)s ~ '^(e|o)'"
            " then array_fill(%(prefix)s::text, array[%(n)s]) end)",
            {"n": count, "prefix": prefix},
        ).fetchone()
        assert row == (count,)

    def _plan_everything(self, prefix: str) -> None:
        """Call what shall be measured, so that this session keeps plans made on small tables."""
        run = self.conn.execute
        self.enqueue(3, prefix)
        results = ["completed", "retry", "dead_letter", "released", "unknown"]
        claims = run("select message_id, fence from trex.claim('shop', 'w', 5)").fetchall()
        run("select * from trex.claim('shop', 'w', 1)")
        ids, fences = [c[0] for c in claims], [c[1] for c in claims]
        run("select * from trex.extend('shop', %s::bigint[], %s::bigint[])", (ids, fences))
        for _ in range(2):
            run(
                "select * from trex.record('shop', %s::bigint[], %s::bigint[], %s::text[])",
                (ids, fences, results[: len(ids)]),
            )
        for call in (
            "trex.list_parked('shop')",
            "trex.list_pending('shop')",
            "trex.stats('shop')",
            "trex.pending_cash_delta('shop')",
            "trex.redrive('shop', array[1, 2], 'me', 'why')",
            "trex.expedite('shop', array[1, 2], 'me', 'why')",
            "trex.purge('shop', '0', 'me', 'why')",
            "trex.status('shop', 1)",
            f"trex.enqueue('shop', 't', '{prefix}', '{{}}')",
            f"trex.enqueue('shop', 't', '{prefix}', '{{}}')",
        ):
            run(f"select * from {call}")

    def cost(self, call: str, rows: int) -> int:
        """Run a call, which must return this many rows; return how many buffers it touched."""
        answer = self.conn.execute(
            f"explain (analyze, buffers, timing off, format json) select * from {call}"
        ).fetchone()
        plan = (answer[0] if not isinstance(answer[0], str) else json.loads(answer[0]))[0]["Plan"]
        assert plan["Actual Rows"] == rows, call
        self.plans += 1
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])

    def scans(self) -> dict[str, int]:
        """How often each index of delivery was used so far."""
        self.conn.execute("select pg_stat_force_next_flush()")
        rows = self.conn.execute(
            "select indexrelname, idx_scan from pg_stat_user_indexes where relname = 'delivery'"
        )
        return dict(rows.fetchall())

    def leased(self, count: int) -> tuple[str, str]:
        rows = self.conn.execute(
            "select message_id, fence from trex.delivery where lease_until is not null"
            " and message_id > %s order by message_id limit %s",
            (PARKED, count),
        ).fetchall()
        assert len(rows) == count
        ids = ", ".join(str(row[0]) for row in rows)
        return f"array[{ids}]", f"array[{', '.join(str(row[1]) for row in rows)}]"

    def record(self, result: str, count: int) -> int:
        ids, fences = self.leased(count)
        results = f"array_fill('{result}'::text, array[{count}])"
        return self.cost(f"trex.record('shop', {ids}, {fences}, {results})", count)


@pytest.mark.criterion("ac-0031")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.case("E3")
def test_buffers(pg_db, state):
    started = time.monotonic()
    measured = Measured(pg_db, state)
    cost = measured.cost

    # The ten due ones, behind 200,000 parked ones.
    measured.conn.execute("select * from trex.claim('shop', 'w', 1)")
    before = measured.scans()
    due = cost("trex.claim('shop', 'w', 8, p_after => 900000000)", 8)
    after = measured.scans()
    assert due < 700
    assert after["delivery_claim"] > before["delivery_claim"]
    assert cost("trex.claim('shop', 'w', 1)", 1) < 150
    assert cost("trex.claim('shop', 'w', 10)", 10) < 1_000
    assert cost("trex.claim('shop', 'w', 100)", 100) < 7_000
    assert cost("trex.claim('shop', 'w', 1000)", 1000) < 60_000

    # One by one, and twice: what isn't recorded is looked up.
    for result in ("completed", "retry", "unknown", "dead_letter", "released", "conflict"):
        assert measured.record(result, 1) < 400, result
    for result in ("completed", "retry", "dead_letter"):
        ten, hundred = measured.record(result, 10), measured.record(result, 100)
        assert ten < 2_000, result
        assert hundred < max(15 * ten, 3_000), result
    ids, fences = measured.leased(10)
    results = "array_fill('completed'::text, array[10])"
    assert cost(f"trex.record('shop', {ids}, {fences}, {results})", 10) < 500
    assert cost(f"trex.record('shop', {ids}, {fences}, {results})", 10) < 1_000

    ids, fences = measured.leased(100)
    assert cost(f"trex.extend('shop', {ids}, {fences})", 100) < 2_500
    ids, fences = measured.leased(1)
    assert cost(f"trex.extend('shop', {ids}, {fences})", 1) < 100
    assert cost(f"trex.mark_sent('shop', ({ids})[1], ({fences})[1])", 1) < 200
    assert cost(f"trex.hold('shop', ({ids})[1], ({fences})[1])", 1) < 200

    # One ordering key with many messages, one of them in flight.
    measured.enqueue(500, "ordered")
    assert cost("trex.claim('shop', 'w', 2)", 2) < 60_000
    measured.conn.execute("select * from trex.claim('shop', 'w', 1000)")
    row = measured.conn.execute(
        "select message_id, fence from trex.delivery"
        " where ordering_key = 'ordered' and lease_until is not null"
    ).fetchall()
    assert len(row) == 1
    ((message, fence),) = row
    assert cost(f"trex.complete('shop', {message}, {fence})", 1) < 300
    claimed = cost("trex.claim('shop', 'w', 1)", 1)
    assert claimed < 1_500

    # Writers and readers.
    assert cost("trex.enqueue('shop', 't', 'ready-7', '{}')", 1) < 100
    assert cost("trex.enqueue('shop', 't', 'another', '{}', p_ordering_key => 'lane')", 1) < 300
    assert cost("trex.status('shop', p_idempotency_key => 'ready-1000')", 1) < 200
    assert cost("trex.stats('shop', 'outbox', 1000)", 1) < 15_000
    parked = f"array(select g from generate_series({PARKED} - 9, {PARKED}) g)"
    assert cost(f"trex.redrive('shop', {parked}, 'me', 'why')", 10) < 1_500
    assert cost(f"trex.expedite('shop', {parked}, 'me', 'why')", 10) < 1_000
    emit("planner", {"plans": measured.plans}, seconds=time.monotonic() - started, state=state)


@pytest.mark.criterion("ac-0031")
@pytest.mark.case("E3")
def test_a_page_of_parked_messages_is_a_page(pg_db):
    measured = Measured(pg_db, "empty")
    measured.conn.execute("select * from trex.claim('shop', 'w', 1000)")
    measured.record("dead_letter", 500)
    first = measured.cost(f"trex.list_parked('shop', 100, {PARKED + 100})", 100)
    assert first < 3_000
    assert measured.cost(f"trex.list_pending('shop', 100, {PARKED + 100})", 100) < 8_000
