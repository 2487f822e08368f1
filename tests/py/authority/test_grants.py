"""Four deliveries, one grant: in every order, with crashes, and what isn't paid grants nothing."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.py.authority.world import ACCOUNT, Provider, drain, grant, handle, order, receive
from trex_client.errors import (
    ClaimLost,
    EndedOtherwise,
    Forbidden,
    InvalidArgument,
    KeyReused,
    NotFound,
    NotPrimary,
    TrexError,
)
from trex_client.memory import MemoryClient, MemoryDatabase

pytestmark = pytest.mark.criterion("ac-0056")

DELIVERIES = [
    ("E2", "invoice.paid"), ("E2", "invoice.paid"), ("E1", "invoice.created"),
    ("E3", "invoice.paid"),
]  # fmt: skip
ORDERS = sorted(set(itertools.permutations(DELIVERIES)))
PAID = {"account": ACCOUNT, "invoice_id": "in_1", "order_id": "ord_1", "status": "paid"}


def paid_provider():
    provider = Provider()
    provider.invoices["in_1"] = ("paid", "ord_1")
    return provider


def assert_one_grant(backend, receipts=3):
    assert len(backend.rows("receipt")) == receipts
    assert len(backend.rows("inbox_event")) == receipts
    assert backend.rows("delivery") == []
    assert len(backend.rows("operation", kind="grant_entitlement")) == 1
    assert len(backend.rows("licence")) == 1
    right = backend.row("entitlement")
    assert (right["state"], right["version"], right["invoice_id"]) == ("active", 1, "in_1")
    assert len(backend.rows("audit", action="grant")) == 1
    assert backend.row("payment")["status"] == "paid"


@pytest.mark.parametrize("batch", [True, False], ids=["all first", "one by one"])
@pytest.mark.parametrize("deliveries", ORDERS, ids=lambda d: "".join(e for e, _ in d))
def test_four_deliveries_three_receipts_one_grant(backend, shop, deliveries, batch):
    order(shop)
    provider = paid_provider()
    answers, results = [], []
    for event_id, kind in deliveries:
        answers.append(receive(shop, event_id, kind).status)
        if not batch:
            results += drain(backend, shop, provider)
    results += drain(backend, shop, provider)
    assert sorted(answers) == ["deduplicated", "received", "received", "received"]
    assert sorted(results) == ["already_granted", "already_granted", "granted"]
    assert_one_grant(backend)


@pytest.mark.parametrize("deliveries", ORDERS, ids=lambda d: "".join(e for e, _ in d))
def test_every_crash_of_the_worker_is_survived(backend, shop, deliveries):
    """At each boundary: after the claim, inside the transaction, after its commit unheard."""
    order(shop)
    provider = paid_provider()
    crashes = ["claimed", "inside", "committed"]
    for (event_id, kind), crash in itertools.zip_longest(deliveries, crashes):
        receive(shop, event_id, kind)
        claims = shop.claim("w1", box="inbox")
        if not claims:
            continue
        (claim,) = claims
        if crash == "inside":
            with pytest.raises(ZeroDivisionError):
                _crash_inside(backend, shop, claim)
        elif crash == "committed":
            handle(backend, shop, claim, provider)
            # The COMMIT's answer was lost: the same call again says so and changes nothing.
            before = backend.dump()
            again = shop.finalize_paid(claim.message_id, claim.fence, **PAID)
            assert (again.status, again.entitlement_state) == ("replayed", "active")
            assert backend.dump() == before
            continue
        elif crash is None:
            handle(backend, shop, claim, provider)
            continue
        backend.advance(31)
        for later in shop.claim("w2", 10, box="inbox"):
            handle(backend, shop, later, provider)
            with pytest.raises(TrexError):
                shop.finalize_paid(claim.message_id, claim.fence, **PAID)
    assert_one_grant(backend)


def _crash_inside(backend, shop, claim):
    with backend.transaction(shop):
        shop.hold(claim.message_id, claim.fence)
        assert shop.finalize_paid(claim.message_id, claim.fence, **PAID).message_state
        raise ZeroDivisionError


def test_not_paid_no_order_and_unreachable_wait_and_grant_nothing(backend, shop):
    provider = Provider()
    receive(shop, "E2")
    provider.reachable = False
    assert drain(backend, shop, provider) == ["provider_unreachable"]
    provider.reachable = True
    provider.invoices["in_1"] = ("open", "ord_1")
    backend.advance(60)
    assert drain(backend, shop, provider) == ["not_paid"]
    provider.invoices["in_1"] = ("paid", "ord_1")
    backend.advance(60)
    assert drain(backend, shop, provider) == ["no_order"]
    order(shop, order_id="other")
    backend.advance(60)
    assert drain(backend, shop, provider) == ["no_order"]
    for table in ("operation", "entitlement", "licence", "receipt"):
        assert backend.rows(table) == []
    assert [row["status"] for row in backend.rows("payment")] == ["open", "paid"]
    assert shop.inbox_status(1).reason == "no_order"
    provider.invoices["in_1"] = ("paid", "other")
    backend.advance(60)
    assert drain(backend, shop, provider) == ["granted"]


@pytest.mark.case("K5")
def test_a_late_created_event_undoes_nothing(backend, shop):
    grant(backend, shop, "in_1")
    before = backend.row("entitlement")
    receive(shop, "E1", "invoice.created")
    provider = Provider()
    provider.invoices["in_1"] = ("paid", "ord-in_1")
    assert drain(backend, shop, provider) == ["already_granted"]
    assert backend.row("entitlement") == before


def test_grants_are_per_account_and_invoice(backend, shop):
    rights = {grant(backend, shop, f"in_{n}", event=f"E{n}") for n in range(3)}
    assert len(rights) == len(backend.rows("operation")) == 3


def test_an_event_of_another_account_cant_grant(backend, shop):
    order(shop, account="acct_2")
    receive(shop, "E2")
    (claim,) = shop.claim("w", box="inbox")
    with pytest.raises(NotFound):
        shop.finalize_paid(claim.message_id, claim.fence, **{**PAID, "account": "acct_2"})
    shop.enqueue("pay", "k", {})
    (outbox,) = shop.claim("w")
    with pytest.raises(NotFound):
        shop.finalize_paid(outbox.message_id, outbox.fence, **PAID)


def test_a_stale_handler_grants_nothing(backend, shop):
    order(shop)
    receive(shop, "E2")
    (old,) = shop.claim("w1", box="inbox")
    backend.advance(31)
    (new,) = shop.claim("w2", box="inbox")
    before = backend.dump()
    for call in (
        lambda: shop.finalize_paid(old.message_id, old.fence, **PAID),
        lambda: shop.apply_provider_cancel(
            old.message_id, old.fence, account=ACCOUNT, invoice_id="in_1", cause="cancelled",
            evidence="e",
        ),
        lambda: shop.apply_refund(
            old.message_id, old.fence, account=ACCOUNT, invoice_id="in_1", refund_id="r",
            amount=1, currency="USD", evidence="e",
        ),
    ):  # fmt: skip
        with pytest.raises(ClaimLost):
            call()
    assert backend.dump() == before
    shop.fail(new.message_id, new.fence)
    with pytest.raises(EndedOtherwise):
        shop.finalize_paid(new.message_id, new.fence, **PAID)


def test_orders_are_registered_once(backend, shop):
    assert order(shop, valid_for=timedelta(days=30), uses_max=3, devices_max=1) == "registered"
    before = backend.dump()
    assert order(shop, valid_for=timedelta(days=30), uses_max=3, devices_max=1) == "duplicate"
    for change in (
        {"order_id": "x"}, {"seller": "x"}, {"buyer": "x"}, {"item": "x"}, {"amount": 50},
        {"currency": "EUR"}, {"uses_max": 4}, {"devices_max": None},
        {"valid_for": timedelta(days=31)},
    ):  # fmt: skip
        given: dict[str, Any] = {
            "valid_for": timedelta(days=30), "uses_max": 3, "devices_max": 1,
        } | change  # fmt: skip
        with pytest.raises(KeyReused):
            order(shop, order_id=given.pop("order_id", "ord_1"), **given)
    assert backend.dump() == before


@pytest.mark.parametrize(
    "given",
    [
        {"account": ""}, {"seller": ""}, {"buyer": None}, {"item": " "}, {"amount": -1},
        {"amount": Decimal("0.001")}, {"amount": 1.5}, {"amount": None}, {"currency": "XXX"},
        {"currency": "usd"}, {"uses_max": 0}, {"devices_max": -1},
        {"valid_for": timedelta(0)}, {"valid_for": timedelta(days=36525, microseconds=1)},
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_orders_are_refused(backend, shop, given):
    with pytest.raises(InvalidArgument):
        order(shop, **given)
    assert backend.rows("order_invoice") == []


@pytest.mark.parametrize(
    "given",
    [
        {"message_id": 0}, {"fence": 0}, {"account": ""}, {"invoice_id": ""}, {"order_id": ""},
        {"status": "Paid"}, {"status": None},
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_finalizations_are_refused(shop, given):
    call = {"message_id": 1, "fence": 1} | PAID | given
    with pytest.raises(InvalidArgument):
        shop.finalize_paid(call.pop("message_id"), call.pop("fence"), **call)


def test_two_workers_and_three_events_at_once(postgres):
    postgres.uncompared()
    clients = [postgres.register("shop")]
    clients += [postgres.client("shop") for _ in range(3)]
    provider = Provider()
    results = []
    for number in range(10):
        invoice = f"in_{number}"
        order(clients[0], invoice, f"ord_{number}")
        provider.invoices[invoice] = ("paid", f"ord_{number}")
        for event in ("E1", "E2", "E3"):
            receive(clients[0], f"{event}-{number}", invoice=invoice)
        claims = [client.claim("w", box="inbox")[0] for client in clients[1:]]
        barrier = threading.Barrier(3)

        def run(client, claim, barrier=barrier):
            barrier.wait()
            results.append(handle(postgres, client, claim, provider))

        threads = [
            threading.Thread(target=run, args=pair)
            for pair in zip(clients[1:], claims, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == ["already_granted"] * 20 + ["granted"] * 10
    assert len(postgres.rows("operation")) == len(postgres.rows("entitlement")) == 10
    assert len(postgres.rows("receipt")) == 30


# Ends of rights: corrections.


def event_claim(shop, event_id="C1", kind="invoice.voided", invoice="in_1"):
    receive(shop, event_id, kind, invoice)
    (claim,) = shop.claim("w", box="inbox")
    return claim


def cancel(shop, claim, cause="cancelled"):
    return shop.apply_provider_cancel(
        claim.message_id, claim.fence, account=ACCOUNT, invoice_id="in_1", cause=cause,
        evidence="status void",
    )  # fmt: skip


def refund(shop, claim, refund_id="re_1", amount=Decimal("10.00"), currency="USD"):
    return shop.apply_refund(
        claim.message_id, claim.fence, account=ACCOUNT, invoice_id="in_1", refund_id=refund_id,
        amount=amount, currency=currency, evidence="refund succeeded",
    )  # fmt: skip


@pytest.mark.criterion("ac-0058")
@pytest.mark.parametrize("cause", ["cancelled", "expired", "revoked"])
def test_a_provider_cancel_is_a_correction(backend, shop, cause):
    right = grant(backend, shop)
    operation = backend.row("operation")
    claim = event_claim(shop)
    done = cancel(shop, claim, cause)
    assert (done.status, done.entitlement_state, done.message_state) == (
        "ended", cause, "delivered",
    )  # fmt: skip
    assert backend.row("operation") == operation
    lines = shop.operation_history(right)
    assert [(x.kind, x.amount, x.balance) for x in lines] == [
        ("grant_entitlement", Decimal("49.9"), Decimal("49.9")), (cause, 0, Decimal("49.9")),
    ]  # fmt: skip
    before = backend.dump()
    # After a lost COMMIT the worker comes back with another connection.
    assert cancel(backend.client(), claim, cause).status == "replayed"
    assert backend.dump() == before
    assert cancel(shop, event_claim(shop, "C2")).status == "already_ended"
    assert len(shop.operation_history(right)) == 2


@pytest.mark.criterion("ac-0058")
def test_a_cancel_before_the_payment_ends_nothing(backend, shop):
    order(shop)
    assert cancel(shop, event_claim(shop)).status == "no_grant"
    assert backend.rows("entitlement") == backend.rows("adjustment") == []
    receive(shop, "E2")
    provider = Provider()
    provider.invoices["in_1"] = ("void", "ord_1")
    assert drain(backend, shop, provider) == ["not_paid"]
    assert backend.rows("entitlement") == []


@pytest.mark.criterion("ac-0058")
def test_refunds_add_up_and_end_the_right_at_the_last(backend, shop):
    right = grant(backend, shop)
    done = refund(shop, event_claim(shop, "R1"), "re_1", Decimal("40.00"))
    assert (done.status, done.entitlement_state) == ("refunded", "active")
    done = refund(shop, event_claim(shop, "R1-again"), "re_1", Decimal("40.00"))
    assert (done.status, done.entitlement_state) == ("already_refunded", "active")
    claim = event_claim(shop, "R2")
    before = backend.dump()
    with pytest.raises(Forbidden):
        refund(shop, claim, "re_2", Decimal("9.91"))
    with pytest.raises(Forbidden):
        refund(shop, claim, "re_2", 9, "EUR")
    with pytest.raises(KeyReused):
        refund(shop, claim, "re_1", Decimal("9.90"))
    assert backend.dump() == before
    done = refund(shop, claim, "re_2", Decimal("9.90"))
    assert (done.status, done.entitlement_state) == ("refunded", "refunded")
    assert shop.operation_history(right)[-1].balance == 0
    assert refund(backend.client(), claim, "re_2", Decimal("9.90")).status == "replayed"
    assert len(backend.rows("refund")) == 2


@pytest.mark.criterion("ac-0058")
@pytest.mark.parametrize(
    "given", [{"refund_id": ""}, {"refund_id": " x"}, {"amount": 0}, {"currency": "usd"}], ids=repr
)
def test_malformed_refunds_are_refused(backend, shop, given):
    claim = event_claim(shop)
    before = backend.dump()
    with pytest.raises(InvalidArgument):
        refund(shop, claim, **given)
    assert backend.dump() == before


@pytest.mark.criterion("ac-0058")
def test_a_refund_without_a_grant_is_kept(backend, shop):
    done = refund(shop, event_claim(shop, "R1"))
    assert (done.status, done.entitlement_id) == ("no_grant", None)
    assert backend.row("refund")["refund_id"] == "re_1"


@pytest.mark.criterion("ac-0058")
@pytest.mark.parametrize("before", [0, 1, 2])
def test_refunds_before_the_grant_count_like_those_after(backend, shop, before):
    order(shop)
    parts = [("re_2", Decimal("40.00")), ("re_1", Decimal("9.90"))]
    for refund_id, amount in parts[:before]:
        claim = event_claim(shop, refund_id)
        assert refund(shop, claim, refund_id, amount).status == "no_grant"
        backend.advance(1)
    provider = paid_provider()
    receive(shop, "E2")
    assert drain(backend, shop, provider) == ["granted"]
    for refund_id, amount in parts[before:]:
        assert backend.row("entitlement")["state"] == "active"
        claim = event_claim(shop, refund_id)
        assert refund(shop, claim, refund_id, amount).status == "refunded"
    right = backend.row("entitlement")
    assert (right["state"], right["version"]) == ("refunded", 2)
    lines = shop.operation_history(right["entitlement_id"])
    assert [(x.amount, x.balance) for x in lines[1:]] == [
        (Decimal(-40), Decimal("9.9")), (Decimal("-9.9"), Decimal(0)),
    ]  # fmt: skip
    evidence = [f"message:{row['message_id']}" for row in backend.rows("refund")]
    assert [x.evidence in evidence for x in lines[1:]] == [n < before for n in range(2)]
    # The same refund once more, by another event, is known either way.
    again = refund(shop, event_claim(shop, "again"), *parts[0])
    assert again.status == "already_refunded"
    receive(shop, "E3")
    assert drain(backend, shop, provider) == ["already_granted"]
    assert len(shop.operation_history(right["entitlement_id"])) == 3
    assert shop.reconcile(actor="me", reason="why").state == "clean"


@pytest.mark.criterion("ac-0058")
@pytest.mark.parametrize(("amount", "currency"), [(Decimal("49.91"), "USD"), (1, "EUR")])
def test_a_grant_that_its_refunds_contradict_is_refused(backend, shop, amount, currency):
    order(shop)
    refund(shop, event_claim(shop, "R1"), "re_1", amount, currency)
    claim = event_claim(shop, "E2")
    before = backend.dump()
    with pytest.raises(Forbidden):
        shop.finalize_paid(claim.message_id, claim.fence, **PAID)
    assert backend.dump() == before


def test_an_id_with_another_content_grants_nothing():
    """On a server: tests/sql/finalize_paid/taken_id.sql."""
    db = MemoryDatabase()
    shop = MemoryClient(db, "shop")
    shop.register_instance(actor="me", reason="why")
    shop.bind("app", actor="me", reason="why")
    order(shop)
    for number in (1, 2):
        receive(shop, f"E{number}")
    first, second = shop.claim("w", 2, box="inbox")
    shop.finalize_paid(first.message_id, first.fence, **PAID)
    (operation,) = shop._operations.operation.values()
    operation.digest = b"another"
    with pytest.raises(KeyReused):
        shop.finalize_paid(second.message_id, second.fence, **PAID)
    assert len(db.receipt) == 1


@pytest.mark.criterion("ac-0058")
def test_one_call_ends_the_event(backend, shop):
    """Replayed is only what this claim did; whatever else it is asked for has another end."""
    grant(backend, shop)
    order(shop, "in_2", "ord_2")

    def other_invoice(claim, name, **more):
        call = getattr(shop, name)
        return call(claim.message_id, claim.fence, account=ACCOUNT, invoice_id="in_2", **more)

    def finalize(claim, **given):
        ours = {**PAID, "order_id": "ord-in_1"}
        return shop.finalize_paid(claim.message_id, claim.fence, **{**ours, **given})

    calls = {
        "refund": lambda claim: refund(shop, claim, "re_3", 1),
        "refund of another id": lambda claim: refund(shop, claim, "re_4", 1),
        "refund of another amount": lambda claim: refund(shop, claim, "re_3", 2),
        "refund of another invoice": lambda claim: other_invoice(
            claim, "apply_refund", refund_id="re_3", amount=1, currency="USD", evidence="e"
        ),
        "finalize": finalize,
        "finalize another order": lambda claim: finalize(claim, order_id="ord_9"),
        "finalize another invoice": lambda claim: finalize(
            claim, invoice_id="in_2", order_id="ord_2"
        ),
        "cancel": lambda claim: cancel(shop, claim),
        "cancel for another cause": lambda claim: cancel(shop, claim, "revoked"),
        "cancel another invoice": lambda claim: other_invoice(
            claim, "apply_provider_cancel", cause="cancelled", evidence="e"
        ),
    }
    expected = {"refund": "refunded", "finalize": "already_granted", "cancel": "ended"}
    for first, status in expected.items():
        claim = event_claim(shop, first)
        assert calls[first](claim).status == status
        before = backend.dump()
        for name, call in calls.items():
            if name == first:
                assert call(claim).status == "replayed"
            else:
                with pytest.raises(EndedOtherwise):
                    call(claim)
        assert backend.dump() == before
    claim = event_claim(shop, "completed")
    shop.complete(claim.message_id, claim.fence)
    for call in calls.values():
        with pytest.raises(EndedOtherwise):
            call(claim)


@pytest.mark.criterion("ac-0058")
def test_rights_expire_once_oldest_first_and_bounded(backend, shop):
    for number in range(3):
        grant(backend, shop, f"in_{number}", valid_for=timedelta(days=number + 1))
    grant(backend, shop, "in_9")
    who = {"actor": "cron", "reason": "time is over"}
    assert shop.expire_entitlements(**who) == 0
    for limit in (0, 10_001):
        with pytest.raises(InvalidArgument):
            shop.expire_entitlements(limit=limit, **who)
    backend.advance(timedelta(days=2))
    assert shop.expire_entitlements(limit=1, **who) == 1
    states = {row["invoice_id"]: row["state"] for row in backend.rows("entitlement")}
    assert states == {"in_0": "expired", "in_1": "active", "in_2": "active", "in_9": "active"}
    assert shop.expire_entitlements(**who) == 1
    assert shop.expire_entitlements(**who) == 0
    assert len(backend.rows("adjustment", kind="expired")) == 2


def test_no_right_is_written_on_a_server_that_only_reads(backend, shop):
    right = grant(backend, shop)
    claim = event_claim(shop)
    before = backend.dump()
    writes = (
        lambda: order(shop, "in_7"),
        lambda: cancel(shop, claim),
        lambda: refund(shop, claim),
        lambda: shop.expire_entitlements(actor="a", reason="r"),
        lambda: shop.issue_capability("c", right, "buy_1"),
        lambda: shop.execute_licence("c", "buy_1", "u"),
    )
    with backend.read_only():
        for write in writes:
            with pytest.raises(NotPrimary):
                write()
    assert backend.dump() == before


@pytest.mark.case("K5", "K6")
def test_a_subscription_is_what_the_provider_said_last(backend, shop):
    now = backend.now()
    first = {"status": "active", "period_end": now + timedelta(days=30), "asked_at": now}
    assert shop.update_subscription(ACCOUNT, "sub_1", "in_1", **first) == "created"
    assert shop.update_subscription(ACCOUNT, "sub_1", "in_1", **first) == "stale"
    late = {**first, "status": "past_due", "asked_at": now - timedelta(seconds=1)}
    assert shop.update_subscription(ACCOUNT, "sub_1", "in_1", **late) == "stale"
    same_time = {**first, "status": "cancelled"}
    assert shop.update_subscription(ACCOUNT, "sub_1", "in_1", **same_time) == "stale"
    future = {**first, "asked_at": now + timedelta(seconds=1)}
    with pytest.raises(InvalidArgument):
        shop.update_subscription(ACCOUNT, "sub_1", "in_1", **future)
    backend.advance(1)
    newer = {**first, "status": "cancelled", "asked_at": backend.now()}
    assert shop.update_subscription(ACCOUNT, "sub_1", "in_2", **newer) == "updated"
    row = backend.row("subscription")
    assert (row["status"], row["version"], row["invoice_id"]) == ("cancelled", 2, "in_2")


def test_only_news_of_a_payment_is_kept(backend, shop):
    assert shop.record_payment(ACCOUNT, "in_1", "open")
    assert not shop.record_payment(ACCOUNT, "in_1", "open")
    assert shop.record_payment(ACCOUNT, "in_1", "paid")
    assert shop.record_payment(ACCOUNT, "in_1", "open")
    assert [row["asked"] for row in backend.rows("payment")] == [1, 2, 3]


def test_an_old_answer_doesnt_unpay_an_invoice(backend, shop):
    """A slower handler's answer; what is asked outside of any event is taken as it is."""
    grant(backend, shop)
    for status in ("open", "draft"):
        claim = event_claim(shop, status)
        done = shop.finalize_paid(claim.message_id, claim.fence, **{**PAID, "status": status})
        assert done.status == "not_paid"
        shop.complete(claim.message_id, claim.fence)
    assert [row["status"] for row in backend.rows("payment")] == ["paid"]
    assert shop.reconcile(actor="me", reason="why").state == "clean"
    claim = event_claim(shop, "void")
    shop.finalize_paid(claim.message_id, claim.fence, **{**PAID, "status": "void"})
    assert [row["status"] for row in backend.rows("payment")] == ["paid", "void"]


