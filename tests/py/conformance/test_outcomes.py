"""Every outcome: what it stores, that it happens once, and that a lost claim changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import WHO, text
from trex_client.errors import ClaimLost, EndedOtherwise, NotFound
from trex_client.model import RESULTS, Recorded, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.backends import Backend
    from trex_client.api import Trex
    from trex_client.model import Claim

pytestmark = [
    pytest.mark.criterion("ac-0029"),
    pytest.mark.criterion("ac-0032"),
    pytest.mark.criterion("ac-0038"),
]

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

SINGLE: dict[str, Callable[..., Recorded]] = {
    "completed": lambda c, m, f, **k: c.complete(m, f, **k),
    "duplicate": lambda c, m, f, **k: c.complete_duplicate(m, f, **k),
    "retry": lambda c, m, f, **k: c.retry(m, f, **k),
    "unknown": lambda c, m, f, **k: c.mark_unknown(m, f, **k),
    "conflict": lambda c, m, f, **k: c.conflict(m, f, **k),
    "permanent": lambda c, m, f, **k: c.fail(m, f, **k),
    "dead_letter": lambda c, m, f, **k: c.dead_letter(m, f, **k),
    "released": lambda c, m, f, **k: c.release(m, f, **k),
    "postponed": lambda c, m, f, **k: c.postpone(m, f, 5 * SECOND, **k),
}
"""The function for each result."""

STATES = {
    "completed": "delivered",
    "duplicate": "delivered",
    "retry": "deferred",
    "unknown": "deferred",
    "conflict": "conflict",
    "permanent": "permanent",
    "dead_letter": "dead_letter",
    "released": "ready",
    "postponed": "deferred",
}
REASONS = {
    "retry": "unspecified",
    "unknown": "unspecified",
    "conflict": "key_conflict",
    "permanent": "rejected",
    "dead_letter": "unspecified",
    "released": "not_started",
    "postponed": "waiting",
}


def _backoff(
    message_id: int, attempt: int, tries: int, base: timedelta, cap: timedelta
) -> timedelta:
    """base * 2^(tries - 1), capped; the upper half of it is jitter from the ids alone."""
    microsecond = timedelta(microseconds=1)
    full = min((base // microsecond) << min(tries - 1, 30), cap // microsecond)
    half = full // 2
    jitter = ((message_id % 2**31) * 1103515245 + attempt * 12345) % 2**31
    return (full - half + half * (jitter >> 11) // 2**20) * microsecond


def claimed(shop: Trex, key: str = "k", **columns: Any) -> Claim:
    shop.enqueue("t", key, {}, **columns)
    (claim,) = shop.claim("w")
    return claim


def report(claim: Claim, result: Any, **more: Any) -> Report:
    if result == "postponed":
        more.setdefault("delay", 5 * SECOND)
    return Report(claim.message_id, claim.fence, result, **more)


@pytest.mark.parametrize("result", RESULTS)
def test_the_state_after_each_outcome(backend: Backend, shop: Trex, result: str) -> None:
    claim = claimed(shop, account="a", currency="USD", cash_delta=1)
    now = backend.advance(2)
    recorded = SINGLE[result](shop, claim.message_id, claim.fence)
    waits = {
        "retry": _backoff(1, 1, 1, SECOND, HOUR),
        "unknown": _backoff(1, 1, 1, SECOND, HOUR),
        "postponed": 5 * SECOND,
        "released": 0 * SECOND,
    }
    due = now + waits[result] if result in waits else None
    assert recorded == Recorded(1, claim.fence, "recorded", STATES[result], False, due)  # type: ignore[arg-type]
    if result in ("completed", "duplicate"):
        assert backend.rows("delivery") == backend.rows("outcome") == []
        assert backend.rows("receipt") == [
            {
                "instance_key": shop.instance_key,
                "message_id": 1,
                "fence": claim.fence,
                "attempt": 1,
                "duplicate": result == "duplicate",
                "late": False,
                "confirmed_by": "answer",
                "reference": None,
                "delivered_at": text(now),
            }
        ]
        assert backend.rows("ledger_skip") == []
        return
    assert backend.rows("receipt") == []
    assert backend.rows("outcome") == [
        {
            "instance_key": shop.instance_key,
            "message_id": 1,
            "fence": claim.fence,
            "attempt": 1,
            "kind": result,
            "state": STATES[result],
            "reason": REASONS[result],
            "late": False,
            "recorded_at": text(now),
        }
    ]
    row = backend.row("delivery")
    parked = None if STATES[result] in ("deferred", "ready") else STATES[result]
    assert (row["lease_until"], row["worker"], row["parked"]) == (None, None, parked)
    assert (row["fence"], row["attempts"]) == (claim.fence, 1)
    assert row["tries"] == (0 if result in ("released", "postponed") else 1)
    assert row["uncertain"] is (result == "unknown")
    assert row["deferred_until"] == ("infinity" if due is None else text(due))
    skips = [(s["parked"], s["reason"], s["resolved_at"]) for s in backend.rows("ledger_skip")]
    assert skips == ([(parked, REASONS[result], None)] if parked else [])


@pytest.mark.parametrize("result", RESULTS)
def test_the_same_again_changes_nothing_and_says_so(
    backend: Backend, shop: Trex, result: str
) -> None:
    """I15: the answer to a COMMIT was lost, and the call is made once more."""
    claim = claimed(shop)
    first = SINGLE[result](shop, claim.message_id, claim.fence)
    before = backend.dump()
    backend.advance(0.1)
    again = SINGLE[result](shop, claim.message_id, claim.fence)
    assert (again.status, again.state) == ("already_recorded", first.state)
    assert again.due_at == first.due_at
    reported = SINGLE[result](shop, claim.message_id, claim.fence, on_lost="report")
    assert reported == again
    assert shop.record([report(claim, result)]) == [again]
    assert backend.dump() == before


@pytest.mark.parametrize("second", RESULTS)
@pytest.mark.parametrize("first", RESULTS)
def test_a_claim_has_one_end(backend: Backend, shop: Trex, first: str, second: str) -> None:
    if first == second:
        return
    claim = claimed(shop)
    state = SINGLE[first](shop, claim.message_id, claim.fence).state
    before = backend.dump()
    with pytest.raises(EndedOtherwise):
        SINGLE[second](shop, claim.message_id, claim.fence)
    told = SINGLE[second](shop, claim.message_id, claim.fence, on_lost="report")
    assert (told.status, told.state, told.late) == ("ended_otherwise", state, False)
    assert shop.record([report(claim, second)]) == [told]
    assert backend.dump() == before


@pytest.mark.parametrize("result", RESULTS)
def test_a_lost_claim_changes_nothing(backend: Backend, shop: Trex, result: str) -> None:
    """The old worker after a take-over: state, outcomes, attempts, next retry and lease stay."""
    old = claimed(shop, account="a", currency="USD", cash_delta=1)
    backend.advance(30)
    second = backend.client("shop", "second")
    (new,) = second.claim("v")
    before = backend.dump()
    with pytest.raises(ClaimLost):
        SINGLE[result](shop, 1, old.fence)
    told = SINGLE[result](shop, 1, old.fence, on_lost="report")
    assert told == Recorded(1, old.fence, "claim_lost", None, False, None)
    assert shop.record([report(old, result)]) == [told]
    after = backend.dump()
    stale = after.pop("stale_report")
    assert [(row["fence"], row["result"]) for row in stale] == [(old.fence, result)]
    assert before.pop("stale_report") == []
    assert after == before
    # Whatever happens to the new claim, the old one stays lost.
    second.complete(1, new.fence)
    assert shop.record([report(old, result)])[0].status == "claim_lost"
    assert backend.row("receipt")["fence"] == new.fence


@pytest.mark.parametrize("result", RESULTS)
def test_a_late_holder_that_nobody_superseded_may_record(
    backend: Backend, shop: Trex, result: str
) -> None:
    claim = claimed(shop)
    backend.advance(3000)
    recorded = SINGLE[result](shop, 1, claim.fence)
    assert (recorded.status, recorded.state, recorded.late) == ("recorded", STATES[result], True)
    table = "receipt" if STATES[result] == "delivered" else "outcome"
    assert backend.row(table)["late"] is True


@pytest.mark.parametrize("result", RESULTS)
def test_unknown_and_foreign_messages_look_alike(backend: Backend, shop: Trex, result: str) -> None:
    other = backend.register("other")
    claim = claimed(other)
    before = backend.dump()
    for message_id in (claim.message_id, 99):
        with pytest.raises(NotFound):
            SINGLE[result](shop, message_id, claim.fence)
        told = SINGLE[result](shop, message_id, claim.fence, on_lost="report")
        assert told == Recorded(message_id, claim.fence, "not_found", None, False, None)
    assert backend.dump() == before


def test_a_fence_that_was_never_given_out(backend: Backend, shop: Trex) -> None:
    claim = claimed(shop)
    before = backend.dump()
    for fence in (1, claim.fence - 1, claim.fence + 1, 2**63 - 1):
        with pytest.raises(ClaimLost):
            shop.complete(1, fence)
        assert shop.complete(1, fence, on_lost="report").status == "claim_lost"
        assert not shop.report_stale(1, fence, "completed")
    # No evidence of what no worker can have.
    assert backend.dump() == before


def test_the_fence_of_another_message(backend: Backend, shop: Trex) -> None:
    one = claimed(shop, "one")
    two = claimed(shop, "two")
    with pytest.raises(ClaimLost):
        shop.complete(one.message_id, two.fence)
    assert backend.rows("receipt") == backend.rows("stale_report") == []


def test_after_an_expired_claim_was_parked(backend: Backend) -> None:
    shop = backend.register("shop", max_attempts=1)
    claim = claimed(shop)
    backend.advance(30)
    assert shop.claim("v") == []
    with pytest.raises(ClaimLost):
        shop.complete(1, claim.fence)
    assert shop.status(1).state == "unknown"


def test_rollback_takes_the_outcome_back(backend: Backend, shop: Trex) -> None:
    """The business transaction of the worker fails: effect, outcome and skip go together."""
    for number, result in enumerate(RESULTS, 1):
        claim = claimed(shop, f"k{number}")
        before = backend.dump()
        with backend.rolled_back(shop):
            shop.hold(claim.message_id, claim.fence)
            shop.enqueue("effect", f"effect {number}", {})
            assert SINGLE[result](shop, claim.message_id, claim.fence).status == "recorded"
        assert backend.dump() == before
        with backend.transaction(shop):
            shop.enqueue("effect", f"effect {number}", {}, delay=timedelta(days=9))
            assert SINGLE[result](shop, claim.message_id, claim.fence).status == "recorded"
        assert len(backend.rows("message", topic="effect")) == number


def test_a_lost_claim_spoils_the_business_transaction(backend: Backend, shop: Trex) -> None:
    old = claimed(shop)
    backend.advance(30)
    (new,) = shop.claim("v")
    with backend.rolled_back(shop):
        shop.enqueue("effect", "effect", {})
        with pytest.raises(ClaimLost):
            shop.complete(1, old.fence)
    with backend.transaction(shop):
        shop.enqueue("effect", "effect", {})
        shop.complete(1, new.fence)
    assert len(backend.rows("message", topic="effect")) == 1
    # Evidence that rolled back with the transaction is reported by a call of its own.
    assert backend.rows("stale_report") == []
    assert shop.report_stale(1, old.fence, "completed")
    assert not shop.report_stale(1, old.fence, "completed")
    assert shop.report_stale(1, old.fence, "retry")
    assert not shop.report_stale(1, new.fence, "retry")
    with pytest.raises(NotFound):
        shop.report_stale(7, old.fence, "retry")
    assert len(backend.rows("stale_report")) == 2


def test_a_batch_of_every_kind(backend: Backend, shop: Trex) -> None:
    for number in range(1, 15):
        shop.enqueue("t", f"k{number}", {})
    claims = shop.claim("w", 12)
    lost = claims[9]
    shop.complete(claims[10].message_id, claims[10].fence)
    shop.retry(claims[11].message_id, claims[11].fence)
    backend.advance(30)
    (new,) = [c for c in shop.claim("v", 20) if c.message_id == lost.message_id]
    reports = [report(c, r) for c, r in zip(claims, RESULTS, strict=False)]
    # Everything that had no end was taken over.
    assert {r.status for r in shop.record(reports)} == {"claim_lost"}
    current = {row["message_id"]: row["fence"] for row in backend.rows("delivery")}
    mixed = [
        Report(i, current[i], r, delay=SECOND if r == "postponed" else None)
        for i, r in enumerate(RESULTS, 1)
    ]
    mixed += [
        Report(10, lost.fence, "completed"),
        Report(11, claims[10].fence, "completed"),
        Report(12, claims[11].fence, "completed"),
        Report(13, 1, "completed"),
        Report(77, 1, "completed"),
    ]
    answers = shop.record(list(reversed(mixed)))
    assert [(a.message_id, a.status) for a in reversed(answers)] == [
        *((i, "recorded") for i in range(1, 10)),
        (10, "claim_lost"),
        (11, "already_recorded"),
        (12, "ended_otherwise"),
        (13, "claim_lost"),
        (77, "not_found"),
    ]
    # The lease of each had ended without an outcome, so none of them is certain.
    states = {**STATES, "dead_letter": "unknown"}
    assert [a.state for a in reversed(answers)][:9] == [states[r] for r in RESULTS]
    assert shop.complete(10, new.fence).status == "recorded"
    assert shop.record([]) == []


def test_a_batch_records_in_any_order_and_answers_in_the_order_given(
    backend: Backend, shop: Trex
) -> None:
    for number in range(1, 8):
        shop.enqueue("t", f"k{number}", {})
    claims = {c.message_id: c for c in shop.claim("w", 7)}
    order = [4, 7, 1, 6, 2, 5, 3]
    answers = shop.record([Report(i, claims[i].fence, "completed") for i in order])
    assert [a.message_id for a in answers] == order
    assert {a.status for a in answers} == {"recorded"}
    assert len(backend.rows("receipt")) == 7


@pytest.mark.parametrize("delay", [None, 0, 1, 3600])
def test_a_retry_waits_at_least_its_backoff(
    backend: Backend, shop: Trex, delay: int | None
) -> None:
    claim = claimed(shop)
    asked = None if delay is None else delay * SECOND
    recorded = shop.retry(1, claim.fence, delay=asked)
    backoff = _backoff(1, 1, 1, SECOND, HOUR)
    assert recorded.due_at == backend.now() + max(backoff, asked or timedelta(0))


def test_the_backoff_doubles_up_to_its_cap(backend: Backend) -> None:
    shop = backend.register(
        "shop", max_attempts=1000, backoff_base=SECOND, backoff_cap=100 * SECOND
    )
    claim = claimed(shop)
    for number in range(1, 71):
        due = shop.retry(1, claim.fence).due_at
        assert due is not None
        wait = due - backend.now()
        full = SECOND * min(2 ** (number - 1), 100)
        assert full / 2 <= wait <= full
        assert wait == _backoff(1, number, number, SECOND, 100 * SECOND)
        backend.advance(wait)
        (claim,) = shop.claim("w")


def test_release_and_postpone_give_the_try_back(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    for number in range(1, 11):
        (claim,) = shop.claim("w")
        assert (claim.attempt, claim.tries) == (number, 1)
        if number % 2:
            shop.release(1, claim.fence)
        else:
            shop.postpone(1, claim.fence, SECOND)
            backend.advance(1)
    (claim,) = shop.claim("w")
    shop.complete(1, claim.fence)
    assert backend.row("receipt")["attempt"] == 11


def test_what_a_delivery_carries(backend: Backend, shop: Trex) -> None:
    one, two = claimed(shop, "one"), claimed(shop, "two")
    shop.complete(1, one.fence, reference="ledger/42", confirmed_by="lookup")
    shop.complete_duplicate(2, two.fence, reference="ledger/43", confirmed_by="same_key")
    first, second = backend.rows("receipt")
    assert (first["reference"], first["confirmed_by"]) == ("ledger/42", "lookup")
    assert (second["reference"], second["confirmed_by"]) == ("ledger/43", "same_key")
    status = shop.status(2)
    assert (status.state, status.duplicate, status.reference) == ("delivered", True, "ledger/43")
    assert (status.confirmed_by, status.fence, status.attempts) == ("same_key", two.fence, 1)
    # Repeated with other arguments: what was recorded stays.
    assert shop.complete(1, one.fence, reference="other").status == "already_recorded"
    assert backend.rows("receipt")[0]["reference"] == "ledger/42"


def test_a_delivered_message_is_never_sent_again(backend: Backend, shop: Trex) -> None:
    one, two = claimed(shop, "one", correlation_id="c"), claimed(shop, "two", correlation_id="c")
    shop.complete(1, one.fence)
    shop.complete_duplicate(2, two.fence)
    backend.advance(timedelta(days=30))
    assert shop.claim("w", 9) == shop.claim("w", 9, correlation_id="c") == []
    assert [o.status for o in shop.redrive([1, 2], **WHO)] == ["delivered"] * 2
    assert [o.status for o in shop.expedite([1, 2], **WHO)] == ["delivered"] * 2
    assert shop.list_pending(include_parked=True) == []
    assert shop.enqueue("t", "one", {}, correlation_id="c").status == "duplicate"
    assert shop.claim("w", 9) == []


def test_a_fence_that_was_never_given_is_no_evidence(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w")
    shop.complete(1, claim.fence)
    unknown = claim.fence + 1000
    assert shop.record([Report(1, unknown, "completed")])[0].status == "claim_lost"
    assert shop.report_stale(1, unknown, "completed") is False
    assert backend.rows("stale_report") == []
