"""The small programs. `t` moves the clock past every lease. A statement and its commit are steps
apart, so that every other step also runs while the first is not committed."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.interleavings import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.interleavings import Run, Step

    Maker = Callable[[Run], Step | None]

ADVANCE = "update trex_test.clock set shift = shift + interval '31 s'"

# What statements are made of


def do(text: str, *values: Any, begin: bool = False) -> Maker:
    """A step; the first parameter is the instance, a function among the others is asked then, and
    None from it skips the step."""

    def step(run: Run) -> Step | None:
        made = [value(run) if callable(value) else value for value in values]
        if None in made:
            return None
        return ("begin; " + text if begin else text, run.key, *made)

    return step


def named(*names: str) -> Callable[[Run], Any]:
    """Ids of messages of the setup: one, or a list of several."""
    if len(names) == 1:
        return lambda run: run.memo[names[0]]
    return lambda run: [run.memo[name] for name in names]


def fences(*names: str) -> Callable[[Run], Any]:
    """Fences that the setup's claims gave them."""
    if len(names) == 1:
        return lambda run: run.memo["fences"][run.memo[names[0]]]
    return lambda run: [run.memo["fences"][run.memo[name]] for name in names]


def mine(session: str, number: int, column: str) -> Callable[[Run], Any]:
    """A column of the first claim of a step, None if there was none."""

    def find(run: Run) -> Any:
        rows = run.got(session, number)
        return rows[0][column] if rows else None

    return find


def all_mine(session: str, number: int, column: str) -> Callable[[Run], Any]:
    """A column of all claims of a step, None if there were none."""
    return lambda run: [row[column] for row in run.got(session, number)] or None


def claim(worker: str, limit: int = 1, *, begin: bool = True) -> Maker:
    return do(
        "select to_jsonb(c) from trex.claim(%s, %s, %s, '30 s') c", worker, limit, begin=begin
    )


def claim_of(correlation_id: str, worker: str, limit: int = 1) -> Maker:
    """A claim of the messages of one correlation."""
    return do(
        "select to_jsonb(c) from trex.claim(%s, %s, %s, '30 s', p_correlation_id => %s) c",
        worker,
        limit,
        correlation_id,
        begin=True,
    )


def outcome(
    function: str, message_id: Any, fence: Any, *, begin: bool = False, more: str = ""
) -> Maker:
    text = f"select to_jsonb(trex.{function}(%s, %s, %s{more}))"
    return do(text, message_id, fence, begin=begin)


def complete_with_effect(message_id: Any, fence: Any) -> Maker:
    """A business row and the outcome in one transaction, still open."""

    def step(run: Run) -> Step | None:
        values = [value(run) if callable(value) else value for value in (message_id, fence)]
        if None in values:
            return None
        return (
            (
                "begin; insert into trex_test.effect values (%s, %s);"
                " select to_jsonb(trex.complete(%s, %s, %s))"
            ),
            run.key,
            values[0],
            run.key,
            *values,
        )

    return step


def record(
    ids: Any, given: Any, results: list[str], *, more: str = "", begin: bool = True
) -> Maker:
    return do(
        f"select to_jsonb(r) from trex.record(%s, %s, %s, %s{more}) r",
        ids,
        given,
        results,
        begin=begin,
    )


def redrive(ids: Any) -> Maker:
    return do(
        "select to_jsonb(o) from trex.redrive(%s, %s, 'me', 'again') o",
        lambda run: value if isinstance(value := ids(run), list) else [value],
        begin=True,
    )


def enqueue(key: str, ordering_key: str | None = None, payload: str = "{}") -> Maker:
    return lambda run: (
        "begin; select to_jsonb(trex.enqueue(%s, 'topic', %s, %s, p_ordering_key => %s))",
        run.key,
        key,
        payload,
        ordering_key,
    )


# Setups


def held(*names: str, ordering_key: str | None = None, **more: Any) -> Callable[[Run], None]:
    """Messages that the setup has claimed."""

    def setup(run: Run) -> None:
        run.enqueue(*names, ordering_key=ordering_key, **more)
        hold_all(run)

    return setup


def hold_all(run: Run) -> None:
    run.memo["fences"] = {c["message_id"]: c["fence"] for c in run.claim(100)}


def parked(run: Run, name: str, function: str = "dead_letter") -> None:
    message_id = run.memo[name]
    run.sql(
        f"select (trex.{function}(%s, %s, %s)).status",
        run.key,
        message_id,
        run.memo["fences"][message_id],
    )


# Checks


def effects_are_deliveries(run: Run) -> None:
    """I12, I11: an effect in the same database if and only if delivered, and once."""
    receipts = run.receipts()
    assert run.effects() == Counter(receipts.keys()), f"{run.effects()} but {receipts}"
    run.counts["completions"] += len(receipts)


