"""Small programs of inbox, operations and rights. Each check looks at ledger rows, at what each
operation id did, at versions and at the audit; `BOOKS` of `tests.support.invariants` follows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from tests.py.interleavings.scenarios import (
    ADVANCE,
    claim,
    claimed,
    do,
    effects_are_deliveries,
    extend,
    fences,
    hold_all,
    mine,
    named,
    outcome,
    redrive,
    transition,
)
from tests.support.interleavings import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.py.interleavings.scenarios import Maker
    from tests.support.interleavings import Run, Step

ACCOUNT = "acct"

# What statements are made of


def call(text: str, *values: Any, begin: bool = True) -> Maker:
    """A function's whole row; the instance is its first argument."""
    return do(f"select to_jsonb(trex.{text})", *values, begin=begin)


def receive(event: str, raw: str = "raw", kind: str = "paid", *, begin: bool = True) -> Maker:
    return call(
        "receive(%s, 'psp', 'acct', %s, %s, 'in_1', %s, '{}')", event, kind, raw, begin=begin
    )


def claim_inbox(worker: str, limit: int = 1, *, begin: bool = True) -> Maker:
    return do(
        "select to_jsonb(c) from trex.claim(%s, %s, %s, '30 s', 'inbox') c",
        worker,
        limit,
        begin=begin,
    )


def finalize(message_id: Any, fence: Any, *, begin: bool = True) -> Maker:
    return call(
        "finalize_paid(%s, %s, %s, 'acct', 'in_1', 'ord_1', 'paid')",
        message_id,
        fence,
        begin=begin,
    )


def refund(message_id: Any, fence: Any, amount: str = "10", refund_id: str = "r1") -> Maker:
    return call(
        "apply_refund(%s, %s, %s, 'acct', 'in_1', %s, %s, 'USD', 'asked')",
        message_id,
        fence,
        refund_id,
        amount,
    )


def cancel(message_id: Any, fence: Any) -> Maker:
    return call(
        "apply_provider_cancel(%s, %s, %s, 'acct', 'in_1', 'cancelled', 'asked')",
        message_id,
        fence,
    )


def execute(capability: str, usage: str, *, thumbprint: str | None = None, more: str = "") -> Maker:
    device = f", p_thumbprint => '{thumbprint}'" if thumbprint else ""
    return call(f"execute_licence(%s, %s, 'buyer', %s{device}{more})", capability, usage)


NOW = "(select coalesce(frozen_at, now()) + shift from trex_test.clock)"
TICK = "update trex_test.clock set shift = shift + interval '1 s'"
EXPIRE = call("expire_entitlements(%s, 'me', 'why')")

# Setups


def events(*names: str, order_options: str = "") -> Callable[[Run], None]:
    """Received and claimed events of one paid invoice."""

    def setup(run: Run) -> None:
        order(run, order_options)
        for name in names:
            run.memo[name] = run.sql(
                "select (trex.receive(%s, 'psp', 'acct', %s, 'paid', 'in_1', 'raw', '{}'))"
                ".message_id",
                run.key,
                name,
            )[0]
        hold_inbox(run)

    return setup


def order(run: Run, more: str = "") -> None:
    run.sql(
        "select trex.register_order(%s, 'acct', 'in_1', 'ord_1', 'seller', 'buyer', 'plan', 10,"
        f" 'USD'{more})",
        run.key,
    )


def hold_inbox(run: Run) -> None:
    claims = run.sql(
        "select to_jsonb(c) from trex.claim(%s, 'setup', 100, '30 s', 'inbox') c", run.key
    )
    run.memo["fences"] = {c["message_id"]: c["fence"] for c in claims}


def granted(*more_events: str, order_options: str = "") -> Callable[[Run], None]:
    """A right with its licence, and further events of its invoice that are claimed."""

    def setup(run: Run) -> None:
        events("E0", *more_events, order_options=order_options)(run)
        run.sql(
            "select (trex.finalize_paid(%s, %s, %s, 'acct', 'in_1', 'ord_1', 'paid')).status",
            run.key,
            run.memo["E0"],
            run.memo["fences"][run.memo["E0"]],
        )
        run.memo["licence"] = run.admin(
            "select licence_id from trex.licence where instance_key = %s", run.key
        )[0][0]

    return setup


def capabilities(
    *names: str, first: Callable[[Run], None] = lambda run: None, order_options: str = ""
) -> Callable[[Run], None]:
    """A right with capabilities of one buyer."""

    def setup(run: Run) -> None:
        first(run)
        granted("R1", order_options=order_options)(run)
        for name in names:
            run.sql(
                "select (trex.issue_capability(%s, %s, %s, 'buyer', '720 hours')).status",
                run.key,
                name,
                run.memo["licence"],
            )

    return setup


# What the tables say


def rows(run: Run, table: str) -> list[dict[str, Any]]:
    query = f"select to_jsonb(t) from trex.{table} t where instance_key = %s"
    return [row for (row,) in run.admin(query, run.key)]


def audits(run: Run, action: str) -> int:
    return sum(row["action"] == action for row in rows(run, "audit"))


def said(run: Run, *steps: tuple[str, int]) -> list[str]:
    """The statuses of these steps, as far as they ended well."""
    return [row["status"] for session, number in steps for row in run.got(session, number)]


# Receiving


