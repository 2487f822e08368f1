"""Effect states are derived from delivery, outcome and receipt, and move as the machine says."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import WHO
from trex_client.errors import InvalidArgument

pytestmark = pytest.mark.criterion("ac-0057")

ROOT = Path(__file__).resolve().parents[3]
MACHINE = json.loads((ROOT / "trex_client/machines/effect.json").read_text(encoding="utf-8"))
STEPS = {(s.get("from") or "", s["event"]): s["to"] for s in MACHINE["transitions"]}


def test_the_shipped_machine_is_one(backend):
    text = (ROOT / "sql/functions/internal/_effect_machine.sql").read_text(encoding="utf-8")
    found = re.search(r"select '(\{.*?\n\})'::jsonb", text, re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == MACHINE
    assert backend.register("shop").machine_load("effect", MACHINE, **WHO) == "loaded"


class World:
    """One message and the events of the machine `effect` as calls."""

    def __init__(self, backend):
        self.backend = backend
        self.shop = backend.register("shop", max_attempts=1000)
        self.shop.enqueue("pay", "k", {})
        self.claimed: Any = None

    def do(self, event):
        id_, fence = (self.claimed.message_id, self.claimed.fence) if self.claimed else (1, 1)
        shop = self.shop
        if event == "claim":
            self.backend.advance(7200)
            (self.claimed,) = shop.claim("w")
        elif event == "lease_expired":
            self.backend.advance(31)
            # Somebody else's claim finds the ended lease, and gives the message back unsent.
            (claimed,) = shop.claim("w")
            shop.release(claimed.message_id, claimed.fence)
        elif event == "postpone":
            shop.postpone(id_, fence, timedelta(hours=1))
        elif event == "mark_unknown":
            shop.mark_unknown(id_, fence)
        elif event == "redrive":
            assert shop.redrive([1], **WHO)[0].status in ("redriven", "not_parked")
        elif event in ("resend", "delivered", "absent", "abandon"):
            shop.resolve(1, event, evidence="e", **WHO)
        else:
            getattr(shop, event)(id_, fence)

    @property
    def effect(self):
        (state,) = self.shop.effect_states()
        return state


ROUTES = {
    "intent_recorded": [],
    "in_progress": ["claim"],
    "waiting": ["claim", "postpone"],
    "failed": ["claim", "retry"],
    "rejected": ["claim", "fail"],
    "unknown": ["claim", "mark_unknown"],
}
SPECIAL = {
    ("failed", "redrive"): ["claim", "dead_letter"],
    ("rejected", "resend"): ["claim", "conflict"],
    ("rejected", "delivered"): ["claim", "conflict"],
    ("rejected", "abandon"): ["claim", "conflict"],
    ("failed", "abandon"): ["claim", "dead_letter"],
    ("rejected", "absent"): ["claim", "conflict"],
    ("failed", "absent"): ["claim", "dead_letter"],
    ("failed", "delivered"): ["claim", "dead_letter"],
}


@pytest.mark.parametrize(("state", "event"), [key for key in STEPS if key[0]])
def test_each_event_leads_where_the_machine_says(backend, state, event):
    world = World(backend)
    for earlier in SPECIAL.get((state, event), ROUTES[state]):
        world.do(earlier)
    assert world.effect.effect == state
    if state == "unknown" and event in ("resend", "delivered", "absent", "abandon"):
        world.do("claim")
        world.shop.mark_unknown(1, world.claimed.fence, park=True)
        assert world.effect.effect == "unknown"
    world.do(event)
    effect = world.effect
    assert effect.effect == STEPS[state, event]
    meaning = MACHINE["states"][effect.effect]
    assert effect.owner == meaning.get("owner")
    assert effect.next_action == meaning.get("next_action")


def test_deadlines_and_overdue(backend):
    world = World(backend)
    shop = world.shop
    start = backend.now()
    assert world.effect.deadline == start + timedelta(hours=1)
    backend.advance(3600)
    assert shop.overdue() == []
    backend.advance(1)
    (late,) = shop.overdue()
    assert (late.source, late.message_id, late.state) == ("effect", 1, "intent_recorded")
    assert late.alert == "effect.not_started"
    world.do("claim")
    assert world.effect.deadline == world.claimed.lease_until
    assert shop.overdue() == []
    backend.advance(31)
    (late,) = shop.overdue()
    assert (late.state, late.alert) == ("in_progress", "effect.lease_ended")


def test_the_overdue_come_by_their_deadlines_and_those_given_up_not_at_all(backend):
    shop = backend.register("shop")
    ids = []
    for number in range(4):
        ids.append(shop.enqueue("t", f"k{number}", {}).message_id)
        backend.advance(60)
    (claim,) = shop.claim("w")
    shop.fail(claim.message_id, claim.fence)
    shop.resolve(claim.message_id, "abandon", evidence="e", **WHO)
    stays = {"open": {"longest_stay": 3600}}
    opened = [{"event": "open", "to": "open", "roles": ["clerk"]}]
    shop.machine_load("case", {"states": stays, "transitions": opened}, **WHO)
    for entity in ("b", "a"):
        shop.transition("case", entity, "open", 0, entity, actor="a", role="clerk", reason="r")
    backend.advance(7200)
    late = shop.overdue()
    by_deadline = sorted(late, key=lambda one: one.deadline)
    assert late == by_deadline
    assert [one.message_id for one in late] == [*ids[1:], None, None]
    assert [one.entity for one in late[-2:]] == ["a", "b"]
    assert shop.overdue(limit=2) == late[:2]


def test_the_stay_in_unknown_is_visible_until_resolved(backend):
    world = World(backend)
    world.do("claim")
    world.shop.mark_unknown(1, world.claimed.fence, park=True, reason="timeout")
    since = backend.now()
    backend.advance(901)
    (late,) = world.shop.overdue()
    assert (late.state, late.since, late.alert) == ("unknown", since, "effect.unknown")
    assert world.effect.reason == "timeout"
    world.do("delivered")
    assert world.shop.overdue() == []
    assert world.effect.effect == "succeeded"


def test_what_was_adopted_is_unknown_from_then_on(backend):
    shop = backend.register("shop")
    quarantined = backend.quarantine("old", "1", payload="{}")
    shop.adopt(quarantined, topic="pay", idempotency_key="k", evidence="seen", **WHO)
    since = backend.now()
    (state,) = shop.effect_states()
    assert (state.effect, state.since) == ("unknown", since)
    assert state.deadline == since + timedelta(minutes=15)
    backend.advance(901)
    (late,) = shop.overdue()
    assert (late.state, late.since) == ("unknown", since)


def test_a_waiting_event_has_a_longest_stay(backend):
    """Postponing spends no allowance and starts no new stay: the day counts from the receipt."""
    shop = backend.register("shop", max_attempts=1)
    shop.receive("stripe", "acct", "evt", "invoice.paid", "in_1", b"{}", {})
    for _ in range(24):
        (claimed,) = shop.claim("w", box="inbox")
        shop.postpone(claimed.message_id, claimed.fence, timedelta(hours=1), reason="no_order")
        assert shop.overdue() == []
        backend.advance(3600)
    backend.advance(1)
    (late,) = shop.overdue()
    assert (late.state, late.alert) == ("waiting", "effect.waits_too_long")
    (state,) = shop.effect_states(box="inbox")
    assert (state.effect, state.reason) == ("waiting", "no_order")


def test_an_instance_may_give_the_states_its_own_meaning(backend):
    world = World(backend)
    own = json.loads(json.dumps(MACHINE))
    own["states"]["intent_recorded"] = {"owner": "night-shift", "longest_stay": 5}
    world.shop.machine_load("effect", own, **WHO)
    assert world.effect.owner == "night-shift"
    backend.advance(6)
    assert [late.owner for late in world.shop.overdue()] == ["night-shift"]


def test_pages_and_filters(backend):
    shop = backend.register("shop")
    for number in range(5):
        shop.enqueue("pay", f"k{number}", {})
    claims = shop.claim("w", 2)
    shop.complete(claims[0].message_id, claims[0].fence)
    assert [s.effect for s in shop.effect_states()] == [
        "succeeded", "in_progress", "intent_recorded", "intent_recorded", "intent_recorded",
    ]  # fmt: skip
    recorded = shop.effect_states("intent_recorded")
    assert shop.effect_states("intent_recorded", limit=1, after=recorded[0].message_id) == [
        recorded[1]
    ]
    assert shop.effect_states(box="inbox") == []
    for bad in ({"effect": "lost"}, {"limit": 0}, {"after": -1}, {"box": "x"}):
        with pytest.raises(InvalidArgument):
            shop.effect_states(**bad)
    with pytest.raises(InvalidArgument):
        shop.overdue(limit=0)


def test_a_cancel_answered_before_a_late_external_success(backend):
    """The reader of the state sees what the books say; the ledger's late answer lands beside it."""
    world = World(backend)
    world.do("claim")
    world.shop.mark_unknown(1, world.claimed.fence, reason="timeout")
    assert (world.effect.effect, world.effect.uncertain) == ("unknown", True)
    backend.advance(7200)
    (again,) = world.shop.claim("w2")
    assert again.uncertain
    # The look-up by the original key finds the posting that nobody had heard of.
    world.shop.complete(1, again.fence, confirmed_by="lookup")
    assert (world.effect.effect, world.effect.uncertain) == ("succeeded", False)
