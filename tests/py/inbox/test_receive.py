"""Receiving events: stored once by (provider, account, event id), whatever is sent again."""

from __future__ import annotations

import hashlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.backends import WHO
from trex_client.errors import AccessDenied, InvalidArgument, NotFound, NotPrimary

if TYPE_CHECKING:
    from trex_client.model_inbox import Received

pytestmark = pytest.mark.criterion("ac-0055")

RAW = b'{"id": "evt_1",  "type":"invoice.paid"}\r\n'


def receive(client, event_id="evt_1", raw=RAW, account="acct_1", provider="stripe", **given):
    given.setdefault("event_type", "invoice.paid")
    given.setdefault("object_id", "in_1")
    return client.receive(
        provider, account, event_id, given.pop("event_type"), given.pop("object_id"), raw,
        {"id": event_id}, **given,
    )  # fmt: skip


def claim(client, **given):
    (claimed,) = client.claim("w", box="inbox", **given)
    return claimed


def park(backend, client, event_id="evt_1"):
    received = receive(client, event_id)
    claimed = claim(client)
    client.fail(claimed.message_id, claimed.fence)
    return received.message_id


def test_an_event_is_stored_with_its_exact_bytes(backend, shop):
    received = receive(shop, key_id="whsec_2")
    assert (received.status, received.state, received.differs) == ("received", "ready", False)
    event = shop.inbox_event(received.message_id)
    assert event.raw == RAW
    assert (event.provider, event.account, event.event_id) == ("stripe", "acct_1", "evt_1")
    assert (event.event_type, event.object_id, event.key_id) == ("invoice.paid", "in_1", "whsec_2")
    assert event.received_at == backend.now()
    claimed = claim(shop)
    assert claimed.message_id == received.message_id
    assert (claimed.topic, claimed.correlation_id, claimed.box) == ("stripe", "in_1", "inbox")
    assert claimed.effect_policy == "idempotent"
    assert claimed.payload == {"id": "evt_1"}


def test_an_event_without_id_goes_by_its_bytes(shop):
    first = receive(shop, None)
    again = receive(shop, None)
    other = receive(shop, None, raw=RAW + b" ")
    assert again.message_id == first.message_id != other.message_id
    assert again.status == "deduplicated"
    digest = hashlib.sha256(RAW).hexdigest()
    assert shop.inbox_event(first.message_id).event_id == f"sha256:{digest}"


def test_the_same_event_again_adds_no_work_in_any_state(backend, shop):
    first = receive(shop)
    states = []

    def again():
        answer = receive(shop)
        assert (answer.message_id, answer.status) == (first.message_id, "deduplicated")
        assert not answer.differs
        states.append(answer.state)

    again()
    claimed = claim(shop)
    again()
    backend.advance(31)
    again()
    claimed = claim(shop)
    shop.postpone(claimed.message_id, claimed.fence, timedelta(minutes=5), reason="not_paid")
    again()
    backend.advance(301)
    claimed = claim(shop)
    shop.complete(claimed.message_id, claimed.fence, confirmed_by="handler")
    again()
    assert states == ["ready", "leased", "lease_ended", "deferred", "delivered"]
    assert shop.claim("w", box="inbox") == []
    assert len(backend.rows("inbox_event")) == len(backend.rows("message")) == 1
    assert [row["action"] for row in backend.rows("audit", message_id=first.message_id)] == []


def test_k16_each_event_of_a_page_is_answered(backend, shop):
    """Three known, one new one twice, one new: what is new is told apart, and works once."""
    for number in range(3):
        receive(shop, f"evt_{number}")
        claimed = claim(shop)
        shop.complete(claimed.message_id, claimed.fence)
    with backend.transaction(shop):
        answers = [receive(shop, f"evt_{number}") for number in (0, 3, 1, 3, 2, 4)]
    assert [(answer.status, answer.state) for answer in answers] == [
        ("deduplicated", "delivered"), ("received", "ready"), ("deduplicated", "delivered"),
        ("deduplicated", "ready"), ("deduplicated", "delivered"), ("received", "ready"),
    ]  # fmt: skip
    fresh = [answer.message_id for answer in answers if answer.status == "received"]
    assert [c.message_id for c in shop.claim("w", 10, box="inbox")] == fresh


def test_other_bytes_under_the_same_id_are_evidence_and_nothing_else(backend, shop):
    first = receive(shop)
    changed = receive(shop, raw=b"other", event_type="invoice.voided", key_id="k2")
    assert (changed.message_id, changed.status) == (first.message_id, "deduplicated")
    assert changed.differs
    assert receive(shop, raw=b"other").differs
    assert not receive(shop).differs
    assert shop.inbox_event(first.message_id).raw == RAW
    assert shop.inbox_status(first.message_id).variants == 1
    variant = backend.row("inbox_variant")
    assert variant["body_hash"] == hashlib.sha256(b"other").hexdigest()
    assert variant["key_id"] == "k2"