def receive_other_check(run: Run) -> None:
    (event,) = rows(run, "inbox_event")
    stored = bytes.fromhex(event["raw"].removeprefix("\\x")).decode()
    variants = rows(run, "inbox_variant")
    answers = {session: run.got(session, 0)[0] for session in "abc"}
    received = [s for s in "ac" if answers[s]["status"] == "received"]
    assert len(received) == 1
    assert stored == {"a": "one", "c": "one", "b": "two"}[received[0]]
    differing = [s for s in "ac" if answers[s]["differs"]]
    assert not differing, "the same bytes differ"
    # Only b's bytes were other, and b was undone.
    assert variants == []
    assert len(rows(run, "message")) == len(run.deliveries()) == 1
    run.counts["differs"] += answers["b"]["differs"]


RECEIVE_OTHER_UNDONE = Scenario(
    "receive-other-undone",
    {
        "a": [receive("e", "one"), "commit"],
        "b": [receive("e", "two"), "rollback"],
        "c": [receive("e", "one"), "commit"],
    },
    lambda run: None,
    receive_other_check,
    {"received": 110, "deduplicated": 100, "differs": 40, "lock waits": 50},
    drain=False,
)


def receive_differs_check(run: Run) -> None:
    (event,) = rows(run, "inbox_event")
    stored = bytes.fromhex(event["raw"].removeprefix("\\x")).decode()
    answers = [run.got(session, 0)[0] for session in "abc"]
    winner = next(i for i, row in enumerate(answers) if row["status"] == "received")
    assert stored == ("one", "two", "three")[winner]
    assert [row["differs"] for row in answers] == [i != winner for i in range(3)]
    assert len(rows(run, "inbox_variant")) == 2, "evidence lost, or kept twice"
    assert len(rows(run, "message")) == len(run.deliveries()) == 1
    run.counts["variants"] += 2


RECEIVE_DIFFERS = Scenario(
    "receive-differs",
    {
        "a": [receive("e", "one"), "commit"],
        "b": [receive("e", "two"), "commit"],
        "c": [receive("e", "three"), "commit"],
    },
    lambda run: None,
    receive_differs_check,
    {"received": 100, "deduplicated": 200, "variants": 200, "lock waits": 50},
    drain=False,
)


def inbox_expiry_check(run: Run) -> None:
    effects_are_deliveries(run)
    again = run.got("r", 0)[0]
    assert again["status"] == "deduplicated"
    assert len(rows(run, "message")) == 1
    taken = claimed(run).get("b", [])
    receipts = run.receipts()
    if taken:
        run.counts["reclaims"] += 1
        assert receipts.get(run.memo["E"]) in (None, taken[0]["fence"])
    if again["state"] == "delivered":
        run.counts["after"] += 1


def effect_then(finish: Maker) -> list[Any]:
    """A handler that writes its own row first, and only then asks whether the claim is still its
    own."""

    def write(run: Run) -> Step | None:
        return (
            "begin; insert into trex_test.effect values (%s, %s)",
            run.key,
            run.memo["E"],
        )

    return [write, finish, "commit"]


def retaken(session: str, number: int) -> list[Any]:
    """Claim what has expired and handle it."""

    def write(run: Run) -> Step | None:
        message_id = mine(session, number, "message_id")(run)
        if message_id is None:
            return None
        return ("begin; insert into trex_test.effect values (%s, %s)", run.key, message_id)

    return [
        claim_inbox(session),
        "commit",
        write,
        outcome("complete", mine(session, number, "message_id"), mine(session, number, "fence")),
        "commit",
    ]


INBOX_EXPIRY = Scenario(
    "inbox-expiry",
    {
        "a": effect_then(outcome("complete", named("E"), fences("E"))),
        "b": retaken("b", 0),
        "r": [receive("E", begin=False)],
        "t": [ADVANCE],
    },
    events("E"),
    inbox_expiry_check,
    {"completions": 80, "TX409": 4, "reclaims": 4, "after": 10, "deduplicated": 100},
    drain=False,
)


def handed_over_check(run: Run) -> None:
    """The lease went over while the first handler's rows were written but not committed."""
    effects_are_deliveries(run)
    lost = [a for a in run.of("a") if a.error == "TX409"]
    rights = rows(run, "entitlement")
    operations = rows(run, "operation")
    assert len(rights) == len(operations) == len(run.receipts()) == audits(run, "grant")
    if lost:
        run.counts["handed over"] += 1
        assert not run.receipts() or run.got("b", 3)
    run.counts["rights"] += len(rights)


HANDED_OVER = Scenario(
    "handed-over",
    {
        "a": effect_then(finalize(named("E"), fences("E"), begin=False)),
        "b": [
            *retaken("b", 0)[:3],
            finalize(mine("b", 0, "message_id"), mine("b", 0, "fence"), begin=False),
            "commit",
        ],
        "t": [ADVANCE],
    },
    events("E"),
    handed_over_check,
    {"granted": 80, "TX409": 12, "handed over": 12, "rights": 80, "lock waits": 1},
    drain=False,
)


def revival_setup(run: Run) -> None:
    events("E")(run)
    message_id = run.memo["E"]
    run.sql(
        "select (trex.dead_letter(%s, %s, %s)).status",
        run.key,
        message_id,
        run.memo["fences"][message_id],
    )


def revival_check(run: Run) -> None:
    revived = said(run, ("a", 0)).count("revived")
    redriven = said(run, ("b", 0)).count("redriven")
    assert revived + redriven == audits(run, "redrive") == 1, "brought back twice, or not at all"
    (row,) = run.deliveries().values()
    taken = claimed(run).get("c", [])
    assert row["parked"] is None
    assert row["tries"] == len(taken)
    assert row["attempts"] == 1 + len(taken)
    run.counts["by sender"] += revived
    run.counts["by operator"] += redriven


