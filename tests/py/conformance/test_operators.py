"""Operators: each function in each state of a message, audited, and nothing else changes."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import ROLES, START, WHO, text
from trex_client.errors import (
    AccessDenied,
    InvalidArgument,
    KeyReused,
    NotFound,
    NotPrimary,
    TrexError,
)
from trex_client.model import Enqueued, Operated, Purged

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.backends import Backend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0034"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)
ANN: dict[str, Any] = {"actor": "ann", "reason": "ticket 42: the ledger was down"}


def audits(backend: Backend, shop: Trex) -> list[dict[str, Any]]:
    """What the test's own calls left, after registration and bindings."""
    return backend.rows("audit", instance_key=shop.instance_key)[3:]


def park(shop: Trex, key: str, how: str) -> int:
    number = shop.enqueue("t", key, {}, correlation_id=key).message_id
    (claim,) = shop.claim("w", correlation_id=key)
    getattr(shop, how)(number, claim.fence)
    return number


def test_redrive(backend: Backend, shop: Trex) -> None:
    dead, refused = park(shop, "a", "dead_letter"), park(shop, "b", "fail")
    conflict, done = park(shop, "c", "conflict"), park(shop, "d", "complete")
    deferred = park(shop, "e", "retry")
    before = {row["message_id"]: row for row in backend.rows("delivery")}
    now = backend.advance(5)
    answers = shop.redrive([99, done, deferred, conflict, refused, dead], **ANN)
    assert answers == [
        Operated(99, "not_found"),
        Operated(done, "delivered"),
        Operated(deferred, "not_parked"),
        Operated(conflict, "needs_resolve"),
        Operated(refused, "redriven"),
        Operated(dead, "redriven"),
    ]
    after = {row["message_id"]: row for row in backend.rows("delivery")}
    for number in (deferred, conflict):
        assert after[number] == before[number]
    for number in (dead, refused):
        changed = {"parked": None, "tries": 0, "deferred_until": text(now)}
        assert after[number] == {**before[number], **changed}
    rows = audits(backend, shop)
    assert [(a["action"], a["message_id"], a["actor"], a["reason"]) for a in rows] == [
        ("redrive", refused, "ann", ANN["reason"]),
        ("redrive", dead, "ann", ANN["reason"]),
    ]
    assert [json.loads(a["detail"]) for a in rows] == [
        {"parked": "permanent"},
        {"parked": "dead_letter"},
    ]
    assert {a["role_name"] for a in rows} == {ROLES["full"]}
    assert {a["at"] for a in rows} == {text(now)}
    # The second call finds nothing to do.
    assert [o.status for o in shop.redrive([dead, refused], **ANN)] == ["not_parked"] * 2
    claims = shop.claim("w", 5)
    assert [(c.message_id, c.attempt, c.tries) for c in claims] == [
        (deferred, 2, 2),
        (dead, 2, 1),
        (refused, 2, 1),
    ]
    assert all(c.fence > before[c.message_id]["fence"] for c in claims)