@pytest.mark.parametrize("end", ["fail", "dead_letter"])
@pytest.mark.case("K18")
def test_a_parked_event_comes_to_life_when_it_is_sent_again(backend, shop, end):
    first = receive(shop)
    claimed = claim(shop)
    getattr(shop, end)(claimed.message_id, claimed.fence)
    assert shop.inbox_status(first.message_id).status == "failed"
    backend.advance(60)
    revived = receive(shop)
    assert (revived.status, revived.state) == ("revived", "ready")
    audit = backend.row("audit", action="redrive")
    assert (audit["message_id"], audit["actor"]) == (first.message_id, "stripe")
    assert receive(shop).status == "deduplicated"
    again = claim(shop)
    assert again.message_id == first.message_id
    assert again.fence > claimed.fence
    assert (again.attempt, again.tries) == (2, 1)


def test_an_event_given_up_stays_so(shop):
    received = receive(shop)
    claimed = claim(shop)
    shop.fail(claimed.message_id, claimed.fence)
    shop.resolve(received.message_id, "abandon", evidence="a test event", **WHO)
    answer = receive(shop)
    assert (answer.status, answer.state) == ("deduplicated", "permanent")
    assert [o.status for o in shop.redrive([received.message_id], **WHO)] == ["redriven"]


def test_an_unknown_or_conflicting_event_waits_for_resolve(shop):
    for number, end in enumerate(("conflict", "mark_unknown")):
        received = receive(shop, f"evt_{number}")
        claimed = claim(shop)
        options = {"park": True} if end == "mark_unknown" else {}
        getattr(shop, end)(claimed.message_id, claimed.fence, **options)
        answer = receive(shop, f"evt_{number}")
        assert answer.status == "deduplicated"
        assert answer.state == ("conflict" if end == "conflict" else "unknown")
        shop.resolve(received.message_id, "resend", evidence="nothing was written", **WHO)
        claimed = claim(shop)
        shop.complete(claimed.message_id, claimed.fence)


@pytest.mark.case("K13")
def test_nothing_is_suppressed_across_accounts_providers_or_instances(backend, shop):
    other = backend.register("other")
    answers = [
        receive(shop),
        receive(shop, account="acct_2"),
        receive(shop, provider="adyen"),
        receive(shop, account='acct_1", "x'),
        receive(other),
    ]
    assert {answer.status for answer in answers} == {"received"}
    assert len({answer.message_id for answer in answers}) == 5


def test_a_rolled_back_receipt_is_nothing(backend, shop):
    def receive_and_fail():
        with backend.transaction(shop):
            receive(shop)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        receive_and_fail()
    assert backend.rows("inbox_event") == []
    assert receive(shop).status == "received"


def test_a_server_that_takes_no_writes_stores_nothing(backend, shop):
    with backend.read_only(), pytest.raises(NotPrimary):
        receive(shop)
    assert backend.rows("message") == []


def test_strangers_are_refused(backend, shop):
    received = receive(shop)
    stranger = backend.client("shop", "stranger")
    for call in (
        lambda: receive(stranger),
        lambda: stranger.inbox_event(received.message_id),
        lambda: stranger.inbox_status(received.message_id),
    ):
        with pytest.raises(AccessDenied):
            call()
    other = backend.register("other")
    for call in (
        lambda: other.inbox_event(received.message_id),
        lambda: other.inbox_status(received.message_id),
        lambda: other.inbox_status(provider="stripe", account="acct_1", event_id="evt_1"),
    ):
        with pytest.raises(NotFound):
            call()


@pytest.mark.parametrize(
    "given",
    [
        {"provider": "Stripe"},
        {"provider": ""},
        {"account": ""},
        {"account": " acct"},
        {"account": "\u00a0"},
        {"account": None},
        {"event_id": ""},
        {"event_id": "\u200b"},
        {"event_id": "a\x00b"},
        {"event_id": "x" * 256},
        {"event_type": ""},
        {"event_type": None},
        {"object_id": ""},
        {"raw": "text"},
        {"raw": None},
        {"raw": b"x" * 65},
        {"key_id": " "},
    ],
    ids=repr,
)
@pytest.mark.case("K13")
def test_bad_arguments_store_nothing(backend, given):
    shop = backend.register("shop", payload_max=64)
    with pytest.raises(InvalidArgument):
        receive(shop, **given)
    assert backend.rows("message") == []