REVIVAL = Scenario(
    "revival",
    {
        "a": [receive("E"), "commit"],
        "b": [redrive(named("E")), "commit"],
        "c": [claim_inbox("c"), "commit"],
    },
    revival_setup,
    revival_check,
    {
        "by sender": 30, "by operator": 30, "not_parked": 20, "deduplicated": 20, "claims": 12,
        "lock waits": 30,
    },
    drain=False,
)  # fmt: skip

# Four deliveries of three events


def worker(letter: str, ends: tuple[str, str] = ("commit", "commit")) -> list[Any]:
    """Two rounds of claim, handle, commit; `rollback` is a crash inside."""
    steps: list[Any] = []
    for number, end in zip((0, 4), ends, strict=True):
        steps += [
            claim_inbox(letter),
            "commit",
            finalize(mine(letter, number, "message_id"), mine(letter, number, "fence")),
            end,
        ]
    return steps


def crashed(letter: str) -> list[Any]:
    """Claims, and is never heard of again; then a worker like any other."""
    return [claim_inbox(letter), "commit", *worker(letter)[4:]]


def unheard(letter: str) -> list[Any]:
    """The answer of the first COMMIT is lost: the same call again, from a new session."""
    steps = worker(letter)[:4]
    again = finalize(mine(letter, 0, "message_id"), mine(letter, 0, "fence"), begin=False)
    return [*steps, again]


def four_deliveries_check(run: Run) -> None:
    run.clock_forward(31)
    for _ in range(2):
        for row in run.sql(
            "select to_jsonb(c) from trex.claim(%s, 'last', 10, '30 s', 'inbox') c", run.key
        ):
            run.counts["left over"] += 1
            run.sql(
                "select (trex.finalize_paid(%s, %s, %s, 'acct', 'in_1', 'ord_1', 'paid')).status",
                run.key,
                row["message_id"],
                row["fence"],
            )
        run.clock_forward(31)
    received = said(run, ("p", 0), ("q", 0), ("r", 0), ("s", 0))
    assert sorted(received) == ["deduplicated", *["received"] * 3]
    assert len(rows(run, "inbox_event")) == len(run.receipts()) == 3
    assert not run.deliveries()
    (operation,) = rows(run, "operation")
    (right,) = rows(run, "entitlement")
    (licence,) = rows(run, "licence")
    assert right["entitlement_id"] == licence["licence_id"] == operation["operation_id"]
    assert (right["state"], right["version"], audits(run, "grant")) == ("active", 1, 1)
    references = {row["reference"] for row in rows(run, "receipt")}
    assert references == {operation["operation_id"]}


def four_deliveries(name: str, a: list[Any], least: dict[str, int]) -> Scenario:
    """E2 paid, E2 again, E1 created earlier and late, E3 a second event of the same payment, in
    every order of arrival, under two workers."""
    return Scenario(
        f"four-deliveries{name}",
        {
            "p": [receive("E2", begin=False)],
            "q": [receive("E2", begin=False)],
            "r": [receive("E1", "early", "created", begin=False)],
            "s": [receive("E3", "other", begin=False)],
            "a": a,
            "b": worker("b"),
            "t": [ADVANCE],
        },
        order,
        four_deliveries_check,
        {"received": 300, "deduplicated": 100, "granted": 50, "already_granted": 15} | least,
        drain=False,
    )


# Operations

TICKET = """{
    "states": {"open": {}, "approved": {}, "cancelled": {"final": true}},
    "transitions": [
        {"event": "open", "to": "open"},
        {"from": "open", "event": "approve", "to": "approved", "topic": "approved"},
        {"from": "open", "event": "cancel", "to": "cancelled", "topic": "cancelled"},
        {"from": "approved", "event": "cancel", "to": "cancelled"}
    ]
}"""


def ticket(run: Run) -> None:
    run.sql("select trex.machine_load(%s, 'm', %s, 'me', 'why')", run.key, TICKET)
    run.sql(
        "select (trex.transition(%s, 'm', 'e', 'open', 0, 'op-1', 'ann', 'buyer', 'why', 10))"
        ".status",
        run.key,
    )


def effects_by_operation(run: Run) -> dict[str, int]:
    """How many messages each operation id has put into the outbox."""
    found: dict[str, int] = {}
    query = (
        "select payload ->> 'operation_id' from trex.message"
        " where instance_key = %s and payload ? 'operation_id'"
    )
    for (operation,) in run.admin(query, run.key):
        found[operation] = found.get(operation, 0) + 1
    return found


def approve_cancel_check(run: Run) -> None:
    (entity,) = rows(run, "entity")
    applied = [
        row for s in "ab" for row in run.got(s, 0) if row["status"] == "applied"
    ]  # fmt: skip
    done = {row["operation_id"]: row for row in rows(run, "operation")}
    if said(run, ("c", 0)) == ["applied"]:
        # Undone: it had come before a, whose intent it shares.
        run.counts["undone"] += 1
    assert len(applied) == 1, "two left one version"
    winner = applied[0]["operation_id"]
    assert done.keys() == {"op-1", winner}
    assert (entity["version"], entity["operation_id"]) == (2, winner)
    assert entity["state"] == {"op-a": "approved", "op-b": "cancelled"}[winner]
    assert effects_by_operation(run) == {winner: 1}
    assert audits(run, "transition") == 2
    run.counts[f"won {winner}"] += 1