BY = {"actor": "ann", "role": "support", "reason": "r", "evidence": "e"}


@pytest.mark.criterion("ac-0058")
def test_a_grant_is_corrected_only_with_its_right(backend, shop):
    right = grant(backend, shop)
    refund(shop, event_claim(shop, "R1"), "re_1", 40)
    before = backend.dump()
    for amount, version in ((Decimal("-9.90"), 1), (0, 1), (1, 7)):
        with pytest.raises(Forbidden):
            shop.correct(right, "c1", "refund", amount, version, **BY)
        told = shop.correct(right, "c1", "refund", amount, version, on_refused="report", **BY)
        assert (told.status, told.version, told.balance) == ("forbidden", 1, Decimal("9.9"))
    assert backend.dump() == before
    done = refund(shop, event_claim(shop, "R2"), "re_2", Decimal("9.90"))
    assert (done.status, done.entitlement_state) == ("refunded", "refunded")


@pytest.mark.criterion("ac-0058")
def test_ids_that_grants_and_their_ends_derive_are_theirs(backend, shop):
    who = {"actor": "ann", "role": "clerk", "reason": "r"}
    right = grant(backend, shop)
    definition = {"states": {"a": {}}, "transitions": [{"event": "go", "to": "a"}]}
    shop.machine_load("m", definition, actor="me", reason="why")
    shop.transition("m", "e1", "go", 0, "op", amount=9, **who)
    before = backend.dump()
    for operation_id in (right, "grant_entitlement:", "grant_entitlement:x"):
        with pytest.raises(InvalidArgument):
            shop.transition("m", "e2", "go", 0, operation_id, **who)
    for cause in ("refund", "cancelled", "expired", "revoked"):
        with pytest.raises(InvalidArgument):
            shop.correct("op", f"{cause}:1", "fee", -1, 0, **BY)
    assert backend.dump() == before
    assert shop.correct("op", "refunds:1", "fee", -1, 0, **BY).status == "applied"


def test_amounts_are_written_without_exponents(shop):
    """Where they come back: 50 is 50, not 5E+1."""
    who = {"actor": "ann", "role": "clerk", "reason": "r"}
    definition = {"states": {"a": {}}, "transitions": [{"event": "go", "to": "a"}]}
    shop.machine_load("m", definition, actor="me", reason="why")
    shop.transition("m", "e1", "go", 0, "op", amount=Decimal("250.0"), **who)
    corrected = shop.correct("op", "c1", "fee", Decimal("-50.00"), 0, **BY)
    assert str(corrected.balance) == "200"
    lines = shop.operation_history("op")
    assert [(str(x.amount), str(x.balance)) for x in lines] == [("250", "250"), ("-50", "200")]