def test_an_event_may_be_as_long_as_the_instance_allows(backend):
    shop = backend.register("shop", payload_max=64)
    assert receive(shop, raw=b"x" * 64).status == "received"
    for number, (length, fine) in enumerate(((62, True), (63, False))):
        given = ("p", "a", f"e{number}", "t", None, b"", "x" * length)
        if fine:
            assert shop.receive(*given).status == "received"
        else:
            with pytest.raises(InvalidArgument, match="payload"):
                shop.receive(*given)


def test_payload_and_payload_json(shop):
    with pytest.raises(InvalidArgument):
        shop.receive("p", "a", "1", "t", None, b"", None)
    with pytest.raises(InvalidArgument):
        shop.receive("p", "a", "1", "t", None, b"", {}, payload_json="{}")
    assert shop.receive("p", "a", "1", "t", None, b"", payload_json="null").status == "received"


def test_status_in_the_senders_words(backend, shop):
    received = receive(shop)
    where = {"provider": "stripe", "account": "acct_1", "event_id": "evt_1"}

    def status():
        by_key = shop.inbox_status(**where)
        assert by_key == shop.inbox_status(received.message_id)
        return by_key.status, by_key.state, by_key.reason, by_key.attempts

    assert status() == ("received", "ready", None, 0)
    claimed = claim(shop)
    assert status() == ("processing", "leased", None, 1)
    shop.postpone(claimed.message_id, claimed.fence, timedelta(minutes=1), reason="no_order")
    assert status() == ("received", "deferred", "no_order", 1)
    assert shop.inbox_status(**where).due_at == backend.now() + timedelta(minutes=1)
    backend.advance(60)
    claimed = claim(shop)
    shop.fail(claimed.message_id, claimed.fence, reason="rejected")
    assert status() == ("failed", "permanent", "rejected", 2)
    shop.redrive([claimed.message_id], **WHO)
    claimed = claim(shop)
    shop.complete(claimed.message_id, claimed.fence)
    assert status() == ("processed", "delivered", None, 3)
    assert shop.inbox_status(**where).processed_at == backend.now()
    assert shop.inbox_status(**where).received_at < backend.now()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"message_id": 0},
        {"message_id": 1, "provider": "p"},
        {"provider": "p", "account": "a"},
        {"provider": "p", "account": "a", "event_id": ""},
    ],
    ids=repr,
)
def test_status_takes_one_way_to_name_an_event(shop, given):
    with pytest.raises(InvalidArgument):
        shop.inbox_status(**given)


@pytest.mark.case("K18")
def test_waiting_spends_no_allowance(backend):
    shop = backend.register("shop", max_attempts=1)
    receive(shop)
    for _ in range(50):
        claimed = claim(shop)
        assert (claimed.tries, claimed.uncertain) == (1, False)
        shop.postpone(claimed.message_id, claimed.fence, timedelta(hours=1), reason="not_paid")
        backend.advance(3600)
    assert shop.inbox_status(1).status == "received"
    assert shop.inbox_status(1).attempts == 50


def test_a_targeted_claim_takes_the_events_of_one_object(shop):
    receive(shop, "e1", object_id="in_1")
    receive(shop, "e2", object_id="in_2")
    receive(shop, "e3", object_id="in_1")
    claims = shop.claim("w", 10, box="inbox", correlation_id="in_1")
    assert [c.payload["id"] for c in claims] == ["e1", "e3"]


@pytest.mark.case("K9")
def test_of_many_receivers_of_one_event_one_stores_it(postgres):
    postgres.uncompared()
    postgres.register("shop")
    clients = [postgres.client("shop") for _ in range(8)]
    barrier = threading.Barrier(len(clients))
    answers: list[Received] = []

    def run(client):
        barrier.wait()
        answers.extend(receive(client, f"evt_{number}") for number in range(20))

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 160
    assert sum(answer.status == "received" for answer in answers) == 20
    assert len(postgres.rows("inbox_event")) == len(postgres.rows("delivery")) == 20


@pytest.mark.parametrize("table", ["inbox_event", "inbox_variant"])
def test_what_was_received_never_changes(postgres, table):
    shop = postgres.register("shop")
    receive(shop)
    receive(shop, raw=b"other")
    for statement in (
        f"update trex.{table} set received_at = now()",
        f"delete from trex.{table}",
        f"truncate trex.{table}",
    ):
        for role in ("origin", "replica"):
            postgres.admin.execute(f"set session_replication_role = {role}")
            with pytest.raises(psycopg.Error) as caught:
                postgres.admin.execute(statement)
            postgres.admin.execute("reset session_replication_role")
            assert caught.value.sqlstate == "TX901", statement