APPROVE_CANCEL = Scenario(
    "approve-cancel",
    {
        "a": [transition("approve", 1, "op-a"), "commit"],
        "b": [transition("cancel", 1, "op-b"), "commit"],
        "c": [transition("approve", 1, "op-a"), "rollback"],
    },
    ticket,
    approve_cancel_check,
    {
        "applied": 100, "replayed": 10, "TX412": 100, "undone": 10, "won op-a": 20, "won op-b": 20,
        "lock waits": 50, "drained": 100,
    },
    allowed=frozenset({"TX412"}),
)  # fmt: skip


def create(entity: str, operation: str) -> Maker:
    return call("transition(%s, 'm', %s, 'open', 0, %s, 'ann', 'buyer', 'why')", entity, operation)


def creations_check(run: Run) -> None:
    entities = {row["entity"]: row for row in rows(run, "entity")}
    applied = said(run, ("a", 0), ("b", 0), ("c", 0)).count("applied")
    assert applied == len(entities) - 1 == len(rows(run, "operation")) - 1
    # op-x made either of the two, and x itself was made once.
    makers = [row["operation_id"] for row in entities.values()]
    assert makers.count("op-x") <= 1
    run.counts["entities"] += len(entities) - 1


CREATIONS = Scenario(
    "creations",
    {
        "a": [create("x", "op-x"), "commit"],
        "b": [create("x", "op-y"), "commit"],
        "c": [create("z", "op-x"), "commit"],
    },
    ticket,
    creations_check,
    {"applied": 100, "entities": 100, "TX412": 20, "TX422": 30, "lock waits": 40},
    allowed=frozenset({"TX412", "TX422"}),
)


def correction(adjustment: str, version: int, amount: int = -4) -> Maker:
    return call(
        "correct(%s, 'op-2', %s, 'fee', %s, %s, 'me', 'clerk', 'why', 'seen')",
        adjustment,
        amount,
        version,
    )


def correction_setup(run: Run) -> None:
    """An operation whose message is claimed."""
    ticket(run)
    run.sql(
        "select (trex.transition(%s, 'm', 'e', 'approve', 1, 'op-2', 'ann', 'buyer', 'why', 10))"
        ".status",
        run.key,
    )
    (taken,) = run.claim()
    run.memo["m"] = taken["message_id"]
    run.memo["fences"] = {taken["message_id"]: taken["fence"]}


def correction_check(run: Run) -> None:
    """The corrections don't touch the operation, nor does a late completion touch them."""
    operation = next(row for row in rows(run, "operation") if row["operation_id"] == "op-2")
    assert (operation["amount"], operation["version"], operation["to_state"]) == (10, 2, "approved")
    (made,) = rows(run, "adjustment")
    assert (made["version"], made["amount"], made["balance"]) == (1, -4, 6)
    assert made["on_version"] in (2, 3)
    assert audits(run, "correct") == 1
    assert len(run.receipts()) <= 1
    assert effects_by_operation(run) == {"op-2": 1}
    run.counts[f"upon {made['on_version']}"] += 1
    run.counts["completions"] += len(run.receipts())


CORRECTIONS = Scenario(
    "corrections",
    {
        "a": [correction("adj-1", 0), "commit"],
        "b": [correction("adj-2", 0), "commit"],
        "c": [outcome("complete", named("m"), fences("m"), begin=True), "commit"],
        "d": [transition("cancel", 2, "op-3"), "commit"],
        "e": [claim("e"), "commit"],
        "t": [ADVANCE],
    },
    correction_setup,
    correction_check,
    {
        "applied": 180, "TX412": 100, "TX409": 1, "completions": 50, "upon 2": 10, "upon 3": 5,
        "lock waits": 30, "drained": 5,
    },
    allowed=frozenset({"TX409", "TX412"}),
)  # fmt: skip


def revisions_check(run: Run) -> None:
    revisions = sorted(row["revision"] for row in rows(run, "machine"))
    assert revisions == list(range(1, len(revisions) + 1))
    answers = [row for s in "ab" for row in run.got(s, 0)]
    assert answers.count("changed") == len(revisions) - 1 == audits(run, "machine_load") - 1
    assert said(run, ("c", 0)) == ["applied"]
    run.counts["changed"] += answers.count("changed")
    run.counts["unchanged"] += answers.count("unchanged")


def load(*, wider: bool) -> Maker:
    definition = TICKET.replace('"open": {},', '"open": {}, "held": {},') if wider else TICKET
    return call("machine_load(%s, 'm', %s, 'me', 'why')", definition)


REVISIONS = Scenario(
    "revisions",
    {
        "a": [load(wider=True), "commit"],
        "b": [load(wider=True), "commit"],
        "c": [transition("approve", 1, "op-2"), "commit"],
    },
    ticket,
    revisions_check,
    {"changed": 100, "unchanged": 100, "applied": 100, "lock waits": 40, "drained": 100},
)

# Rights


def one_use_check(run: Run) -> None:
    (capability,) = [row for row in rows(run, "capability") if row["capability_id"] == "cap"]
    (usage,) = rows(run, "license_usage")
    assert usage["usage_id"] == capability["consumed_by"]
    counters = {row["period"]: row["uses"] for row in rows(run, "usage_counter")}
    assert len(counters) == 2
    assert set(counters.values()) == {1}
    answers = said(run, ("a", 0), ("b", 0))
    assert answers.count("executed") == 1
    refused = [row["kind"] for row in rows(run, "security_event")]
    assert refused == ["consumed"] * answers.count("consumed")
    run.counts[f"won {usage['usage_id']}"] += 1