def claimed(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Claims whose transaction was committed, by session."""
    found: dict[str, list[dict[str, Any]]] = {}
    for answer in run.answers:
        claims = [row for row in answer.rows if isinstance(row, dict) and "worker" not in row]
        claims = [row for row in claims if "attempt" in row and "lease_until" in row]
        if not claims:
            continue
        steps = run.scenario.sessions[answer.session]
        ends = [step for step in steps[answer.number + 1 :] if step in ("commit", "rollback")]
        if not ends or ends[0] == "commit":
            found.setdefault(answer.session, []).extend(claims)
    return found


def late_complete_check(run: Run) -> None:
    effects_are_deliveries(run)
    message_id = run.memo["m"]
    fence = run.receipts().get(message_id)
    others = [c["fence"] for c in claimed(run).get("b", [])]
    if others:
        assert fence in (None, others[0]), "somebody else's fence after a reclaim"
        run.counts["reclaims"] += 1


LATE_COMPLETE = Scenario(
    "late-complete",
    {
        "a": [complete_with_effect(named("m"), fences("m")), "commit"],
        "t": [ADVANCE],
        "b": [
            claim("b"),
            "commit",
            complete_with_effect(mine("b", 0, "message_id"), mine("b", 0, "fence")),
            "commit",
        ],
    },
    held("m"),
    late_complete_check,
    {"recorded": 80, "completions": 80, "TX409": 12, "reclaims": 12, "lock waits": 3},
)


def claims_setup(run: Run) -> None:
    run.enqueue("lapsed")
    hold_all(run)
    run.clock_forward(31)
    run.enqueue("m1", "m2", "m3")


def claims_check(run: Run) -> None:
    taken = [row for rows in claimed(run).values() for row in rows]
    ids = [row["message_id"] for row in taken]
    assert len(ids) == len(set(ids)), f"two committed claims of one message: {ids}"
    every = [row for answer in run.answers for row in answer.rows if "attempt" in row]
    numbers = [row["fence"] for row in every]
    assert len(numbers) == len(set(numbers)), "a fence given twice"
    for answer in run.answers:
        got = [row["message_id"] for row in answer.rows if "attempt" in row]
        assert len(got) <= 2
        assert got == sorted(set(got)), f"not the oldest first: {got}"
    live = run.deliveries()
    for row in taken:
        fence = live[row["message_id"]]["fence"] if row["message_id"] in live else 0
        assert fence in (0, row["fence"]), "a committed claim isn't the current one"
    run.counts["rolled back"] += sum("attempt" in row for row in run.got("b", 0))


CLAIMS = Scenario(
    "claims",
    {
        "a": [claim("a", 2), "commit"],
        "b": [claim("b", 2), "rollback"],
        "c": [
            claim("c", 2),
            "commit",
            record(
                all_mine("c", 0, "message_id"),
                all_mine("c", 0, "fence"),
                ["completed", "completed"],
                begin=False,
            ),
        ],
    },
    claims_setup,
    claims_check,
    {"claims": 400, "rolled back": 80, "drained": 100},
)


def targeted_claims_setup(run: Run) -> None:
    run.enqueue("lapsed", p_correlation_id="c")
    hold_all(run)
    run.clock_forward(31)
    run.enqueue("other", p_correlation_id="d")
    run.enqueue("m1", "m2", p_correlation_id="c")


def targeted_claims_check(run: Run) -> None:
    claims_check(run)
    for session, correlations in (("a", {"c"}), ("b", {"c"}), ("c", {"c", "d"})):
        assert {row["correlation_id"] for row in run.got(session, 0)} <= correlations
    run.counts["targeted"] += len(run.got("a", 0)) + len(run.got("b", 0))


TARGETED_CLAIMS = Scenario(
    "targeted-claims",
    {
        "a": [claim_of("c", "a", 2), "commit"],
        "b": [claim_of("c", "b", 2), "rollback"],
        "c": [
            claim("c", 2),
            "commit",
            outcome("complete", mine("c", 0, "message_id"), mine("c", 0, "fence")),
        ],
    },
    targeted_claims_setup,
    targeted_claims_check,
    {"claims": 350, "targeted": 180, "rolled back": 80, "drained": 200},
)


def targeted_late_check(run: Run) -> None:
    effects_are_deliveries(run)
    taken = [row["fence"] for rows in claimed(run).values() for row in rows]
    assert len(taken) <= 1, f"a live lease given twice: {taken}"
    if taken:
        fence = run.receipts().get(run.memo["m"])
        assert fence in (None, *taken), "somebody else's fence after a reclaim"
        run.counts["reclaims"] += 1


TARGETED_LATE = Scenario(
    "targeted-late",
    {
        "a": [complete_with_effect(named("m"), fences("m")), "commit"],
        "t": [ADVANCE],
        "b": [
            claim_of("c", "b"),
            "commit",
            complete_with_effect(mine("b", 0, "message_id"), mine("b", 0, "fence")),
            "commit",
        ],
        "c": [claim_of("c", "c"), "commit"],
    },
    held("m", p_correlation_id="c"),
    targeted_late_check,
    {"recorded": 80, "completions": 80, "TX409": 8, "reclaims": 8, "lock waits": 5},
)


def once_sent_check(run: Run) -> None:
    sent = [
        row
        for session, number in (("a", 0), ("b", 2))
        for row in run.got(session, number)
        if row["status"] == "recorded"
    ]
    assert len(sent) <= 1, f"an at_most_once sink was called twice: {sent}"
    run.counts["sent"] += len(sent)
    row = run.deliveries().get(run.memo["m"])
    if row and row["parked"]:
        assert sent
        assert row["parked"] == "unknown"
        run.counts["unknown"] += 1


AT_MOST_ONCE = Scenario(
    "at-most-once",
    {
        "a": [
            outcome("mark_sent", named("m"), fences("m")),
            outcome("complete", named("m"), fences("m"), begin=True),
            "commit",
        ],
        "t": [ADVANCE],
        "b": [
            claim("b"),
            "commit",
            outcome("mark_sent", mine("b", 0, "message_id"), mine("b", 0, "fence")),
        ],
    },
    held("m", p_effect_policy="at_most_once"),
    once_sent_check,
    {"sent": 70, "unknown": 2, "TX409": 10, "claims": 10, "recorded": 120},
)


def batches_setup(run: Run) -> None:
    run.enqueue("m1", "m2", "m3", p_account="acme", p_currency="EUR", p_cash_delta=1)
    hold_all(run)


def batches_check(run: Run) -> None:
    for name in ("m1", "m2", "m3"):
        recorded = [
            row
            for session in "ab"
            for row in run.got(session, 0)
            if row["message_id"] == run.memo[name] and row["status"] == "recorded"
        ]
        assert len(recorded) == 1, f"{name} has {len(recorded)} ends"
    run.counts["snapshots"] += len(
        run.admin("select 1 from trex.ledger_snapshot where instance_key = %s", run.key)
    )


BATCHES = Scenario(
    "batches",
    {
        "a": [
            record(
                named("m1", "m2", "m3"),
                fences("m1", "m2", "m3"),
                ["completed", "completed", "retry"],
                more=", p_balances => '{5,6,null}', p_versions => '{1,2,null}'",
            ),
            "commit",
        ],
        "b": [
            record(
                named("m3", "m2", "m1"),
                fences("m3", "m2", "m1"),
                ["retry", "completed", "completed"],
                more=", p_balances => '{null,6,5}', p_versions => '{null,2,1}'",
            ),
            "commit",
        ],
        "c": [
            do(
                "select to_jsonb(e) from trex.extend(%s, %s, %s, '60 s') e",
                named("m2", "m3", "m1"),
                fences("m2", "m3", "m1"),
                begin=True,
            ),
            "commit",
        ],
    },
    batches_setup,
    batches_check,
    {
        "recorded": 300,
        "already_recorded": 300,
        "extended": 60,
        "ended_otherwise": 60,
        "lock waits": 50,
        "snapshots": 100,
    },
)


def in_key_order(run: Run) -> None:
    """Never two of one key at once: asked of the tables after each step (I20); here, that each
    session got what it could."""
    run.counts["got"] += sum(len(rows) for rows in claimed(run).values())


def redrive_setup(run: Run) -> None:
    run.enqueue("m1", ordering_key="k")
    hold_all(run)
    parked(run, "m1")
    run.enqueue("m2", "m3", ordering_key="k")


def redrive_scenario(on_parked: str) -> Scenario:
    return Scenario(
        f"redrive-{on_parked}",
        {
            "a": [redrive(named("m1")), "commit"],
            "b": [
                claim("b", 2),
                "commit",
                outcome("complete", mine("b", 0, "message_id"), mine("b", 0, "fence")),
            ],
            "c": [claim("c", 2), "commit"],
        },
        redrive_setup,
        in_key_order,
        {"redriven": 100, "claims": 20, "recorded": 5, "got": 20, "drained": 100},
        settings={"on_parked": on_parked},
    )


ABANDON = Scenario(
    "abandon",
    {
        "a": [
            do(
                "select to_jsonb(trex.resolve(%s, %s, 'abandon', 'seen', 'me', 'why'))",
                named("m1"),
                begin=True,
            ),
            "commit",
        ],
        "b": [
            claim("b", 2),
            "commit",
            outcome("complete", mine("b", 0, "message_id"), mine("b", 0, "fence")),
        ],
        "c": [claim("c", 2), "commit"],
        "d": [redrive(named("m1")), "commit"],
    },
    redrive_setup,
    in_key_order,
    {"redriven": 100, "claims": 20, "recorded": 50, "got": 20, "TX423": 20, "drained": 100},
    allowed=frozenset({"TX410", "TX423"}),
)


def ordering_setup(run: Run) -> None:
    run.enqueue("m1", ordering_key="k")
    hold_all(run)
    run.enqueue("m2", ordering_key="k")
    run.enqueue("other")


def ordering_check(run: Run) -> None:
    in_key_order(run)
    ids = [row["message_id"] for rows in claimed(run).values() for row in rows]
    third = [row["message_id"] for row in run.got("c", 0)]
    assert not (set(ids) & set(third)) or run.memo["m2"] in ids, "the third before the second"


ORDERING = Scenario(
    "ordering",
    {
        "a": [outcome("complete", named("m1"), fences("m1"), begin=True), "commit"],
        "b": [claim("b", 2), "commit", claim("b", 2), "commit"],
        "c": [enqueue("m3", "k"), "commit"],
    },
    ordering_setup,
    ordering_check,
    {"recorded": 100, "enqueued": 100, "claims": 100, "got": 100, "drained": 100},
)

ORDERING_ROLLED_BACK = Scenario(
    "ordering-rolled-back",
    {
        "a": [outcome("complete", named("m1"), fences("m1"), begin=True), "rollback"],
        "b": [claim("b", 2), "commit"],
        "c": [claim("c", 2), "rollback"],
        "d": [outcome("retry", named("m1"), fences("m1"))],
    },
    ordering_setup,
    in_key_order,
    {"recorded": 120, "claims": 60, "drained": 100, "lock waits": 10},
)

ORDERING_PARKS = Scenario(
    "ordering-parks",
    {
        "a": [outcome("dead_letter", named("m1"), fences("m1"), begin=True), "commit"],
        "b": [claim("b", 2), "commit"],
        "c": [claim("c", 2), "rollback", claim("c", 2), "commit"],
    },
    ordering_setup,
    in_key_order,
    {"recorded": 100, "claims": 100, "drained": 100},
    settings={"on_parked": "continue"},
)

ORDERING_POLICY = Scenario(
    "ordering-policy",
    {
        "a": [outcome("dead_letter", named("m1"), fences("m1"), begin=True), "commit"],
        "b": [
            do(
                "select to_jsonb(trex.register_instance(%s, 'me', 'why', p_on_parked => %s))",
                "continue",
                begin=True,
            ),
            "commit",
        ],
        "c": [claim("c", 2), "commit", claim("c", 2, begin=False)],
    },
    ordering_setup,
    in_key_order,
    {"recorded": 100, "claims": 100, "drained": 100},
)


def ordering_lapsed_check(run: Run) -> None:
    """Extended and claimed again at once never: of one key one is in flight."""
    in_key_order(run)
    run.counts["taken over"] += bool(claimed(run))


ORDERING_LAPSED = Scenario(
    "ordering-lapsed",
    {
        "a": [
            do(
                "select to_jsonb(e) from trex.extend(%s, %s, %s) e",
                lambda run: [run.memo["m1"]],
                lambda run: [run.memo["fences"][run.memo["m1"]]],
                begin=True,
            ),
            "commit",
            outcome("complete", named("m1"), fences("m1")),
        ],
        "t": [ADVANCE],
        "b": [claim("b", 2), "commit"],
    },
    ordering_setup,
    ordering_lapsed_check,
    {"extended": 50, "claim_lost": 2, "TX409": 5, "taken over": 60, "lock waits": 2},
)


def extend_check(run: Run) -> None:
    taken = claimed(run).get("b", [])
    extended = [row for row in run.got("a", 0) if row["status"] == "extended"]
    commits = [a.session for a in run.answers if (a.session, a.number) in (("a", 1), ("b", 1))]
    if taken and commits[0] == "b":
        assert not extended, "a heartbeat revived what was claimed again"
    if extended and commits[0] == "a":
        until = run.admin(
            "select lease_until > trex._now() from trex.delivery where message_id = %s",
            run.memo["m"],
        )
        assert until in ([], [(True,)], [(False,)])
    run.counts["reclaims"] += len(taken)


EXTEND = Scenario(
    "extend",
    {
        "a": [
            do(
                "select to_jsonb(e) from trex.extend(%s, %s, %s) e",
                lambda run: [run.memo["m"]],
                lambda run: [run.memo["fences"][run.memo["m"]]],
                begin=True,
            ),
            "commit",
            outcome("complete", named("m"), fences("m")),
        ],
        "t": [ADVANCE],
        "b": [claim("b"), "commit"],
    },
    held("m"),
    extend_check,
    {"extended": 50, "claim_lost": 2, "TX409": 5, "reclaims": 5, "lock waits": 2},
)


def hold_check(run: Run) -> None:
    effects_are_deliveries(run)
    if run.got("a", 0):
        assert run.got("a", 1), "held, and lost before the transaction's end"
        run.counts["held"] += 1
        assert not run.of("a", 1)[0].waited
    run.counts["reclaims"] += len(claimed(run).get("b", []))


HOLD = Scenario(
    "hold",
    {
        "a": [
            outcome("hold", named("m"), fences("m"), begin=True),
            lambda run: (
                (
                    "insert into trex_test.effect values (%s, %s);"
                    " select to_jsonb(trex.complete(%s, %s, %s))"
                ),
                run.key,
                run.memo["m"],
                run.key,
                run.memo["m"],
                run.memo["fences"][run.memo["m"]],
            ),
            "commit",
        ],
        "t": [ADVANCE],
        "b": [claim("b"), "commit"],
    },
    held("m"),
    hold_check,
    {"held": 60, "completions": 60, "TX409": 2, "reclaims": 2},
)


def receive(event: str) -> Maker:
    return lambda run: (
        "begin; select to_jsonb(trex.receive(%s, 'psp', 'acct', %s, 'paid', null, 'raw', '{}'))",
        run.key,
        event,
    )


def receive_check(run: Run) -> None:
    for event in ("e1", "e2"):
        rows = run.admin(
            "select count(*) from trex.inbox_event where instance_key = %s and event_id = %s",
            run.key,
            event,
        )
        assert rows[0][0] <= 1
    committed = [row["status"] for session in "ac" for row in run.got(session, 0)]
    assert committed.count("received") <= 1
    stored = run.admin("select count(*) from trex.message where instance_key = %s", run.key)
    assert stored == [(1,)]


RECEIVES = Scenario(
    "receives",
    {
        "a": [receive("e1"), "commit"],
        "b": [receive("e1"), "rollback"],
        "c": [receive("e1"), "commit"],
    },
    lambda run: None,
    receive_check,
    {"received": 110, "deduplicated": 100, "lock waits": 50},
    drain=False,
)


def enqueues_check(run: Run) -> None:
    a, c = run.got("a", 0), run.got("c", 0)
    b = run.got("b", 0)
    statuses = [row["status"] for row in a + c]
    assert statuses.count("enqueued") <= 1, "one key stored twice"
    refused = [answer.session for answer in run.answers if answer.error == "TX422"]
    assert len(refused) == 1, f"same key, other content: {refused}"
    assert refused != ["b"] or "enqueued" in statuses
    run.counts["first"] += statuses.count("enqueued") + sum(r["status"] == "enqueued" for r in b)


ENQUEUES = Scenario(
    "enqueues",
    {
        "a": [enqueue("k", payload='{"n": 1}'), "commit"],
        "c": [enqueue("k", payload='{"n": 1.0}'), "commit"],
        "b": [enqueue("z"), "rollback"],
    },
    lambda run: None,
    enqueues_check,
    {"first": 180, "TX422": 100, "lock waits": 20, "drained": 100},
    allowed=frozenset({"TX422"}),
)


def enqueue_many(keys: list[str], ordering_keys: list[str]) -> Maker:
    return do(
        "select to_jsonb(e) from trex.enqueue_many(%s, %s, %s, %s::jsonb[],"
        " p_ordering_keys => %s) e",
        ["topic"] * len(keys),
        keys,
        ["{}"] * len(keys),
        ordering_keys,
        begin=True,
    )


def many_check(run: Run) -> None:
    rows = run.admin("select count(*) from trex.message where instance_key = %s", run.key)
    assert rows[0][0] == 4
    committed = [row["status"] for session in "ab" for row in run.got(session, 0)]
    assert committed.count("enqueued") + committed.count("duplicate") == len(committed)


ENQUEUES_MANY = Scenario(
    "enqueues-many",
    {
        "a": [enqueue_many(["1", "2", "3"], ["x", "y", "z"]), "commit"],
        "b": [enqueue_many(["3", "2", "1"], ["z", "y", "x"]), "commit"],
        "c": [enqueue("0", "y"), "commit"],
    },
    lambda run: None,
    many_check,
    {"enqueued": 350, "duplicate": 290, "lock waits": 50, "drained": 390},
)


def resolve(resolution: str) -> Maker:
    return do(
        "select to_jsonb(trex.resolve(%s, %s, %s, 'seen', 'me', 'why'))",
        named("m"),
        resolution,
        begin=True,
    )


def resolve_setup(run: Run) -> None:
    run.enqueue("m", p_effect_policy="at_most_once")
    hold_all(run)
    parked(run, "m", "mark_unknown")


def resolve_check(run: Run) -> None:
    decided = [
        row for session in "ab" for row in run.got(session, 0) if row["status"] == "recorded"
    ]
    assert decided, "nobody's decision counted"
    taken = claimed(run).get("c", [])
    if run.memo["m"] in run.receipts():
        assert not taken, "delivered by decision, and sent again"
        run.counts["by decision"] += 1
    run.counts["resent"] += len(taken)


RESOLVE = Scenario(
    "resolve",
    {
        "a": [resolve("delivered"), "commit"],
        "b": [resolve("resend"), "commit"],
        "c": [claim("c"), "commit"],
    },
    resolve_setup,
    resolve_check,
    {
        "recorded": 100,
        "TX423": 20,
        "TX410": 20,
        "lock waits": 40,
        "by decision": 30,
        "resent": 5,
        "drained": 20,
    },
    allowed=frozenset({"TX410", "TX423"}),
)


MACHINE = """{
    "states": {
        "open": {"owner": "shop", "longest_stay": 60, "next_action": "close", "alert": "open"},
        "closed": {"final": true}
    },
    "transitions": [
        {"event": "open", "to": "open", "roles": ["buyer"]},
        {"from": "open", "event": "close", "to": "closed", "roles": ["buyer"]}
    ]
}"""


def transition(event: str, version: int, operation: str, *, begin: bool = True) -> Maker:
    return do(
        "select to_jsonb(trex.transition(%s, 'm', 'e', %s, %s, %s, 'ann', 'buyer', 'why'))",
        event,
        version,
        operation,
        begin=begin,
    )


def transitions_setup(run: Run) -> None:
    run.sql("select trex.machine_load(%s, 'm', %s, 'me', 'why')", run.key, MACHINE)
    run.sql(
        "select (trex.transition(%s, 'm', 'e', 'open', 0, 'op-1', 'ann', 'buyer', 'why')).status",
        run.key,
    )


def transitions_check(run: Run) -> None:
    committed = [row for session in "abc" for row in run.got(session, 0)]
    applied = [row for row in committed if row["status"] == "applied"]
    assert len(applied) == 1, f"one version left twice: {committed}"
    audit = run.admin("select count(*) from trex.operation where instance_key = %s", run.key)
    assert audit == [(2,)]


TRANSITIONS = Scenario(
    "transitions",
    {
        "a": [transition("close", 1, "op-2"), "commit"],
        "b": [transition("close", 1, "op-2"), "commit"],
        "c": [transition("close", 1, "op-3"), "commit"],
    },
    transitions_setup,
    transitions_check,
    {"applied": 100, "replayed": 30, "TX412": 100, "lock waits": 80},
    allowed=frozenset({"TX412"}),
)


def deadlock_setup(run: Run) -> None:
    run.enqueue("x1", ordering_key="x")
    run.enqueue("y1", ordering_key="y")
    hold_all(run)
    parked(run, "x1")
    parked(run, "y1")
    for name in ("y2", "x2"):
        run.enqueue(name, ordering_key=name[0], p_account="acme", p_currency="EUR", p_cash_delta=1)
    hold_all(run)
    run.enqueue("x3", ordering_key="x")
    run.enqueue("y3", ordering_key="y")


def deadlock_check(run: Run) -> None:
    run.counts["deadlocks"] += run.counts["40P01"]


DEADLOCKS = Scenario(
    "deadlocks",
    {
        "a": [redrive(named("x1", "y1")), "commit"],
        "b": [redrive(named("y1", "x1")), "commit"],
        "c": [
            record(
                named("x2", "y2"),
                fences("x2", "y2"),
                ["completed", "completed"],
                more=", p_balances => '{5,6}', p_versions => '{1,2}'",
            ),
            "commit",
        ],
        "d": [enqueue_many(["y4", "x4"], ["y", "x"]), "commit"],
        "e": [claim("e", 5), "commit"],
        "f": [
            do(
                "select to_jsonb(e) from trex.extend(%s, %s, %s) e",
                named("y2", "x2"),
                fences("y2", "x2"),
                begin=True,
            ),
            "commit",
        ],
        "t": [ADVANCE],
    },
    deadlock_setup,
    deadlock_check,
    {"redriven": 180, "recorded": 100, "enqueued": 190, "lock waits": 150, "drained": 400},
    settings={"on_parked": "continue"},
)


# A claim of a later row of the key is open while an earlier one comes back.


def returns_setup(run: Run) -> None:
    run.enqueue("m1", ordering_key="k", p_effect_policy="at_most_once")
    hold_all(run)
    parked(run, "m1", run.memo.get("end", "dead_letter"))
    run.enqueue("m2", ordering_key="k")


def returns_in_doubt_setup(run: Run) -> None:
    run.memo["end"] = "mark_unknown"
    returns_setup(run)


def returns_scenario(
    name: str, back: Maker, setup: Callable[[Run], None], least: dict[str, int]
) -> Scenario:
    return Scenario(
        f"{name}-open-claim",
        {
            "a": [claim("a"), "commit"],
            "b": [back, "commit"],
            "c": [claim("c"), "commit"],
        },
        setup,
        in_key_order,
        {"claims": 40, "got": 40, "lock waits": 10, "drained": 150} | least,
        settings={"on_parked": "continue"},
    )


def parked_and_leased(run: Run) -> None:
    redrive_setup(run)
    hold_all(run)


def back_and_leased(run: Run) -> None:
    """The first is due again, and the second leased."""
    parked_and_leased(run)
    run.sql("select status from trex.redrive(%s, %s, 'me', 'why')", run.key, [run.memo["m1"]])


def lapsed_setup(run: Run) -> None:
    back_and_leased(run)
    run.clock_forward(31)


def both_lapsed(run: Run) -> None:
    """Two of the key were claimed one after the other, and both leases are over."""
    lapsed_setup(run)
    (taken,) = run.claim()
    assert taken["message_id"] == run.memo["m1"]
    run.memo["fences"][taken["message_id"]] = taken["fence"]
    run.clock_forward(31)


def one_revived(run: Run) -> None:
    in_key_order(run)
    told = [row["status"] for session in "ab" for row in run.got(session, 0)]
    assert told.count("extended") <= 1


def parked_and_lapsed(run: Run) -> None:
    parked_and_leased(run)
    run.clock_forward(31)


def extend(*names: str, lease: str = "30 s") -> Maker:
    return do(
        f"select to_jsonb(e) from trex.extend(%s, %s, %s, '{lease}') e",
        lambda run: [run.memo[name] for name in names],
        lambda run: [run.memo["fences"][run.memo[name]] for name in names],
        begin=True,
    )


RETURNS = (
    returns_scenario("redrive", redrive(named("m1")), returns_setup, {"redriven": 100}),
    returns_scenario(
        "resend",
        do(
            "select to_jsonb(trex.resolve(%s, %s, 'resend', 'seen', 'me', 'why'))",
            named("m1"),
            begin=True,
        ),
        returns_in_doubt_setup,
        {"recorded": 100},
    ),
    returns_scenario("extend", extend("m2"), lapsed_setup, {"extended": 20, "claim_lost": 20}),
    Scenario(
        "two-heartbeats",
        {"a": [extend("m1"), "commit"], "b": [extend("m2"), "commit"], "c": [claim("c"), "commit"]},
        both_lapsed,
        one_revived,
        {"extended": 40, "claim_lost": 60, "lock waits": 20, "drained": 200},
        settings={"on_parked": "continue"},
    ),
    # The heartbeat was in time, and is committed after the lease's end.
    Scenario(
        "extend-lapses",
        {
            "a": [claim("a"), "commit"],
            "b": [extend("m2", lease="60 s"), "commit"],
            "t": [ADVANCE],
        },
        back_and_leased,
        in_key_order,
        {"claims": 5, "extended": 60, "claim_lost": 5, "drained": 200},
        settings={"on_parked": "continue"},
    ),
    # The heartbeat waits for the redrive, and looked for others of its key before.
    Scenario(
        "extend-redrive",
        {
            "a": [claim("a"), "commit"],
            "b": [extend("m2"), "commit"],
            "c": [redrive(named("m1")), "commit"],
        },
        parked_and_lapsed,
        in_key_order,
        {"claims": 20, "extended": 30, "redriven": 100, "lock waits": 20, "drained": 200},
        settings={"on_parked": "continue"},
    ),
)


def expedite_setup(run: Run) -> None:
    run.enqueue("m1", ordering_key="k")
    run.enqueue("m2", ordering_key="k")
    run.enqueue("m3")
    hold_all(run)


EXPEDITE = Scenario(
    "expedite-key",
    {
        # An end of m1 locks m2, the next of its key: so must m1 be locked before m2 here.
        "a": [
            do(
                "select to_jsonb(o) from trex.expedite(%s, %s, 'me', 'why') o",
                lambda run: [run.memo["m2"], run.memo["m3"]],
                begin=True,
            ),
            "commit",
        ],
        "b": [record(named("m1", "m3"), fences("m1", "m3"), ["completed", "retry"]), "commit"],
        "c": [extend("m3"), "commit"],
    },
    expedite_setup,
    in_key_order,
    {"recorded": 200, "expedited": 20, "extended": 20, "lock waits": 60, "drained": 200},
)


def worker_steps(name: str) -> list[Any]:
    return [
        claim(name),
        "commit",
        complete_with_effect(mine(name, 0, "message_id"), mine(name, 0, "fence")),
        "commit",
    ]


def workers_setup(run: Run) -> None:
    run.enqueue("k1", "k2", ordering_key="k")
    run.enqueue("m")


WORKERS = Scenario(
    "workers",
    {letter: worker_steps(letter) for letter in "abc"},
    workers_setup,
    effects_are_deliveries,
    {"completions": 150, "claims": 150, "drained": 20},
)


def workers_expire_setup(run: Run) -> None:
    run.enqueue("k1", "k2", ordering_key="k")


WORKERS_EXPIRE = Scenario(
    "workers-expire",
    {**{letter: worker_steps(letter) for letter in "ab"}, "t": [ADVANCE, ADVANCE]},
    workers_expire_setup,
    effects_are_deliveries,
    {"completions": 70, "claims": 80, "TX409": 1, "drained": 20, "lock waits": 1},
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        LATE_COMPLETE,
        CLAIMS,
        TARGETED_CLAIMS,
        TARGETED_LATE,
        AT_MOST_ONCE,
        HOLD,
        EXTEND,
        BATCHES,
        RESOLVE,
        RECEIVES,
        TRANSITIONS,
        ENQUEUES,
        ENQUEUES_MANY,
        redrive_scenario("block"),
        redrive_scenario("continue"),
        ABANDON,
        ORDERING,
        ORDERING_ROLLED_BACK,
        ORDERING_PARKS,
        ORDERING_POLICY,
        ORDERING_LAPSED,
        *RETURNS,
        EXPEDITE,
        DEADLOCKS,
        WORKERS_EXPIRE,
        WORKERS,
    )
}

# Programs that nobody thought of


def random_scenario(seed: int) -> Scenario:
    """Three sessions of statements drawn from everything that changes rows."""
    chance = random.Random(f"program {seed}")
    names = ["k1", "k2", "k3", "p1", "u1", "f1", "f2"]
    leased = ("k1", "f1", "f2", "p1", "u1")

    def some(pool: tuple[str, ...] | list[str], most: int = 3) -> list[str]:
        return chance.sample(list(pool), chance.randint(1, min(most, len(pool))))

    def claims_of(number: int, function: str, letter: str) -> Maker:
        return outcome(function, mine(letter, number, "message_id"), mine(letter, number, "fence"))

    def statement(letter: str, claim_at: int | None) -> tuple[str, Maker]:
        """One statement that locks rows: two in one transaction may deadlock, and that is its
        author's fault."""
        kind = kind_of(claim_at)
        return kind, made_of(kind, letter, claim_at)

    def kind_of(claim_at: int | None) -> str:
        return chance.choice(
            ["claim"] * 3
            + ["record"] * 3
            + ["own"] * (3 if claim_at is not None else 0)
            + ["extend", "redrive", "resolve", "enqueue", "expedite", "policy"]
        )

    def made_of(kind: str, letter: str, claim_at: int | None) -> Maker:
        if kind == "claim":
            return claim(letter, chance.randint(1, 3), begin=False)
        if kind == "own":
            function = chance.choice(
                ["complete", "retry", "dead_letter", "release", "mark_unknown"]
            )
            return claims_of(claim_at or 0, function, letter)
        if kind == "record":
            batch = some(leased)
            results = [
                chance.choice(
                    ["completed", "retry", "dead_letter", "unknown", "released", "conflict"]
                )
                for _ in batch
            ]
            ids, given = list(batch), list(batch)
            return record(
                lambda run: [run.memo[name] for name in ids],
                lambda run: [run.memo["fences"][run.memo[name]] for name in given],
                results,
                begin=False,
            )
        if kind == "extend":
            batch = some(leased)
            return do(
                "select to_jsonb(e) from trex.extend(%s, %s, %s) e",
                lambda run: [run.memo[name] for name in batch],
                lambda run: [run.memo["fences"][run.memo[name]] for name in batch],
            )
        if kind in ("redrive", "expedite"):
            batch = some(names)
            return do(
                f"select to_jsonb(o) from trex.{kind}(%s, %s, 'me', 'why') o",
                lambda run: [run.memo[name] for name in batch],
            )
        if kind == "resolve":
            return do(
                "select to_jsonb(trex.resolve(%s, %s, %s, 'seen', 'me', 'why'))",
                named(chance.choice(["u1", "k1", "p1"])),
                chance.choice(["delivered", "resend", "absent", "abandon"]),
            )
        if kind == "policy":
            return do(
                "select to_jsonb(trex.register_instance(%s, 'me', 'why', p_on_parked => %s))",
                chance.choice(["block", "continue"]),
            )
        key = f"new{chance.randint(1, 2)}"
        return do(
            "select to_jsonb(trex.enqueue(%s, 'topic', %s, '{}', p_ordering_key => 'k'))", key
        )

    def program(letter: str) -> list[Any]:
        steps: list[Any] = []
        claim_at = None
        for _ in range(chance.randint(2, 3)):
            kind, made = statement(letter, claim_at)
            if kind == "claim":
                claim_at = len(steps)
            if chance.random() < 0.7:
                steps.append(begin(made))
                steps.append(chance.choice(["commit", "commit", "rollback"]))
            else:
                steps.append(made)
        return steps

    def setup(run: Run) -> None:
        run.enqueue("k1", ordering_key="k")
        run.enqueue("p1", ordering_key="q")
        run.enqueue("u1")
        hold_all(run)
        given = dict(run.memo["fences"])
        parked(run, "p1")
        parked(run, "u1", "conflict")
        run.enqueue("k2", "k3", ordering_key="k")
        run.enqueue("f1", "f2")
        hold_all(run)
        run.memo["fences"] |= given

    return Scenario(
        f"random-{seed}",
        {letter: program(letter) for letter in "abc"} | {"t": [ADVANCE]},
        setup,
        lambda run: None,
        {},
        allowed=frozenset({"TX404", "TX409", "TX410", "TX423", "TX501"}),
        settings={
            "on_parked": chance.choice(["block", "continue"]),
            "max_attempts": chance.choice(["1", "2", "3"]),
        },
    )


def begin(step: Maker) -> Maker:
    """The same step as the first of a transaction."""

    def made(run: Run) -> Step | None:
        inner = step(run)
        if inner is None:
            return "begin"
        text, *values = (inner,) if isinstance(inner, str) else inner
        return ("begin; " + text, *values)

    return made
