"""Every order of the steps of small programs, on real servers.

`TREX_SCHEDULES` sets how many schedules of each scenario are run, drawn by `TREX_SCHEDULE_SEED`;
scenarios with up to four times as many orders run all of theirs. `TREX_PROGRAMS` sets the number of
random programs. By hand: `python -m tests.py.interleavings --help`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.py.interleavings.business import BUSINESS
from tests.py.interleavings.scenarios import (
    ADVANCE,
    SCENARIOS,
    claim,
    complete_with_effect,
    effects_are_deliveries,
    fences,
    held,
    mine,
    named,
    random_scenario,
)
from tests.support.counts import emit, scale
from tests.support.interleavings import Explorer, Run, Scenario, ScheduleError

if TYPE_CHECKING:
    from tests.support.databases import Database

MOST = scale("SCHEDULES", 100)
SEED = scale("SCHEDULE_SEED", 1)
PROGRAMS = scale("PROGRAMS", 16)

pytestmark = [
    pytest.mark.criterion("ac-0029"),
    pytest.mark.criterion("ac-0031"),
    pytest.mark.criterion("ac-0063"),
    pytest.mark.timeout(max(300, MOST * 10)),
]


@pytest.mark.parametrize("name", [*SCENARIOS, *BUSINESS])
def test_every_order(pg_db: Database, name: str) -> None:
    explorer = Explorer(pg_db)
    started = time.monotonic()
    totals = explorer.explore((SCENARIOS | BUSINESS)[name], MOST, SEED)
    seen = {"schedules": totals["schedules"], **totals}
    seconds = time.monotonic() - started
    emit("interleavings", seen, seconds=seconds, scenario=name, version=pg_db.version)
    assert totals["40P01"] == 0


def test_random_programs(pg_db: Database) -> None:
    explorer = Explorer(pg_db)
    started = time.monotonic()
    for number in range(PROGRAMS):
        made = random_scenario(SEED * 1_000_000 + number)
        explorer.explore(made, 6, SEED)
    sums = {
        what: sum(totals[what] for totals in explorer.totals.values())
        for what in ("schedules", "recorded", "claims", "lock waits", "drained", "redriven")
    }
    seconds = time.monotonic() - started
    emit("interleavings", sums, seconds=seconds, scenario="random", version=pg_db.version)
    assert all(sums.values())


def test_a_schedule_is_replayed(pg_db: Database) -> None:
    explorer = Explorer(pg_db)
    stories = []
    for _ in range(2):
        run = explorer.replay(SCENARIOS["late-complete"], "atba")
        stories.append([(a.session, a.number, a.error, a.waited) for a in run.answers])
    assert stories[0] == stories[1]


# A harness that can't fail is a defect.


def unfenced(database: Database) -> None:
    """Make `_record` accept any fence of an open claim."""
    conn = database.connect()
    text = conn.execute("select pg_get_functiondef('trex._record'::regproc)").fetchone()
    assert text is not None
    old = "d.message_id = i.message_id and d.fence = i.fence"
    assert text[0].count(old) == 1
    conn.execute(text[0].replace(old, "d.message_id = i.message_id"))


def test_a_late_worker_without_fences_is_found(pg_db: Database) -> None:
    unfenced(pg_db)
    with pytest.raises(ScheduleError, match="replay: "):
        Explorer(pg_db).explore(SCENARIOS["late-complete"])


@pytest.mark.parametrize(
    ("function", "old", "new", "name"),
    [
        ("execute_licence", "for no key update", "", "bounded-uses"),
        ("bind_device", "for no key update", "", "devices"),
        (
            "receive", "and d.parked in ('dead_letter', 'permanent') and not d.abandoned;", ";",
            "revival",
        ),
        ("_hold_event", "and d.fence = p_fence", "", "handed-over"),
        ("_end_right", "v_state <> 'active' and p_amount = 0", "false", "ends"),
        ("_live_siblings", "and s.parked is null", "and false", "redrive-open-claim"),
        ("_live_siblings", "and s.parked is null", "and false", "resend-open-claim"),
        ("_live_siblings", "and s.parked is null", "and false", "two-heartbeats"),
        ("_live_siblings", "and s.parked is null", "and false", "expedite-key"),
        (
            "_take", "limit 1\n                            for no key update skip locked",
            "limit 1", "targeted-claims",
        ),
        (
            "_take", "or d.lease_until <= p_now)\n                                and d.ctid <>",
            "or true) and d.ctid <>", "targeted-late",
        ),
        ("_sift", "if v_ended < v_leased then", "if false then", "extend-lapses"),
        ("purge", "v_id and m.payload is not null;", "v_id;", "purges"),
        ("reconcile", "for update;", ";", "same-run"),
        ("reconcile", "order by 11 nulls", "order by d.type nulls", "two-runs"),
        ("_reconcile_lease", "d.lease_until <= p_now", "d.lease_until is not null", "heartbeat"),
        ("issue_capability", "for share;", ";", "issue-ends"),
        ("apply_refund", "perform trex._lock_invoice(p_instance_key, v_id);", "", "grant-refund"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(
    pg_db: Database, function: str, old: str, new: str, name: str
) -> None:
    conn = pg_db.connect()
    text = conn.execute(
        "select pg_get_functiondef(oid) from pg_proc where proname = %s", (function,)
    ).fetchone()
    assert text is not None
    assert text[0].count(old) == 1
    conn.execute(text[0].replace(old, new))
    with pytest.raises(ScheduleError, match="replay: "):
        Explorer(pg_db).explore((SCENARIOS | BUSINESS)[name])


def test_too_little_seen_is_found(pg_db: Database) -> None:
    # Nothing ever expires here, so nothing is refused.
    quiet = Scenario(
        "quiet",
        {"a": [complete_with_effect(named("m"), fences("m")), "commit"], "b": [claim("b")]},
        held("m"),
        effects_are_deliveries,
        {"TX409": 100},
    )
    with pytest.raises(ScheduleError, match="saw too little"):
        Explorer(pg_db).explore(quiet)


def test_an_unexpected_error_is_found(pg_db: Database) -> None:
    wrong = Scenario(
        "wrong",
        {"a": ["select 1 / 0"], "t": [ADVANCE]},
        held("m"),
        lambda run: None,
        {},
    )
    with pytest.raises(ScheduleError, match="22012"):
        Explorer(pg_db).explore(wrong)


def test_deadlocks_are_found(pg_db: Database) -> None:
    def lock(name: str, *, begin: bool) -> str:
        text = f"select to_jsonb(pg_advisory_xact_lock({name}) is null)"
        return f"begin; {text}" if begin else text

    crossed = Scenario(
        "crossed",
        {
            "a": [lock("1", begin=True), lock("2", begin=False), "commit"],
            "b": [lock("2", begin=True), lock("1", begin=False), "commit"],
        },
        lambda run: None,
        lambda run: None,
        {},
    )
    with pytest.raises(ScheduleError, match="40P01"):
        Explorer(pg_db).explore(crossed)


def test_orders_are_counted() -> None:
    steps = ["select 1"] * 3
    three = Scenario("three", {"a": steps, "b": steps, "c": steps}, held(), held(), {})
    assert three.orders == 1680


def test_all_orders_of_independent_steps_are_run(pg_db: Database) -> None:
    steps = ["select 1"] * 2
    free = Scenario("free", {"a": steps, "b": steps}, held(), lambda run: None, {}, drain=False)
    explorer = Explorer(pg_db)
    schedules = {run.schedule for run in explorer.schedules(free)}
    assert len(schedules) == free.orders == 6


def test_a_waiting_session_lets_the_others_go_on(pg_db: Database) -> None:
    waits = Scenario(
        "waits",
        {
            "a": ["begin; select to_jsonb(pg_advisory_xact_lock(1) is null)", "commit"],
            "b": ["begin; select to_jsonb(pg_advisory_xact_lock(1) is null)", "commit"],
            "c": ["select 3"],
        },
        held(),
        lambda run: None,
        {"lock waits": 40},
        drain=False,
    )
    explorer = Explorer(pg_db)
    run = explorer.replay(waits, "abcab")
    answers = [(a.session, a.number, a.waited) for a in run.answers]
    assert answers[:2] == [("a", 0, False), ("c", 0, False)]
    # A commit gives its locks away before its own answer is sent: either may be seen first.
    assert sorted(answers[2:4]) == [("a", 1, False), ("b", 0, True)]
    assert answers[4:] == [("b", 1, False)]
    assert explorer.explore(waits)["lock waits"] > 0


def one_message(run: Run) -> None:
    run.enqueue("m")


def test_mine_is_the_first_claim_of_a_step(pg_db: Database) -> None:
    takes = Scenario(
        "takes",
        {"a": [claim("a", begin=False)]},
        one_message,
        lambda run: None,
        {},
    )
    run = Explorer(pg_db).replay(takes, "a")
    assert mine("a", 0, "message_id")(run) == run.memo["m"]
    with pytest.raises(psycopg.Error):
        run.sql("select 1 / 0")