ONE_USE = Scenario(
    "one-use",
    {
        "a": [execute("cap", "u1"), "commit"],
        "b": [execute("cap", "u2", more=", p_on_refused => 'report'"), "commit"],
        "c": [execute("cap", "u1"), "rollback"],
    },
    capabilities("cap"),
    one_use_check,
    {
        "executed": 100, "consumed": 20, "TX410": 50, "replayed": 10, "won u1": 20, "won u2": 20,
        "lock waits": 60,
    },
    allowed=frozenset({"TX410"}),
    drain=False,
)  # fmt: skip


def issue(subject: str, begin: bool = True) -> Maker:
    return call(
        "issue_capability(%s, 'cap', %s, %s, '1 hour')",
        lambda run: run.memo["licence"],
        subject,
        begin=begin,
    )


def issues_check(run: Run) -> None:
    (capability,) = rows(run, "capability")
    assert said(run, ("a", 0), ("b", 0)).count("issued") == 1
    refused = {a.session for a in run.answers if a.error}
    assert len(refused & {"a", "b"}) == 1
    run.counts[f"for {capability['subject']}"] += 1


ISSUES = Scenario(
    "issues",
    {
        "a": [issue("ann"), "commit"],
        "b": [issue("bob"), "commit"],
        "c": [issue("ann"), "rollback"],
    },
    granted(),
    issues_check,
    {"issued": 100, "TX422": 100, "for ann": 20, "for bob": 20, "lock waits": 40},
    allowed=frozenset({"TX422"}),
    drain=False,
)


def at_the_end_of_a_month(run: Run) -> None:
    clock = run.explorer.clock
    now = clock.now().astimezone(UTC)
    month = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    clock.advance(month - now - timedelta(seconds=10))


def uses_check(run: Run) -> None:
    used = rows(run, "license_usage")
    executed = said(run, ("a", 0), ("b", 0)).count("executed")
    assert len(used) == executed == 2
    counters = {row["period"]: row["uses"] for row in rows(run, "usage_counter")}
    months = [uses for period, uses in counters.items() if period != "all"]
    assert counters["all"] == sum(months) == 2
    assert sorted(row["total"] for s in "ab" for row in run.got(s, 0)) == [1, 2]
    run.counts["months"] += len(months)
    run.counts["one month"] += len(months) == 1


USES = Scenario(
    "uses",
    {
        "a": [execute("cap", "u1"), "commit"],
        "b": [execute("cap2", "u2"), "commit"],
        "c": [execute("cap3", "u3"), "rollback"],
        "t": [ADVANCE],
    },
    capabilities("cap", "cap2", "cap3", first=at_the_end_of_a_month),
    uses_check,
    {"executed": 250, "months": 120, "one month": 20, "lock waits": 50},
    drain=False,
)


def bounded_check(run: Run) -> None:
    used = rows(run, "license_usage")
    assert len(used) == 1
    assert run.counts["TX423"] == 2
    assert said(run, ("a", 0), ("b", 0), ("c", 0)).count("executed") == 1


BOUNDED_USES = Scenario(
    "bounded-uses",
    {
        "a": [execute("cap", "u1"), "commit"],
        "b": [execute("cap2", "u2"), "commit"],
        "c": [execute("cap3", "u3"), "commit"],
    },
    capabilities("cap", "cap2", "cap3", order_options=", p_uses_max => 1"),
    bounded_check,
    {"executed": 100, "TX423": 200, "lock waits": 60},
    allowed=frozenset({"TX423"}),
    drain=False,
)


def same_usage_check(run: Run) -> None:
    """One usage id, two capabilities of two licences."""
    (usage,) = rows(run, "license_usage")
    consumed = [row for row in rows(run, "capability") if row["consumed_by"]]
    assert [row["capability_id"] for row in consumed] == [usage["capability_id"]]
    refused = {a.session for a in run.answers if a.error}
    assert len(refused & {"a", "b"}) == 1


def two_licences(run: Run) -> None:
    capabilities("cap")(run)
    run.sql(
        "select trex.register_order(%s, 'acct', 'in_2', 'ord_2', 'seller', 'buyer', 'plan', 10,"
        " 'USD')",
        run.key,
    )
    run.sql(
        "select (trex.receive(%s, 'psp', 'acct', 'F', 'paid', 'in_2', 'raw', '{}')).message_id",
        run.key,
    )
    (taken,) = run.sql(
        "select to_jsonb(c) from trex.claim(%s, 'setup', 1, '30 s', 'inbox') c", run.key
    )
    licence = run.sql(
        "select (trex.finalize_paid(%s, %s, %s, 'acct', 'in_2', 'ord_2', 'paid')).licence_id",
        run.key,
        taken["message_id"],
        taken["fence"],
    )[0]
    run.sql(
        "select (trex.issue_capability(%s, 'cap2', %s, 'buyer', '1 hour')).status",
        run.key,
        licence,
    )


SAME_USAGE = Scenario(
    "same-usage",
    {
        "a": [execute("cap", "u"), "commit"],
        "b": [execute("cap2", "u"), "commit"],
        "c": [execute("cap2", "u"), "rollback"],
    },
    two_licences,
    same_usage_check,
    {"executed": 100, "TX422": 100, "lock waits": 40},
    allowed=frozenset({"TX422"}),
    drain=False,
)


