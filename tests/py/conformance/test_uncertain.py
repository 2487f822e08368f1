"""What becomes of a claim that ends without a delivery, for every policy, history and outcome."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

import pytest

from tests.support.backends import WHO
from trex_client.errors import EndedOtherwise, Forbidden
from trex_client.model import EFFECT_POLICIES, Report, Resolution

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0033"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)
KINDS = (
    "retry", "retry absent", "unknown", "unknown park", "conflict", "permanent", "permanent absent",
    "dead_letter", "dead_letter absent", "released", "released absent", "postponed",
    "postponed absent", "lease_expired",
)  # fmt: skip


def expected(
    kind: str, policy: str, uncertain: bool, sent: bool, last: bool
) -> tuple[str | None, bool]:
    """The rule as the design has it, said once more: (how it is parked, uncertain)."""
    kind, _, more = kind.partition(" ")
    absent = more == "absent"
    once = policy == "at_most_once"
    # Uncertain is sticky: an answer of certain absence clears it, or the sink's own conflict.
    now = uncertain and not absent
    if kind == "unknown":
        now = True
    if kind == "conflict":
        return "conflict", False
    if kind == "lease_expired":
        now = uncertain or not once or sent
    called = once and sent and kind in ("retry", "released", "postponed")
    now = now or (called and not absent)
    # A sink that takes a call at most once: nobody may send again.
    if once and now:
        return "unknown", True
    if kind == "permanent":
        return "permanent", now
    if kind == "dead_letter" or called:
        return ("unknown" if now else "dead_letter"), now
    if more == "park":
        return "unknown", True
    if last and kind in ("retry", "unknown", "lease_expired"):
        return ("unknown" if now else "dead_letter"), now
    return None, now


# An uncertain at_most_once message is parked, so never claimed again.
CASES = [
    (policy, *flags)
    for policy in EFFECT_POLICIES
    for flags in itertools.product((False, True), repeat=3)
    if not (policy == "at_most_once" and flags[0])
]


@pytest.mark.parametrize(("policy", "uncertain", "sent", "last"), CASES)
def test_every_end_of_every_history(
    backend: Backend, policy: Any, uncertain: bool, sent: bool, last: bool
) -> None:
    shop = backend.register("shop", max_attempts=(2 if uncertain else 1) if last else 9)
    for number, _ in enumerate(KINDS):
        shop.enqueue("t", f"k{number}", {}, effect_policy=policy)
    if uncertain:
        for claim in shop.claim("w", 99):
            shop.mark_unknown(claim.message_id, claim.fence)
        backend.advance(3600)
    claims = shop.claim("w", 99, lease=SECOND)
    assert len(claims) == len(KINDS)
    assert {c.uncertain for c in claims} == {uncertain}
    claims.sort(key=lambda c: c.message_id)
    for claim, kind in zip(claims, KINDS, strict=True):
        if sent:
            shop.mark_sent(claim.message_id, claim.fence)
        name, _, more = kind.partition(" ")
        if name != "lease_expired":
            (answer,) = shop.record(
                [
                    Report(
                        claim.message_id, claim.fence, name,  # type: ignore[arg-type]
                        absent=more == "absent", park=more == "park",
                        delay=SECOND if name == "postponed" else None,
                    )
                ]
            )  # fmt: skip
            assert answer.status == "recorded"
    backend.advance(1)
    shop.claim("v", 1, correlation_id="nobody")
    before = {c.message_id: c for c in claims}
    # The lease of the last one has ended; a claim that finds it settles it.
    taken = {c.message_id: c for c in shop.claim("v", 99)}
    got, wanted = {}, {}
    for message_id, kind in enumerate(KINDS, 1):
        row = backend.row("delivery", message_id=message_id)
        parked, now = expected(kind, policy, uncertain, sent, last)
        wanted[kind] = (parked, now)
        got[kind] = (row["parked"], row["uncertain"])
        if message_id in taken:
            assert parked is None
            assert taken[message_id].uncertain is now
            assert taken[message_id].attempt == before[message_id].attempt + 1
        if parked is not None:
            (skip,) = backend.rows("ledger_skip", message_id=message_id)
            assert (skip["parked"], skip["resolved_at"]) == (parked, None)
    assert got == wanted


def test_a_lookup_that_found_nothing_makes_it_certain_again(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {}, effect_policy="lookup")
    (claim,) = shop.claim("w")
    assert shop.mark_unknown(1, claim.fence, reason="timeout").state == "deferred"
    backend.advance(10)
    (claim,) = shop.claim("w")
    assert claim.uncertain
    shop.retry(1, claim.fence, reason="lookup_absent", absent=True)
    assert backend.row("delivery")["uncertain"] is False
    backend.advance(10)
    (claim,) = shop.claim("w")
    assert not claim.uncertain
    # The third try was the last one, and nothing reached the ledger for certain.
    assert shop.retry(1, claim.fence).state == "dead_letter"


def test_an_uncertain_message_is_never_called_failed(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    for _ in range(3):
        (claim,) = shop.claim("w")
        state = shop.mark_unknown(1, claim.fence, reason="timeout").state
        backend.advance(3600)
        assert state in ("deferred", "unknown")
    assert shop.status(1).state == "unknown"
    assert shop.status(1).uncertain
    assert shop.claim("w") == []


@pytest.mark.criterion("ac-0034")
@pytest.mark.parametrize("how", ["unknown", "conflict"])
@pytest.mark.parametrize("resolution", get_args(Resolution))
def test_only_resolve_leaves_unknown_and_conflict(
    backend: Backend, shop: Trex, how: str, resolution: Any
) -> None:
    shop.enqueue("t", "k", {}, effect_policy="at_most_once", account="a", currency="USD",
                 cash_delta=1)  # fmt: skip
    (claim,) = shop.claim("w")
    if how == "unknown":
        assert shop.mark_unknown(1, claim.fence).state == "unknown"
    else:
        assert shop.conflict(1, claim.fence).state == "conflict"
    before = backend.dump()
    backend.advance(timedelta(days=100))
    assert shop.claim("w") == []
    assert [o.status for o in shop.redrive([1], **WHO)] == ["needs_resolve"]
    assert [o.status for o in shop.expedite([1], **WHO)] == ["not_deferred"]
    assert backend.dump() == before
    now = backend.now()
    answer = shop.resolve(1, resolution, evidence="seen in the ledger", **WHO)
    assert (answer.message_id, answer.fence, answer.status) == (1, claim.fence, "recorded")
    skip = backend.row("ledger_skip")
    if resolution == "delivered":
        assert answer.state == "delivered"
        receipt = backend.row("receipt")
        assert (receipt["fence"], receipt["attempt"]) == (claim.fence, 1)
        assert (receipt["confirmed_by"], receipt["duplicate"]) == ("operator", False)
        assert skip["resolved_fence"] == claim.fence
        again = shop.resolve(1, "delivered", evidence="again", **WHO)
        assert (again.status, again.state) == ("already_recorded", "delivered")
        with pytest.raises(EndedOtherwise):
            shop.resolve(1, "resend", evidence="again", **WHO)
    elif resolution == "resend":
        assert (answer.state, answer.due_at) == ("ready", now)
        row = backend.row("delivery")
        assert (row["tries"], row["attempts"], row["uncertain"]) == (0, 1, False)
        # The skip stays open until the movement is delivered.
        assert skip["resolved_at"] is None
        (claim,) = shop.claim("w")
        assert (claim.attempt, claim.tries) == (2, 1)
        shop.complete(1, claim.fence)
        assert backend.row("ledger_skip")["resolved_fence"] == claim.fence
    else:
        assert answer.state == "permanent"
        assert (skip["parked"], skip["reason"]) == ("permanent", "operator")
        again = shop.resolve(1, resolution, evidence="again", **WHO)
        assert (again.status, again.state) == ("already_recorded", "permanent")
        if how == "conflict" or resolution == "absent":
            (cash,) = shop.pending_cash_delta()
            assert [cash.pending, cash.uncertain, cash.skipped] == [0, 0, 1]
            with pytest.raises(Forbidden):
                shop.resolve(1, "resend", evidence="again", **WHO)
            assert [o.status for o in shop.redrive([1], **WHO)] == ["redriven"]
        else:
            # Given up, and still in doubt: somebody must look before it is sent again.
            (cash,) = shop.pending_cash_delta()
            assert [cash.pending, cash.uncertain, cash.skipped] == [0, 1, 0]
            assert [o.status for o in shop.redrive([1], **WHO)] == ["needs_resolve"]
            assert shop.claim("w") == []
            assert shop.resolve(1, "resend", evidence="looked", **WHO).state == "ready"
            row = backend.row("delivery")
            assert (row["abandoned"], row["uncertain"]) == (False, False)
            assert len(shop.claim("w")) == 1
    audits = [(a["action"], a["message_id"], a["actor"]) for a in backend.rows("audit")]
    assert ("resolve", 1, "test") in audits


@pytest.mark.criterion("ac-0034")
@pytest.mark.parametrize("policy", ["idempotent", "lookup"])
def test_an_abandoned_message_comes_back_as_uncertain_as_it_was(
    backend: Backend, shop: Trex, policy: Any
) -> None:
    shop.enqueue("t", "k", {}, effect_policy=policy)
    (claim,) = shop.claim("w")
    assert shop.mark_unknown(1, claim.fence, park=True).state == "unknown"
    shop.resolve(1, "abandon", evidence="order cancelled", **WHO)
    assert [row.uncertain for row in shop.list_parked()] == [True]
    assert [o.status for o in shop.redrive([1], **WHO)] == ["redriven"]
    assert [c.uncertain for c in shop.claim("w")] == [True]


@pytest.mark.criterion("ac-0034")
def test_evidence_that_comes_after_giving_up_ends_the_doubt(backend: Backend, shop: Trex) -> None:
    """Given up first, looked at later: it isn't there, and nobody shall send it."""
    shop.enqueue("t", "k", {}, account="a", currency="USD", cash_delta=1)
    shop.mark_unknown(1, shop.claim("w")[0].fence, park=True)
    shop.resolve(1, "abandon", evidence="order cancelled", **WHO)
    assert [row.uncertain for row in shop.pending_cash_delta()] == [1]
    answer = shop.resolve(1, "absent", evidence="on no statement", **WHO)
    assert (answer.status, answer.state) == ("recorded", "permanent")
    (cash,) = shop.pending_cash_delta()
    assert [cash.pending, cash.uncertain, cash.skipped] == [0, 0, 1]
    for again in ("absent", "abandon"):
        said: Any = again
        assert shop.resolve(1, said, evidence="again", **WHO).status == "already_recorded"
    with pytest.raises(Forbidden):
        shop.resolve(1, "resend", evidence="no doubt", **WHO)
    said_so = [json.loads(a["detail"]).get("resolution") for a in backend.rows("audit")]
    assert said_so[-2:] == ["abandon", "absent"]


