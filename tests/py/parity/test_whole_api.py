"""The simulation equals every server in the whole API, step by step.

As `test_state_machine.py`, with the same variables. Each function must have succeeded in each way,
and have refused for each reason that its comment documents, and for no other.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.py.parity.tour import Tour
from tests.py.parity.whole import WholeMachine
from tests.support.backends import Sessions
from tests.support.counts import emit, scale
from tests.support.databases import server_specs

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = [spec.version for spec in server_specs()]
HISTORIES = scale("PARITY_HISTORIES", 160) // 2
SEED = scale("PARITY_SEED", 20300101)
STEPS = 60
NEVER = {"policy TX400", "finalize_paid TX422"}
"""The only argument of policy is the instance, which the client has checked before; and nobody
else gets to write the id of a grant."""

RECORDED = "recorded already_recorded ended_otherwise claim_lost not_found"
DECIDED = "applied replayed not_found operation_conflict version_conflict forbidden"
SUCCESS = {
    "enqueue": "enqueued duplicate conflict",
    "enqueue_many": "enqueued duplicate conflict none",
    "claim": "some none",
    "record": RECORDED,
    "exchange": f"{RECORDED} some",
    "extend": "extended ended_otherwise claim_lost not_found",
    "redrive": "redriven needs_resolve not_parked delivered not_found",
    "resolve": "recorded already_recorded",
    "expedite": "expedited not_deferred delivered not_found",
    "receive": "received deduplicated revived",
    "inbox_event": "some",
    "inbox_status": "received processing processed failed",
    "register_order": "registered duplicate",
    "record_payment": "true false",
    "finalize_paid": "granted already_granted not_paid no_order replayed",
    "apply_provider_cancel": "ended already_ended no_grant replayed",
    "apply_refund": "refunded already_refunded no_grant replayed",
    "update_subscription": "created updated stale",
    "expire_entitlements": "some none",
    "issue_capability": "issued duplicate",
    "execute_licence": "executed replayed not_found operation_conflict consumed expired not_active"
    " exhausted device_unknown",
    "bind_device": "bound duplicate",
    "list_entitlements": "active cancelled none",
    "list_usage": "some none",
    "list_counters": "some none",
    "list_devices": "some none",
    "list_security_events": "some none",
    "machine_load": "loaded changed unchanged",
    "machine_show": "open",
    "transition": DECIDED,
    "correct": DECIDED,
    "entity_status": "open held",
    "entity_history": "some none",
    "operation_history": "open some",
    "effect_states": "intent_recorded in_progress waiting failed rejected unknown succeeded",
    "overdue": "entity effect none",
    "reconcile": "running clean findings",
    "reconcile_reports": "running clean findings",
    "reconcile_findings": "needs_review repaired none",
    "finding": "counter_drift duplicate_issuance_per_payment failed_or_stuck_outbox overdue_state"
    " paid_no_entitlement refunded_but_valid_entitlement subscription_expired_but_renewed"
    " unpaid_but_entitled unprocessed_inbox_events",
}
"""What a function, and a run of reconciliation, must have answered; of the others, anything."""


@pytest.fixture
def houses(request: pytest.FixtureRequest) -> Iterator[list[Sessions]]:
    made = []
    for version in VERSIONS:
        server = request.getfixturevalue(f"server_{version}")
        template = request.getfixturevalue(f"template_{version}").template_dbname
        made.append(Sessions(server, template))
        request.node.user_properties.append(("postgresql", version))
    yield made
    for house in made:
        house.close()


def documented(house: Sessions) -> dict[str, set[str]]:
    """The SQLSTATEs of each function's comment, but for TX902: nothing here breaks that far."""
    rows = house.admin.execute(
        "select p.proname, obj_description(p.oid, 'pg_proc') from pg_proc p"
        " where p.pronamespace = 'trex'::regnamespace and p.proname !~ '^_'"
    ).fetchall()
    found = {}
    for name, comment in rows:
        errors = re.search(r"^Errors:(.*?)^Locks:", comment, re.DOTALL | re.MULTILINE)
        assert errors is not None, name
        found[name] = set(re.findall(r"TX\d{3}", errors[1])) - {"TX902"}
    del found["schema_state"]
    return found


def unseen(counts: Counter[str], errors: dict[str, set[str]]) -> list[str]:
    """What should have been answered and wasn't, or was answered and isn't documented."""
    wanted = {name: codes | set(SUCCESS.get(name, "").split()) for name, codes in errors.items()}
    wanted["finding"] = set(SUCCESS["finding"].split())
    wrong = []
    for name, answers in wanted.items():
        seen = {key.removeprefix(f"{name} ") for key in counts if key.startswith(f"{name} ")}
        refusals = {word for word in seen if word.startswith("TX")}
        wrong += [
            f"{name}: no {word}" for word in sorted(answers - seen) if f"{name} {word}" not in NEVER
        ]
        wrong += [f"{name}: {word}" for word in sorted(refusals - answers)]
        if refusals == seen:
            wrong.append(f"{name}: no success")
    return wrong


@pytest.mark.criterion("ac-0038")
def test_a_tour(houses: list[Sessions]) -> None:
    counts: Counter[str] = Counter()
    started = time.monotonic()
    type("Everything", (Tour,), {"houses": houses, "counts": counts})().tour()
    emit("parity", {"steps": counts["steps"]}, seconds=time.monotonic() - started)
    assert unseen(counts, documented(houses[0])) == []


@pytest.mark.criterion("ac-0038")
@pytest.mark.timeout(max(300, HISTORIES * 15))
def test_histories_of_hypothesis(houses: list[Sessions]) -> None:
    """Few, for the shrinking: what differs is shown as the fewest calls that show it."""
    counts: Counter[str] = Counter()
    machine = type("Shrunk", (WholeMachine,), {"houses": houses, "counts": counts})
    how = settings(
        max_examples=max(4, HISTORIES // 5), stateful_step_count=STEPS, deadline=None,
        database=None, print_blob=True, report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(seed(SEED)(machine), settings=how)
    assert counts["steps"] > 5 * counts["histories"] > 0


@pytest.mark.criterion("ac-0038")
@pytest.mark.timeout(max(300, HISTORIES * 15))
def test_seeded_histories(houses: list[Sessions]) -> None:
    counts: Counter[str] = Counter()
    machine = type("Whole", (WholeMachine,), {"houses": houses, "counts": counts})
    started = time.monotonic()
    for number in range(HISTORIES):
        rng = random.Random(SEED + number)
        draws = [rng.randbytes(8) for _ in range(STEPS)]
        try:
            machine().play(draws)
        except AssertionError as error:
            error.add_note(f"seed {SEED + number}")
            raise
    kinds = ("steps", "histories", "commits", "rollbacks", "twisted odd", "twisted foreign")
    seen = {name: counts[name] for name in (*kinds, "twisted standby")}
    emit("parity", seen, seconds=time.monotonic() - started, seed=SEED)
    assert HISTORIES < 20 or all(seen.values())
    assert counts["steps"] > STEPS * HISTORIES // 2


def test_a_silent_function_is_found(houses: list[Sessions]) -> None:
    errors = documented(houses[0])
    assert errors["receive"] == {"TX400", "TX403", "TX503"}
    seen = Counter({f"receive {word}": 1 for word in ("received", "TX400", "TX403", "TX412")})
    wrong = unseen(seen, {"receive": errors["receive"]})
    assert {
        "receive: no TX503", "receive: no revived", "receive: TX412", "finding: no success"
    } <= set(wrong)  # fmt: skip