def grant_refund_check(run: Run) -> None:
    """Money back before the grant, beside it or after it: the right ends either way."""
    (right,) = rows(run, "entitlement")
    (back,) = rows(run, "refund")
    assert len(run.receipts()) == 2
    assert (right["state"], right["version"]) == ("refunded", 2)
    assert [row["balance"] for row in rows(run, "adjustment")] == [10 - back["amount"]]
    assert audits(run, "correct") == 1
    (answer,) = said(run, ("b", 0))
    assert answer in ("no_grant", "refunded")
    run.sql("select to_jsonb(trex.reconcile(%s, 'me', 'why'))", run.key)
    assert rows(run, "reconcile_finding") == []


GRANT_REFUND = Scenario(
    "grant-refund",
    {
        "a": [finalize(named("E"), fences("E")), "commit"],
        "b": [refund(named("R"), fences("R")), "commit"],
        "c": [finalize(named("E"), fences("E")), "rollback"],
    },
    events("E", "R"),
    grant_refund_check,
    {"granted": 100, "refunded": 12, "no_grant": 20, "replayed": 10, "lock waits": 20},
    drain=False,
)


def refund_use_check(run: Run) -> None:
    """A use and the end of its right have an order."""
    (right,) = rows(run, "entitlement")
    assert right["state"] == "refunded"
    assert len(rows(run, "refund")) == len(rows(run, "adjustment")) == 1
    used = said(run, ("a", 0)).count("executed")
    assert len(rows(run, "license_usage")) == used
    assert used + run.counts["TX423"] >= 1
    if used:
        committed = [
            a.session for a in run.answers if (a.session, a.number) in (("a", 0), ("b", 1))
        ]
        assert committed[0] == "a" or run.of("a", 0)[0].waited is False, "used after its end"
    run.counts["used"] += used


REFUND_USE = Scenario(
    "refund-use",
    {
        "a": [execute("cap", "u1"), "commit"],
        "b": [refund(named("R1"), fences("R1")), "commit"],
        "c": [refund(named("R1"), fences("R1")), "rollback"],
        "d": [issue("buyer"), "commit"],
    },
    capabilities("cap"),
    refund_use_check,
    {"used": 20, "TX423": 20, "refunded": 100, "replayed": 20, "duplicate": 30, "lock waits": 50},
    allowed=frozenset({"TX423"}),
    drain=False,
)


def issue_ends_check(run: Run) -> None:
    """No capability is younger than the end of its right."""
    (right,) = rows(run, "entitlement")
    assert right["state"] == "refunded"
    issued = [datetime.fromisoformat(row["issued_at"]) for row in rows(run, "capability")]
    ended = datetime.fromisoformat(right["changed_at"])
    assert all(at <= ended for at in issued), "issued after its right ended"
    assert len(issued) == said(run, ("a", 0)).count("issued")
    run.counts["capabilities"] += len(issued)


ISSUE_ENDS = Scenario(
    "issue-ends",
    {
        "a": [issue("buyer"), "commit"],
        "b": [refund(named("R1"), fences("R1")), "commit"],
        "t": [TICK],
    },
    granted("R1"),
    issue_ends_check,
    {"issued": 30, "TX423": 30, "refunded": 100, "lock waits": 20},
    allowed=frozenset({"TX423"}),
    drain=False,
)


def ends_setup(run: Run) -> None:
    granted("C", "R", order_options=", p_valid_for => '1 second'")(run)
    run.clock_forward(2)


def ends_check(run: Run) -> None:
    """One end, whoever comes first; the others have nothing left to end."""
    (right,) = rows(run, "entitlement")
    assert right["version"] == 2
    ended = [row["kind"] for row in rows(run, "adjustment") if row["amount"] == 0]
    assert ended == ([] if right["state"] == "refunded" else [right["state"]])
    expired = sum(row for s in "ab" for row in run.got(s, 0))
    assert expired == (right["state"] == "expired")
    assert len(run.receipts()) == 3
    run.counts[f"by {right['state']}"] += 1


ENDS = Scenario(
    "ends",
    {
        "a": [EXPIRE, "commit"],
        "b": [EXPIRE, "commit"],
        "c": [cancel(named("C"), fences("C")), "commit"],
        "d": [refund(named("R"), fences("R")), "commit"],
    },
    ends_setup,
    ends_check,
    {
        "ended": 10, "already_ended": 20, "refunded": 80, "by expired": 20, "by cancelled": 10,
        "by refunded": 10, "lock waits": 50,
    },
    drain=False,
)  # fmt: skip


def devices_check(run: Run) -> None:
    bound = [row["thumbprint"] for row in rows(run, "device_binding")]
    assert len(bound) == 1
    answers = [row for s in "abc" for row in run.got(s, 0)]
    assert answers.count("bound") + run.counts["TX423"] + answers.count("duplicate") == 3
    run.counts[f"bound {bound[0]}"] += 1


def bind_device(thumbprint: str) -> Maker:
    return call("bind_device(%s, %s, %s)", lambda run: run.memo["licence"], thumbprint)


DEVICES = Scenario(
    "devices",
    {
        "a": [bind_device("t1"), "commit"],
        "b": [bind_device("t2"), "commit"],
        "c": [bind_device("t1"), "commit"],
    },
    granted(order_options=", p_devices_max => 1"),
    devices_check,
    {"bound t1": 20, "bound t2": 10, "TX423": 100, "lock waits": 60},
    allowed=frozenset({"TX423"}),
    drain=False,
)


def payment(status: str) -> Maker:
    return call("record_payment(%s, 'acct', 'in_1', %s)", status)


def subscription(status: str, back: str) -> Maker:
    return call(
        f"update_subscription(%s, 'acct', 'sub', 'in_1', %s, {NOW}, {NOW} - %s::interval)",
        status,
        back,
    )