@pytest.mark.criterion("ac-0034")
def test_resend_is_for_doubt_and_the_rest_for_every_parked_message(
    backend: Backend, shop: Trex
) -> None:
    """Against all that trex knows it may be there: posted by hand, or late."""
    for number in range(1, 6):
        shop.enqueue("t", f"k{number}", {})
    claims = shop.claim("w", 4)
    shop.fail(1, claims[0].fence)
    shop.dead_letter(2, claims[1].fence)
    shop.retry(3, claims[2].fence)
    before = backend.dump()
    for message_id in range(1, 6):
        for resolution in get_args(Resolution):
            if resolution == "resend" or message_id > 2:
                with pytest.raises(Forbidden):
                    shop.resolve(message_id, resolution, evidence="e", **WHO)
    assert backend.dump() == before
    for message_id, giving_up in ((1, "absent"), (2, "abandon")):
        how: Any = giving_up
        assert shop.resolve(message_id, how, evidence="e", **WHO).state == "permanent"
    assert [row.abandoned for row in shop.list_parked()] == [True, True]
    for message_id in (1, 2):
        answer = shop.resolve(message_id, "delivered", evidence="on the statement", **WHO)
        assert (answer.status, answer.state) == ("recorded", "delivered")
    assert [row["confirmed_by"] for row in backend.rows("receipt")] == ["operator", "operator"]
    assert all(row["resolved_at"] for row in backend.rows("ledger_skip"))