def test_a_redriven_message_gets_its_whole_allowance(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    fences = []
    for round_ in range(3):
        for number in (1, 2, 3):
            (claim,) = shop.claim("w")
            assert (claim.attempt, claim.tries) == (3 * round_ + number, number)
            fences.append(claim.fence)
            state = shop.retry(1, claim.fence).state
            assert state == ("dead_letter" if number == 3 else "deferred")
            backend.advance(3600)
        shop.redrive([1], **ANN)
    assert fences == sorted(set(fences))
    assert len(backend.rows("outcome")) == 9


def test_expedite(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "later", {}, delay=timedelta(days=20))
    shop.enqueue("t", "ready", {})
    shop.enqueue("t", "leased", {})
    shop.claim("w", 1, after=2)
    dead, done = park(shop, "a", "dead_letter"), park(shop, "b", "complete")
    now = backend.advance(5)
    answers = shop.expedite([done, 1, 2, 3, dead, 99], **ANN)
    assert [o.status for o in answers] == [
        "delivered", "expedited", "not_deferred", "not_deferred", "not_deferred", "not_found",
    ]  # fmt: skip
    assert backend.row("delivery", message_id=1)["deferred_until"] == text(now)
    assert [(a["action"], a["message_id"]) for a in audits(backend, shop)] == [("expedite", 1)]
    assert [o.status for o in shop.expedite([1], **ANN)] == ["not_deferred"]
    assert [c.idempotency_key for c in shop.claim("w", 5)] == ["later", "ready"]


def test_pause_and_resume(backend: Backend, shop: Trex) -> None:
    assert shop.pause(**ANN)
    assert not shop.pause(**ANN)
    assert shop.resume(**ANN)
    assert not shop.resume(**ANN)
    rows = audits(backend, shop)
    assert [(a["action"], a["message_id"], a["detail"]) for a in rows] == [
        ("pause", None, "{}"),
        ("resume", None, "{}"),
    ]


def test_purge_takes_only_payloads_of_delivered_messages(backend: Backend, shop: Trex) -> None:
    done = [park(shop, f"k{number}", "complete") for number in range(4)]
    park(shop, "dead", "dead_letter")
    shop.enqueue("t", "ready", {})
    backend.advance(100)
    late = park(shop, "late", "complete_duplicate")
    backend.advance(5)
    before = backend.dump()
    dry = shop.purge(50 * SECOND, limit=3, dry_run=True, **ANN)
    assert dry == Purged(3, 3, done[2])
    assert backend.dump() == before
    assert shop.purge(50 * SECOND, limit=3, **ANN) == Purged(3, 3, done[2])
    assert shop.purge(50 * SECOND, after=done[2], **ANN) == Purged(2, 1, late)
    assert shop.purge(50 * SECOND, after=late, **ANN) == Purged(0, 0, late)
    assert shop.purge(50 * SECOND, **ANN) == Purged(5, 0, late)
    after = backend.dump()
    assert after["receipt"] == before["receipt"]
    for old, new in zip(before["message"], after["message"], strict=True):
        gone = {"payload": None} if old["message_id"] in done else {}
        assert new == {**old, **gone}
    assert [a["message_id"] for a in audits(backend, shop)] == done
    # The promises about duplicates stay.
    assert shop.enqueue("t", "k0", {}, correlation_id="k0").status == "duplicate"
    assert (
        shop.enqueue("t", "k0", [], correlation_id="k0", on_conflict="report").status == "conflict"
    )
    assert shop.purge(timedelta(0), **ANN).purged == 1


def test_register_instance(backend: Backend, shop: Trex) -> None:
    client = backend.client("fresh")
    with pytest.raises(AccessDenied):
        client.policy()
    assert client.register_instance(**ANN, max_attempts=7) == "registered"
    assert client.register_instance(**ANN) == "unchanged"
    assert client.register_instance(**ANN, max_attempts=7, wake=True) == "unchanged"
    assert client.register_instance(**ANN, wake=False, backoff_base=2 * SECOND) == "changed"
    # It binds nobody.
    with pytest.raises(AccessDenied):
        client.policy()
    client.bind(ROLES["full"], **ANN)
    policy = client.policy()
    assert (policy.max_attempts, policy.wake, policy.backoff_base) == (7, False, 2 * SECOND)
    assert policy.registered_at == START
    rows = backend.rows("audit", instance_key=client.instance_key)
    assert [a["action"] for a in rows] == ["register_instance"] * 2 + ["bind"]
    assert json.loads(rows[1]["detail"])["backoff_base"] == 2_000_000


def test_a_policy_must_agree_with_itself(backend: Backend, shop: Trex) -> None:
    before = backend.dump()
    for policy in (
        {"lease_default": 901 * SECOND},
        {"lease_max": 29 * SECOND},
        {"backoff_base": 3601 * SECOND},
        {"backoff_cap": SECOND / 2},
    ):
        with pytest.raises(InvalidArgument):
            shop.register_instance(**ANN, **policy)  # type: ignore[arg-type]
    assert backend.dump() == before
    shop.register_instance(**ANN, lease_default=1000 * SECOND, lease_max=1000 * SECOND)
    shop.register_instance(**ANN, backoff_base=SECOND / 1000, backoff_cap=SECOND / 1000)


def test_bind_and_unbind(backend: Backend, shop: Trex) -> None:
    stranger = backend.client("shop", "stranger")
    with pytest.raises(AccessDenied):
        stranger.stats()
    assert shop.bind(ROLES["stranger"], **ANN)
    assert not shop.bind(ROLES["stranger"], **ANN)
    stranger.enqueue("t", "k", {})
    assert shop.unbind(ROLES["stranger"], **ANN)
    assert not shop.unbind(ROLES["stranger"], **ANN)
    assert not shop.unbind("never bound", **ANN)
    with pytest.raises(AccessDenied):
        stranger.stats()
    rows = audits(backend, shop)
    assert [a["action"] for a in rows] == ["bind", "unbind"]
    with pytest.raises(AccessDenied):
        backend.client("unregistered").bind("somebody", **ANN)


def test_register_currency(backend: Backend, shop: Trex) -> None:
    code = f"X{backend.suffix[1:]:0>5}"
    cash: dict[str, Any] = {"account": "a", "currency": code, "cash_delta": Decimal("0.12345")}
    with pytest.raises(InvalidArgument):
        shop.enqueue("t", "k", {}, **cash)
    assert shop.register_currency(code, 5, **ANN)
    assert not shop.register_currency(code, 5, **ANN)
    with pytest.raises(KeyReused):
        shop.register_currency(code, 6, **ANN)
    shop.enqueue("t", "k", {}, **cash)
    assert backend.rows("currency") == [{"currency": code, "exponent": 5}]
    (audit,) = backend.rows("audit", action="register_currency")
    assert (audit["instance_key"], json.loads(audit["detail"])) == (
        None,
        {"currency": code, "exponent": 5},
    )


def test_bump_epoch(backend: Backend, shop: Trex) -> None:
    assert shop.bump_epoch(**ANN) == 1
    shop.enqueue("t", "k", {})
    # The first claim after a start raises it as well.
    (claim,) = shop.claim("w")
    assert claim.fence >> 42 == 2
    assert shop.bump_epoch(**ANN) == 3
    assert backend.row("epoch")["epoch"] == 3


@pytest.mark.criterion("ac-0035")
def test_adopt(backend: Backend, shop: Trex) -> None:
    other = backend.register("other")
    row = {
        "topic": "old.topic",
        "idempotency_key": "old-1",
        "correlation_id": "c",
        "account": "a",
        "currency": "USD",
        "cash_delta": Decimal("1.5"),
        "payload": '{"old": true}',
        "source_state": "processing",
    }
    one = backend.quarantine("legacy", "1", **row)
    two = backend.quarantine("legacy", "2", payload="{}")
    bad = backend.quarantine("legacy", "3", topic="t", idempotency_key="k")
    taken = backend.quarantine("legacy", "4", **row)
    # Never claimable, listed or summed.
    assert shop.claim("w", 9) == shop.claim("w", 9, correlation_id="c") == []
    assert shop.list_pending(include_parked=True) == []
    assert shop.pending_cash_delta() == []
    now = backend.advance(5)
    adopted = shop.adopt(one, evidence="invoice 7", **ANN)
    assert adopted == Enqueued(1, "enqueued")
    delivery = backend.row("delivery")
    assert (delivery["uncertain"], delivery["fence"], delivery["attempts"]) == (True, 0, 0)
    message = backend.row("message")
    assert (message["topic"], message["payload"]) == ("old.topic", '{"old": true}')
    assert (message["effect_policy"], message["cash_delta"]) == ("lookup", "1.50")
    source = backend.rows("quarantine")[0]
    assert (source["instance_key"], source["adopted_message_id"]) == (None, 1)
    assert source["adopted_at"] == text(now)
    # Once per source row, and by one instance.
    assert shop.adopt(one, evidence="again", **ANN) == Enqueued(1, "duplicate")
    for number in (one, 10**9):
        with pytest.raises(NotFound):
            other.adopt(number, evidence="mine", **ANN)
    with pytest.raises(KeyReused):
        shop.adopt(taken, evidence="the same key", **ANN)
    lacking: list[tuple[int, dict[str, Any]]] = [(two, {}), (bad, {}), (two, {"topic": "t"})]
    for number, more in lacking:
        with pytest.raises(InvalidArgument):
            shop.adopt(number, evidence="incomplete", **more, **ANN)
    completed = shop.adopt(
        two, evidence="e", topic="t", idempotency_key="k2", effect_policy="at_most_once", **ANN
    )
    assert completed.status == "enqueued"
    # Uncertain, and its sink takes no second call: for an operator.
    assert [c.message_id for c in shop.claim("w", 9)] == [1]
    assert shop.status(completed.message_id).state == "unknown"
    assert [p.reason for p in shop.list_parked()] == ["operator"]
    assert [a["action"] for a in audits(backend, shop)] == ["adopt", "adopt"]
    assert all(r["instance_key"] is None for r in backend.rows("quarantine"))


def test_an_act_and_its_audit_are_one(backend: Backend, shop: Trex) -> None:
    number = park(shop, "a", "dead_letter")
    unknown = park(shop, "b", "conflict")
    old = backend.quarantine("legacy", "1", topic="t", idempotency_key="old", payload="{}")
    before = backend.dump()
    with backend.rolled_back(shop):
        shop.redrive([number], **ANN)
        shop.resolve(unknown, "abandon", evidence="e", **ANN)
        shop.pause(**ANN)
        shop.purge(timedelta(0), **ANN)
        shop.register_instance(**ANN, max_attempts=9)
        shop.bind("somebody", **ANN)
        shop.adopt(old, evidence="e", **ANN)
        shop.bump_epoch(**ANN)
        assert len(audits(backend, shop)) == 0 or not backend.concurrent
    assert backend.dump() == before


CALLS: dict[str, Callable[[Trex], object]] = {
    "enqueue": lambda c: c.enqueue("t", "k", {}),
    "enqueue_many": lambda c: c.enqueue_many([]),
    "claim": lambda c: c.claim("w"),
    "exchange": lambda c: c.exchange([], "w"),
    "extend": lambda c: c.extend([], []),
    "release": lambda c: c.release(1, 1),
    "postpone": lambda c: c.postpone(1, 1, SECOND),
    "mark_sent": lambda c: c.mark_sent(1, 1),
    "hold": lambda c: c.hold(1, 1),
    "listen": lambda c: c.listen("w", SECOND),
    "unlisten": lambda c: c.unlisten("w"),
    "complete": lambda c: c.complete(1, 1),
    "complete_duplicate": lambda c: c.complete_duplicate(1, 1),
    "retry": lambda c: c.retry(1, 1),
    "mark_unknown": lambda c: c.mark_unknown(1, 1),
    "conflict": lambda c: c.conflict(1, 1),
    "fail": lambda c: c.fail(1, 1),
    "dead_letter": lambda c: c.dead_letter(1, 1),
    "record": lambda c: c.record([]),
    "report_stale": lambda c: c.report_stale(1, 1, "retry"),
    "pause": lambda c: c.pause(**WHO),
    "resume": lambda c: c.resume(**WHO),
    "redrive": lambda c: c.redrive([], **WHO),
    "expedite": lambda c: c.expedite([], **WHO),
    "resolve": lambda c: c.resolve(1, "resend", evidence="e", **WHO),
    "purge": lambda c: c.purge(SECOND, **WHO),
    "adopt": lambda c: c.adopt(1, evidence="e", **WHO),
}
READS: dict[str, Callable[[Trex], object]] = {
    "list_pending": lambda c: c.list_pending(),
    "pending_cash_delta": lambda c: c.pending_cash_delta(),
    "list_parked": lambda c: c.list_parked(),
    "status": lambda c: c.status(1),
    "stats": lambda c: c.stats(),
    "policy": lambda c: c.policy(),
}
FREE: dict[str, Callable[[Trex], object]] = {
    "register_instance": lambda c: c.register_instance(**WHO),
    "bind": lambda c: c.bind("somebody", **WHO),
    "unbind": lambda c: c.unbind("somebody", **WHO),
    "bump_epoch": lambda c: c.bump_epoch(**WHO),
    "register_currency": lambda c: c.register_currency("USD", 2, **WHO),
}
"""Functions that need no binding."""


@pytest.mark.criterion("ac-0036")
@pytest.mark.criterion("ac-0029")
@pytest.mark.parametrize("name", [*CALLS, *READS])
def test_who_is_not_bound_is_refused_alike(backend: Backend, shop: Trex, name: str) -> None:
    """A foreign instance and one that doesn't exist can't be told apart."""
    call = {**CALLS, **READS}[name]
    shop.enqueue("t", "k", {}, account="a", currency="USD", cash_delta=1)
    before = backend.dump()
    texts = set()
    for client in (backend.client("shop", "stranger"), backend.client("unknown", "stranger")):
        with pytest.raises(AccessDenied) as refused:
            call(client)
        texts.add(str(refused.value))
    assert len(texts) == 1
    assert backend.dump() == before


@pytest.mark.parametrize("name", [*CALLS, *FREE])
def test_no_writer_runs_on_a_server_that_only_reads(
    backend: Backend, shop: Trex, name: str
) -> None:
    shop.enqueue("t", "k", {})
    before = backend.dump()
    with backend.read_only():
        with pytest.raises(NotPrimary):
            {**CALLS, **FREE}[name](shop)
        for read in READS.values():
            read(shop)
    assert backend.dump() == before


def test_every_function_of_the_api_is_in_one_of_these_lists() -> None:
    from trex_client._calls import Calls

    names = {name for name in vars(Calls) if not name.startswith("_") and name != "instance_key"}
    inbox = {name for name in names if "inbox" in name or name in ("receive", "exchange_inbox")}
    missing = names - {*CALLS, *READS, *FREE} - inbox
    assert not missing
    assert issubclass(NotPrimary, TrexError)