def provider_check(run: Run) -> None:
    asked = sorted(rows(run, "payment"), key=lambda row: row["asked"])
    assert [row["asked"] for row in asked] == list(range(1, len(asked) + 1))
    statuses = [row["status"] for row in asked]
    assert all(a != b for a, b in pairwise(statuses)), "no news was kept"
    news = [row for s in "ab" for row in run.got(s, 0)]
    assert news.count(True) == len(asked)
    (known,) = rows(run, "subscription")
    assert known["status"] == "active", "an older answer overwrote a newer one"
    assert known["version"] == 1 + [row for s in "cd" for row in run.got(s, 0)].count("updated")
    run.counts["payments"] += len(asked)
    run.counts["stale"] += [row for s in "cd" for row in run.got(s, 0)].count("stale")


PROVIDER = Scenario(
    "provider",
    {
        "a": [payment("paid"), "commit"],
        "b": [payment("refunded"), "commit"],
        "c": [subscription("active", "0"), "commit"],
        "d": [subscription("cancelled", "1 hour"), "commit"],
    },
    lambda run: None,
    provider_check,
    {"payments": 200, "stale": 20, "lock waits": 40},
    drain=False,
)


def buy(order_id: str) -> Maker:
    return call(
        "register_order(%s, 'acct', 'in_1', %s, 'seller', 'buyer', 'plan', 10, 'USD')", order_id
    )


def orders_check(run: Run) -> None:
    (stored,) = rows(run, "order_invoice")
    answers = [row for s in "ab" for row in run.got(s, 0)]
    assert answers.count("registered") + answers.count("duplicate") + run.counts["TX422"] >= 2
    assert answers.count("registered") == 1
    run.counts[stored["order_id"]] += 1


ORDERS = Scenario(
    "orders",
    {
        "a": [buy("ord_1"), "commit"],
        "b": [buy("ord_2"), "commit"],
        "c": [buy("ord_1"), "rollback"],
    },
    lambda run: None,
    orders_check,
    {"ord_1": 20, "ord_2": 20, "TX422": 100, "lock waits": 40},
    allowed=frozenset({"TX422"}),
    drain=False,
)

# Reconciliation


def repairs_setup(run: Run) -> None:
    run.enqueue("m")
    run.memo["fences"] = {c["message_id"]: c["fence"] for c in run.claim()}
    run.clock_forward(7200)


def repairs_check(run: Run) -> None:
    """An ended lease gets one end, from a claim or from one of the runs."""
    ends = rows(run, "outcome")
    assert [row["kind"] for row in ends] == ["lease_expired"] * len(ends)
    assert len(ends) <= 1
    runs = rows(run, "reconcile_run")
    assert sorted(row["run_id"] for row in runs) == [1, 2]
    repaired = sum(row["repaired"] for row in runs)
    assert repaired <= len(ends)
    assert len(rows(run, "reconcile_finding")) <= 1
    if run.memo["m"] in run.receipts():
        assert not ends
    run.counts["repaired"] += repaired
    run.counts["runs"] += len(runs)


RECONCILE = call("reconcile(%s, 'me', 'why')")

REPAIRS = Scenario(
    "repairs",
    {
        "a": [RECONCILE, "commit"],
        "b": [RECONCILE, "commit"],
        "c": [claim("c"), "commit"],
        "d": [outcome("complete", named("m"), fences("m"), begin=True), "commit"],
    },
    repairs_setup,
    repairs_check,
    {"runs": 200, "repaired": 10, "claims": 20, "recorded": 20, "TX409": 20, "lock waits": 50},
)


def finding_id(run: Run, name: str) -> str:
    """Of a message of the outbox that isn't delivered: findings are stored in this order."""
    row = run.deliveries()[run.memo[name]]
    refs = {"message_id": row["message_id"]}
    if row["lease_until"]:
        refs["fence"] = row["fence"]
    query = (
        "select encode(sha256(convert_to("
        "jsonb_build_array('failed_or_stuck_outbox', %s::jsonb)::text, 'UTF8')), 'hex')"
    )
    return str(run.admin(query, json.dumps(refs))[0][0])


def hold_finding(name: str) -> Maker:
    """Another's finding, not committed: whoever finds the same waits."""
    text = (
        "begin; insert into trex.reconcile_finding (instance_key, finding_id, type, ref_ids,"
        " expected, actual, causal_events, recoverable, recommended_action, state, first_run,"
        " last_run, found_at, seen_at) values (%s, %s, 'failed_or_stuck_outbox', '{}', 'x', 'x',"
        " '[]', false, 'x', 'needs_review', 1, 1, now(), now()) on conflict do nothing"
    )
    return lambda run: (text, run.key, finding_id(run, run.memo[name]))


def heartbeat_setup(run: Run) -> None:
    """Two ended leases: `m` is the one that is told of last."""
    run.enqueue("m1", "m2")
    hold_all(run)
    first, last = sorted(("m1", "m2"), key=lambda name: finding_id(run, name))
    run.memo["first"], run.memo["m"] = first, run.memo[last]
    run.clock_forward(7200)


def heartbeat_check(run: Run) -> None:
    """The lease that a heartbeat brought back between the look and the repair is left alone."""
    (told,) = run.got("b", 0)
    ends = [row for row in rows(run, "outcome") if row["message_id"] == run.memo["m"]]
    repaired = sum(row["repaired"] for row in rows(run, "reconcile_run")) - 1
    assert repaired == len(ends) == (told["status"] == "claim_lost")
    run.counts["repaired"] += repaired