@pytest.mark.criterion("ac-0033")
@pytest.mark.parametrize(
    ("resolution", "state"),
    [
        ("delivered", "delivered"), ("resend", "ready"), ("absent", "permanent"),
        ("abandon", "permanent"),
    ],
)  # fmt: skip
def test_evidence_ends_the_doubt_about_a_message_refused_for_good(
    backend: Backend, shop: Trex, resolution: Resolution, state: str
) -> None:
    """An attempt timed out, the next was refused: nobody knows of the first but an operator."""
    message_id = shop.enqueue(
        "t", "k", {}, account="a", currency="USD", cash_delta=1, effect_policy="lookup"
    ).message_id
    shop.mark_unknown(message_id, shop.claim("w")[0].fence, reason="timeout")
    backend.advance(4000)
    shop.fail(message_id, shop.claim("w")[0].fence, reason="rejected")
    assert shop.status(message_id).uncertain
    assert shop.pending_cash_delta()[0].uncertain == 1
    assert shop.resolve(message_id, resolution, evidence="seen", **WHO).state == state
    # What an operator wants says nothing of what the ledger has.
    assert shop.status(message_id).uncertain is (resolution == "abandon")
    assert [row.uncertain for row in shop.pending_cash_delta()] == {
        "delivered": [], "resend": [0], "absent": [0], "abandon": [1]
    }[resolution]  # fmt: skip
