"""Machines are data: the full table of states and events, cell by cell, forbidden ones first."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from tests.support.backends import WHO
from trex_client.errors import (
    AccessDenied,
    Forbidden,
    InvalidArgument,
    KeyReused,
    NotFound,
    NotPrimary,
    VersionConflict,
)

pytestmark = pytest.mark.criterion("ac-0057")

ROOT = Path(__file__).resolve().parents[3]
ORDER = json.loads((ROOT / "examples/machines/order.json").read_text(encoding="utf-8"))
STATES = ["", *ORDER["states"]]
EVENTS = sorted({step["event"] for step in ORDER["transitions"]})
STEPS = {(step.get("from") or "", step["event"]): step for step in ORDER["transitions"]}
FORBIDDEN = [(s, e) for s in STATES for e in EVENTS if (s, e) not in STEPS]
ROUTES = {
    "": [],
    "placed": ["place"],
    "approved": ["place", "approve"],
    "shipped": ["place", "approve", "ship"],
    "delivered": ["place", "approve", "ship", "arrive"],
    "return_requested": ["place", "approve", "ship", "cancel"],
    "returned": ["place", "approve", "ship", "cancel", "receive_return"],
    "cancelled": ["place", "cancel"],
}


@pytest.fixture
def shop(backend):
    client = backend.register("shop")
    assert client.machine_load("order", ORDER, **WHO) == "loaded"
    return client


def step(client, event, version, state="", operation=None, **given):
    """Apply one event with a role and an amount that its step allows, unless given."""
    allowed = STEPS.get((state, event), {"roles": ["buyer"]})
    given.setdefault("role", allowed["roles"][0])
    if "amount_min" in allowed or "amount_max" in allowed:
        given.setdefault("amount", Decimal(allowed.get("amount_min", "10")))
    return client.transition(
        "order", given.pop("entity", "o1"), event, version, operation or f"{event}-{version}",
        actor="ann", reason="test", **given,
    )  # fmt: skip


def drive(client, state, entity="o1"):
    """Bring an order into a state; return its version."""
    now = ""
    for version, event in enumerate(ROUTES[state]):
        done = step(client, event, version, now, f"{entity}:{event}:{version}", entity=entity)
        assert done.status == "applied"
        now = done.state
    return len(ROUTES[state])


def test_the_table_has_every_cell(shop):
    cells = {(c.state, c.event): c for c in shop.machine_show("order")}
    assert set(cells) == {(s, e) for s in STATES for e in EVENTS}
    assert {key for key, cell in cells.items() if cell.to_state is None} == set(FORBIDDEN)
    for key, allowed in STEPS.items():
        cell = cells[key]
        assert (cell.to_state, cell.roles) == (allowed["to"], allowed["roles"])
        assert cell.topic == allowed.get("topic")
        assert cell.amount_min == (
            Decimal(allowed["amount_min"]) if "amount_min" in allowed else None
        )
    assert cells["placed", "cancel"].owner == "sales"
    assert cells["cancelled", "cancel"].final


def test_every_forbidden_cell_changes_nothing(backend, shop):
    versions = {state: drive(shop, state, f"in-{state}") for state in STATES}
    before = backend.dump()
    for number, (state, event) in enumerate(FORBIDDEN):
        entity, version = f"in-{state}", versions[state]
        with pytest.raises(Forbidden):
            step(shop, event, version, state, f"no-{number}", entity=entity, amount=Decimal(5))
        told = step(
            shop, event, version, state, f"no-{number}", entity=entity, amount=Decimal(5),
            on_refused="report",
        )  # fmt: skip
        assert told.status == "forbidden"
        assert (told.state or "", told.version or 0) == (state, version)
        assert (told.message_id, told.done_at) == (None, None)
    assert backend.dump() == before
    assert len(FORBIDDEN) == len(STATES) * len(EVENTS) - len(STEPS) >= 50


@pytest.mark.parametrize(("state", "event"), list(STEPS))
def test_every_allowed_cell_moves_once_and_leaves_its_rows(backend, shop, state, event):
    version = drive(shop, state)
    before = backend.dump()
    allowed = STEPS[state, event]
    done = step(shop, event, version, state, "this")
    assert (done.status, done.state, done.version) == ("applied", allowed["to"], version + 1)
    entity = backend.row("entity")
    assert (entity["state"], entity["version"]) == (allowed["to"], version + 1)
    assert entity["operation_id"] == "this"
    operation = backend.row("operation", operation_id="this")
    assert (operation["from_state"], operation["to_state"]) == (state, allowed["to"])
    assert (operation["actor"], operation["role"]) == ("ann", allowed["roles"][0])
    audit = backend.rows("audit", action="transition")[-1]
    assert (audit["actor"], audit["reason"]) == ("ann", "test")
    assert json.loads(audit["detail"])["operation_id"] == "this"
    after = backend.dump()
    grown = {name: len(after[name]) - len(before[name]) for name in after}
    sent = int("topic" in allowed)
    expected = {"operation": 1, "audit": 1, "message": sent, "delivery": sent}
    if state == "":
        expected["entity"] = 1
    assert {name: n for name, n in grown.items() if n} == {k: n for k, n in expected.items() if n}
    if sent:
        message = backend.row("message", message_id=done.message_id)
        assert (message["topic"], message["correlation_id"]) == (allowed["topic"], "o1")
        assert message["effect_policy"] == allowed.get("effect_policy", "idempotent")
        assert json.loads(message["payload"])["state"] == allowed["to"]
    # The answer was lost: the same intent again, even with an old version.
    for seen in (version, version + 1, 0):
        again = step(shop, event, seen, state, "this")
        assert again.status == "replayed"
        assert again == done.__class__(**{**_fields(done), "status": "replayed"})
    assert backend.dump() == after


def _fields(value):
    return {name: getattr(value, name) for name in value.__slots__}


def test_a_cancel_after_shipping_only_becomes_a_return(shop):
    version = drive(shop, "shipped")
    done = step(shop, "cancel", version, "shipped")
    assert done.state == "return_requested"
    assert not shop.entity_status("order", "o1").final
    done = step(shop, "receive_return", done.version, done.state)
    assert (done.state, shop.entity_status("order", "o1").final) == ("returned", True)


def test_the_order_of_checks(backend, shop):
    drive(shop, "placed")

    def report(*args, **given):
        return step(shop, *args, on_refused="report", **given).status

    # not_found before anything else
    assert report("approve", 1, "placed", "place-0", entity="other") == "not_found"
    assert (
        shop.transition(
            "none", "o1", "place", 0, "x", actor="a", role="r", reason="r", on_refused="report"
        ).status
        == "not_found"
    )
    # an operation id is looked up before the version
    step(shop, "approve", 1, "placed", "op", amount=5)
    assert report("approve", 1, "placed", "op", amount=5) == "replayed"
    assert report("approve", 1, "placed", "op", amount=Decimal("5.00")) == "replayed"
    assert report("approve", 9, "placed", "op", amount=6) == "operation_conflict"
    assert report("cancel", 2, "approved", "op") == "operation_conflict"
    # the version before what is forbidden
    assert report("place", 1, "", "new") == "version_conflict"
    assert report("place", 2, "", "new") == "forbidden"
    # replays are known whatever has happened since
    step(shop, "cancel", 2, "approved", "later")
    assert report("approve", 1, "placed", "op", amount=5) == "replayed"


@pytest.mark.parametrize(
    ("error", "event", "version", "operation"),
    [
        (NotFound, "approve", 1, "new"),
        (KeyReused, "cancel", 1, "o1:place:0"),
        (VersionConflict, "cancel", 0, "new"),
        (VersionConflict, "cancel", 2, "new"),
        (Forbidden, "ship", 1, "new"),
    ],
)
def test_refusals_raise_and_change_nothing(backend, shop, error, event, version, operation):
    drive(shop, "placed")
    entity = "other" if error is NotFound else "o1"
    before = backend.dump()
    with pytest.raises(error):
        step(shop, event, version, "placed", operation, entity=entity)
    assert backend.dump() == before


def test_roles_and_amounts_are_guarded(shop):
    drive(shop, "placed")

    def tried(event, role, amount=None):
        return step(
            shop, event, 1, "placed", "x", role=role, amount=amount, on_refused="report"
        ).status

    assert tried("approve", "manager", 10) == "forbidden"
    assert tried("approve", "clerk", Decimal("1000.01")) == "forbidden"
    assert tried("approve", "clerk") == "forbidden"
    assert tried("approve_large", "manager", Decimal(1000)) == "forbidden"
    assert tried("approve_large", "clerk", 2000) == "forbidden"
    assert tried("approve", "clerk", Decimal("1000.000")) == "applied"


def test_versions_and_deadlines(backend, shop):
    drive(shop, "placed")
    status = shop.entity_status("order", "o1")
    assert (status.state, status.version, status.owner) == ("placed", 1, "sales")
    assert status.next_action == "approve or cancel"
    assert (status.deadline - status.since).total_seconds() == 86400
    assert shop.overdue() == []
    backend.advance(86400)
    assert shop.overdue() == []
    backend.advance(1)
    (late,) = shop.overdue()
    assert (late.source, late.machine, late.entity) == ("entity", "order", "o1")
    assert (late.state, late.owner, late.alert) == ("placed", "sales", "order.not_decided")
    step(shop, "cancel", 1, "placed")
    assert shop.overdue() == []
    with pytest.raises(NotFound):
        shop.entity_status("order", "o2")


def test_the_history_is_every_step(shop):
    drive(shop, "delivered")
    steps = shop.entity_history("order", "o1")
    assert [s.version for s in steps] == [1, 2, 3, 4]
    assert [s.to_state for s in steps] == ["placed", "approved", "shipped", "delivered"]
    assert steps[0].amount == Decimal("0.01")
    assert shop.entity_history("order", "o1", limit=2, after=1) == steps[1:3]
    assert shop.entity_history("order", "nobody") == []


def test_a_transition_is_part_of_the_callers_transaction(backend, shop):
    version = drive(shop, "approved")

    def ship_and_fail():
        with backend.transaction(shop):
            step(shop, "ship", version, "approved")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ship_and_fail()
    assert backend.rows("message") == []
    assert shop.entity_status("order", "o1").state == "approved"


def test_amounts_and_arguments_are_kept_exactly(backend, shop):
    done = step(
        shop, "place", 0, "", amount=Decimal("12345678901234567890.000000000000000001"),
        arguments={"b": [1, Decimal("1.50"), None], "a": "é"},
    )  # fmt: skip
    assert done.status == "applied"
    row = backend.row("operation")
    assert row["amount"] == "12345678901234567890.000000000000000001"
    assert row["arguments"] == '{"a": "é", "b": [1, 1.50, null]}'
    again = step(
        shop, "place", 0, "", amount=Decimal("12345678901234567890.0000000000000000010"),
        arguments={"a": "é", "b": [1, Decimal("1.50"), None]},
    )  # fmt: skip
    assert again.status == "replayed"
    with pytest.raises(KeyReused):
        step(shop, "place", 0, "", amount=1, arguments={"a": "é"})


@pytest.mark.parametrize(
    "given",
    [
        {"machine": ""}, {"machine": "Order"}, {"machine": None}, {"entity": ""}, {"entity": " x"},
        {"event": "Place"}, {"event": ""}, {"expected_version": -1}, {"expected_version": None},
        {"operation_id": ""}, {"operation_id": None}, {"actor": ""}, {"role": ""}, {"role": "A"},
        {"reason": " "}, {"amount": Decimal("NaN")}, {"amount": Decimal("1e20")},
        {"amount": Decimal("1e-19")}, {"amount": 1.5}, {"arguments": []}, {"arguments": "x"},
        {"arguments": {"x": "y" * 200}}, {"on_refused": "ignore"},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_arguments(backend, given):
    shop = backend.register("shop", payload_max=64)
    call = {
        "machine": "order", "entity": "o1", "event": "place", "expected_version": 0,
        "operation_id": "x", "actor": "a", "role": "buyer", "reason": "r",
    } | given  # fmt: skip
    with pytest.raises(InvalidArgument):
        shop.transition(**call)


def test_strangers_and_standbys(backend, shop):
    stranger = backend.client("shop", "stranger")
    for call in (
        lambda: step(stranger, "place", 0),
        lambda: stranger.machine_load("m", ORDER, **WHO),
        lambda: stranger.machine_show("order"),
        lambda: stranger.entity_status("order", "o1"),
        lambda: stranger.entity_history("order", "o1"),
        lambda: stranger.correct(
            "a", "b", "k", 1, 0, actor="a", role="r", reason="r", evidence="e"
        ),
        lambda: stranger.operation_history("a"),
        lambda: stranger.effect_states(),
        lambda: stranger.overdue(),
    ):
        with pytest.raises(AccessDenied):
            call()
    drive(shop, "placed")
    other = backend.register("other")
    with pytest.raises(NotFound):
        other.machine_show("order")
    with pytest.raises(NotFound):
        other.entity_status("order", "o1")
    with backend.read_only(), pytest.raises(NotPrimary):
        step(shop, "cancel", 1, "placed")


# Loading.


def test_a_changed_machine_is_a_new_revision(backend, shop):
    assert shop.machine_load("order", ORDER, **WHO) == "unchanged"
    assert shop.machine_load("order", definition_json=json.dumps(ORDER), **WHO) == "unchanged"
    drive(shop, "placed")
    more = json.loads(json.dumps(ORDER))
    more["states"]["lost"] = {"owner": "carrier"}
    more["transitions"].append({"from": "placed", "event": "lose", "to": "lost"})
    assert shop.machine_load("order", more, **WHO) == "changed"
    assert {cell.revision for cell in shop.machine_show("order")} == {2}
    done = shop.transition(
        "order", "o1", "lose", 1, "x", actor="a", role="anybody", reason="r", arguments={}
    )
    assert done.state == "lost"
    before = backend.dump()
    with pytest.raises(Forbidden):
        shop.machine_load("order", ORDER, **WHO)
    assert backend.dump() == before
    assert len(backend.rows("audit", action="machine_load")) == 2


PLACE = {"event": "e", "to": "a"}


def changed(**change):
    definition = json.loads(json.dumps(ORDER))
    definition["transitions"][0] = {"event": "place", "to": "placed", **change}
    return definition


@pytest.mark.parametrize(
    "definition",
    [
        [],
        {},
        {"states": {}, "transitions": []},
        {"states": {"a": {}}, "transitions": []},
        {"states": {}, "transitions": [PLACE]},
        {"states": [], "transitions": [PLACE]},
        {"states": {"a": {}}, "transitions": {"event": "e", "to": "a"}},
        {"states": {"a": {}}, "transitions": [PLACE], "more": 1},
        {"states": {"A": {}}, "transitions": [{"event": "e", "to": "A"}]},
        {"states": {"": {}}, "transitions": [{"event": "e", "to": ""}]},
        {"states": {"a": []}, "transitions": [PLACE]},
        {"states": {"a": {"x": 1}}, "transitions": [PLACE]},
        {"states": {"a": {"owner": ""}}, "transitions": [PLACE]},
        {"states": {"a": {"owner": None}}, "transitions": [PLACE]},
        {"states": {"a": {"alert": "A"}}, "transitions": [PLACE]},
        {"states": {"a": {"longest_stay": 0}}, "transitions": [PLACE]},
        {"states": {"a": {"longest_stay": "1"}}, "transitions": [PLACE]},
        {
            "states": {"a": {"longest_stay": Decimal("1.5")}},
            "transitions": [PLACE],
        },
        {"states": {"a": {"final": "yes"}}, "transitions": [PLACE]},
        {"states": {"a": {"final": True}}, "transitions": [{"from": "a", "event": "e", "to": "a"}]},
        {
            "states": {"a": {}},
            "transitions": [PLACE, PLACE],
        },
        {"states": {"a": {}}, "transitions": [1]},
        {"states": {"a": {}}, "transitions": [{"event": "e"}]},
        {"states": {"a": {}}, "transitions": [{"to": "a"}]},
        {"states": {"a": {}}, "transitions": [{"event": "e", "to": None}]},
        changed(to="nowhere"),
        changed(**{"from": "nowhere"}),
        changed(event="E"),
        changed(event=1),
        changed(roles="buyer"),
        changed(roles=[1]),
        changed(roles=["A"]),
        changed(roles=[[]]),
        changed(amount_min="x"),
        changed(amount_min="1e3"),
        changed(amount_min=True),
        changed(amount_min="2", amount_max="1"),
        changed(topic=""),
        changed(topic=None),
        changed(effect_policy="twice"),
        changed(more=1),
    ],
    ids=lambda d: re.sub("[^a-zA-Z0-9]+", "-", str(d))[-60:],
)
def test_malformed_definitions_are_refused(backend, definition):
    shop = backend.register("shop")
    with pytest.raises(InvalidArgument):
        shop.machine_load("order", definition, **WHO)
    assert backend.rows("machine") == []


@pytest.mark.parametrize(
    ("states", "steps", "fine"),
    [(100, 1000, True), (101, 1000, False), (100, 1001, False), (1, 0, False)],
)
def test_how_large_a_machine_may_be(backend, states, steps, fine):
    shop = backend.register("shop")
    definition = {
        "states": {f"s{number}": {} for number in range(states)},
        "transitions": [
            {"from": f"s{number % states}", "event": f"e{number}", "to": "s0"}
            for number in range(steps)
        ],
    }
    if fine:
        assert shop.machine_load("large", definition, **WHO) == "loaded"
    else:
        with pytest.raises(InvalidArgument, match="definition"):
            shop.machine_load("large", definition, **WHO)


def test_amount_bounds_may_be_numbers(shop):
    definition = {
        "states": {"a": {}},
        "transitions": [
            {"event": "e", "to": "a", "amount_min": -5, "amount_max": Decimal("7.50"), "roles": []}
        ],
    }
    assert shop.machine_load("m", definition, **WHO) == "loaded"
    cell = next(c for c in shop.machine_show("m") if c.to_state)
    assert (cell.amount_min, cell.amount_max) == (Decimal(-5), Decimal("7.5"))


# What only a server shows.


def test_of_concurrent_events_one_wins_and_the_other_reads_again(postgres):
    postgres.uncompared()
    first = postgres.register("shop")
    first.machine_load("order", ORDER, **WHO)
    second = postgres.client("shop")
    statuses = []
    for number in range(20):
        entity = f"o{number}"
        drive(first, "placed", entity)
        barrier = threading.Barrier(2)

        def approve(entity=entity, barrier=barrier):
            barrier.wait()
            statuses.append(
                step(
                    first, "approve", 1, "placed", f"a-{entity}", entity=entity, amount=5,
                    on_refused="report",
                ).status
            )  # fmt: skip

        def cancel(entity=entity, barrier=barrier):
            barrier.wait()
            statuses.append(
                step(
                    second, "cancel", 1, "placed", f"c-{entity}", entity=entity,
                    on_refused="report",
                ).status
            )  # fmt: skip

        threads = [threading.Thread(target=approve), threading.Thread(target=cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(statuses) == ["applied"] * 20 + ["version_conflict"] * 20
    for number in range(20):
        steps = first.entity_history("order", f"o{number}")
        assert [s.version for s in steps] == [1, 2]


@pytest.mark.parametrize("same_operation", [True, False])
def test_an_entity_is_created_once(postgres, same_operation):
    postgres.uncompared()
    clients = [postgres.register("shop")]
    clients[0].machine_load("order", ORDER, **WHO)
    clients += [postgres.client("shop") for _ in range(5)]
    results = []
    for number in range(10):
        barrier = threading.Barrier(len(clients))

        def place(index, client, number=number, barrier=barrier):
            barrier.wait()
            operation = f"op-{number}" if same_operation else f"op-{number}-{index}"
            results.append(
                step(
                    client, "place", 0, "", operation, entity=f"o{number}", on_refused="report"
                ).status
            )

        threads = [threading.Thread(target=place, args=pair) for pair in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lost = "replayed" if same_operation else "version_conflict"
    assert sorted(results) == sorted(["applied"] * 10 + [lost] * 50)
    assert len(postgres.rows("entity")) == len(postgres.rows("operation")) == 10


@pytest.mark.parametrize("sends", [False, True])
def test_one_operation_id_on_two_entities_at_once_is_a_conflict(postgres, sends):
    postgres.uncompared()
    clients = [postgres.register("shop"), postgres.client("shop")]
    clients[0].machine_load("order", ORDER, **WHO)
    results = []
    for number in range(20):
        before = "approved" if sends else ""
        event = "ship" if sends else "place"
        versions = [drive(clients[0], before, f"o{number}-{index}") for index in range(2)]
        barrier = threading.Barrier(2)

        def move(
            index, client, number=number, barrier=barrier, event=event, before=before, old=versions
        ):
            barrier.wait()
            results.append(
                step(
                    client, event, old[index], before, f"op-{number}",
                    entity=f"o{number}-{index}", on_refused="report",
                ).status
            )  # fmt: skip

        threads = [threading.Thread(target=move, args=pair) for pair in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == ["applied"] * 20 + ["operation_conflict"] * 20
    done = [row for row in postgres.rows("operation") if row["operation_id"].startswith("op-")]
    assert len(done) == 20
    assert len(postgres.rows("message")) == 20 * sends


def test_a_movement_whose_key_is_taken_is_a_conflict(backend, shop):
    version = drive(shop, "approved")
    key = "operation:" + hashlib.sha256(b"op-s").hexdigest()
    shop.enqueue("elsewhere", key, {})
    told = step(shop, "ship", version, "approved", "op-s", on_refused="report")
    assert (told.status, told.state, told.version) == ("operation_conflict", "approved", version)
    with pytest.raises(KeyReused):
        step(shop, "ship", version, "approved", "op-s")
    assert [row["operation_id"] for row in backend.rows("operation")].count("op-s") == 0
    assert len(backend.rows("message")) == 1


FACTS = ("machine", "machine_state", "machine_transition", "operation", "adjustment")


def test_the_facts_of_operations_are_guarded(postgres):
    shop = postgres.register("shop")
    shop.machine_load("order", ORDER, **WHO)
    drive(shop, "placed")
    shop.correct("o1:place:0", "c", "k", 1, 0, actor="a", role="r", reason="r", evidence="e")
    for statement, code in [
        *(
            (f"{verb} trex.{table}{rest}", "TX901")
            for table in FACTS
            for verb, rest in (
                ("update", " set instance_key = instance_key"),
                ("delete from", ""),
                ("truncate", ""),
            )
        ),
        ("delete from trex.entity", "TX901"),
        ("truncate trex.entity", "TX901"),
        ("update trex.entity set state = 'approved'", "TX902"),
        ("update trex.entity set version = version + 2, operation_id = 'x'", "TX902"),
        ("update trex.entity set version = version + 1", "TX902"),
        (("update trex.entity set version = version + 1, operation_id = 'x', entity = 'y'"
            f" where instance_key = '{shop.instance_key}'"), "TX902"),
    ]:  # fmt: skip
        for role in ("origin", "replica"):
            postgres.admin.execute(f"set session_replication_role = {role}")
            with pytest.raises(psycopg.Error) as caught:
                postgres.admin.execute(statement)
            postgres.admin.execute("reset session_replication_role")
            assert caught.value.sqlstate == code, statement