HEARTBEAT = Scenario(
    "heartbeat",
    {
        "t": [hold_finding("first"), "rollback"],
        "a": [RECONCILE, "commit"],
        "b": [extend("m"), "commit"],
    },
    heartbeat_setup,
    heartbeat_check,
    {"repaired": 20, "claim_lost": 20, "extended": 30, "lock waits": 30},
)


GO_ON = call("reconcile(%s, 'me', 'why', 1, '1 hour', 1)")


def same_run_setup(run: Run) -> None:
    run.enqueue("m1", "m2", "m3")
    run.clock_forward(7200)
    run.sql("select to_jsonb(trex.reconcile(%s, 'me', 'why', null, '1 hour', 1))", run.key)


def same_run_check(run: Run) -> None:
    """Two operators go on with one run: each with what the other left."""
    (stored,) = rows(run, "reconcile_run")
    assert (stored["examined"], stored["found"], stored["fresh"]) == (3, 3, 3)
    assert sorted(row["examined"] for s in "ab" for row in run.got(s, 0)) == [2, 3]
    run.counts["gone on"] += 2


SAME_RUN = Scenario(
    "same-run",
    {
        "a": [GO_ON, "commit"],
        "b": [GO_ON, "commit"],
        "c": [GO_ON, "rollback"],
    },
    same_run_setup,
    same_run_check,
    {"gone on": 200, "lock waits": 60},
)


MERGED = ("nestloop", "hashjoin")
HASHED = ("nestloop", "mergejoin", "indexscan", "indexonlyscan", "bitmapscan")


def planned(off: tuple[str, ...], text: str) -> str:
    """In a transaction with a plan of its own: without these kinds of nodes."""
    return "begin; " + "".join(f"set local enable_{kind} = off; " for kind in off) + text


def two_runs_setup(run: Run) -> None:
    """Two runs before the same drifts, whose plans find three of them the other way round."""
    run.enqueue(*(f"m{number}" for number in range(12)))
    run.clock_forward(7200)
    for _ in range(2):
        run.sql("select to_jsonb(trex.reconcile(%s, 'me', 'why', null, '1 hour', 1))", run.key)
    places = []
    for off in (MERGED, HASHED):
        run.explorer.admin.execute(planned(off, ""))
        found = run.admin(
            "select place::bigint from trex._reconcile_page(%s, 'messages', %s, 99, '1 hour',"
            " trex._now()) where type is not null",
            run.key,
            str(run.memo["m0"]),
        )
        run.explorer.admin.execute("rollback")
        places.append({place: at for at, (place,) in enumerate(found)})
    one, other = places
    run.memo["middle"] = next(
        middle
        for first, middle, last in combinations(sorted(one, key=one.__getitem__), 3)
        if other[last] < other[middle] < other[first]
    )
    run.memo["first"] = "middle"


def two_runs_check(run: Run) -> None:
    assert len(rows(run, "reconcile_finding")) == 12
    run.counts["findings"] += 12


def go_on_planned(number: int, off: tuple[str, ...]) -> Maker:
    text = f"select to_jsonb(trex.reconcile(%s, 'me', 'why', {number}))"
    return lambda run: (planned(off, text), run.key)


TWO_RUNS = Scenario(
    "two-runs",
    {
        "t": [hold_finding("first"), "rollback"],
        "a": [go_on_planned(1, MERGED), "commit"],
        "b": [go_on_planned(2, HASHED), "commit"],
    },
    two_runs_setup,
    two_runs_check,
    {"findings": 1200, "lock waits": 80},
)


def purge_setup(run: Run) -> None:
    run.enqueue("m1", "m2")
    for row in run.claim(2):
        run.sql(
            "select (trex.complete(%s, %s, %s)).status", run.key, row["message_id"], row["fence"]
        )


def purge_check(run: Run) -> None:
    """Two purges at once: each payload is counted and audited once."""
    purged = [row["purged"] for s in "ab" for row in run.got(s, 0)]
    assert sum(purged) == audits(run, "purge") == 2
    assert all(row["payload"] is None for row in rows(run, "message"))
    run.counts["purged"] += sum(purged)


PURGE = call("purge(%s, '0', 'me', 'why')")

PURGES = Scenario(
    "purges",
    {"a": [PURGE, "commit"], "b": [PURGE, "commit"], "c": [PURGE, "rollback"]},
    purge_setup,
    purge_check,
    {"purged": 200, "lock waits": 60},
)

BUSINESS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        RECEIVE_DIFFERS,
        RECEIVE_OTHER_UNDONE,
        INBOX_EXPIRY,
        HANDED_OVER,
        REVIVAL,
        four_deliveries("", worker("a"), {}),
        four_deliveries("-crash-claimed", crashed("a"), {"left over": 20}),
        four_deliveries("-crash-inside", worker("a", ("rollback", "commit")), {"left over": 20}),
        four_deliveries("-unheard", unheard("a"), {"replayed": 20}),
        APPROVE_CANCEL,
        CREATIONS,
        CORRECTIONS,
        REVISIONS,
        ONE_USE,
        ISSUES,
        USES,
        BOUNDED_USES,
        SAME_USAGE,
        GRANT_REFUND,
        REFUND_USE,
        ISSUE_ENDS,
        ENDS,
        DEVICES,
        PROVIDER,
        ORDERS,
        REPAIRS,
        HEARTBEAT,
        SAME_RUN,
        TWO_RUNS,
        PURGES,
    )
}
