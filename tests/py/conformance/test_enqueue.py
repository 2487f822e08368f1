"""enqueue and enqueue_many: what is stored, what counts as the same, rollback."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import text
from trex_client.errors import InvalidArgument, KeyReused
from trex_client.model import Enqueued, Movement

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0030"), pytest.mark.criterion("ac-0038")]

FULL: dict[str, Any] = {
    "topic": "ledger.post",
    "idempotency_key": "order-1",
    "payload": {"n": 1},
    "account": "acct 7",
    "currency": "USD",
    "cash_delta": Decimal("-12.5"),
    "correlation_id": "corr-1",
    "ordering_key": "acct 7",
    "effect_policy": "lookup",
}


def test_all_columns_of_a_message(backend: Backend, shop: Trex) -> None:
    assert shop.enqueue(**FULL, delay=timedelta(seconds=90)) == Enqueued(1, "enqueued")
    key = shop.instance_key
    payload = '{"n": 1}'
    assert backend.rows("message") == [
        {
            "instance_key": key,
            "message_id": 1,
            "box": "outbox",
            "topic": "ledger.post",
            "idempotency_key": "order-1",
            "correlation_id": "corr-1",
            "ordering_key": "acct 7",
            "account": "acct 7",
            "currency": "USD",
            "cash_delta": "-12.50",
            "payload": payload,
            "digest": hashlib.sha256(payload.encode()).hexdigest(),
            "effect_policy": "lookup",
            "enqueued_at": "2030-01-01 00:00:00.000000",
        }
    ]
    assert backend.rows("delivery") == [
        {
            "instance_key": key,
            "message_id": 1,
            "box": "outbox",
            "ordering_key": "acct 7",
            "deferred_until": "2030-01-01 00:01:30.000000",
            "lease_until": None,
            "worker": None,
            "fence": 0,
            "attempts": 0,
            "tries": 0,
            "sent_fence": None,
            "uncertain": False,
            "parked": None,
            "abandoned": False,
        }
    ]
    assert backend.rows("lane") == [
        {"instance_key": key, "box": "outbox", "ordering_key": "acct 7"}
    ]


def test_the_least_that_a_message_needs(backend: Backend, shop: Trex) -> None:
    assert shop.enqueue("t", "k", payload_json="null").status == "enqueued"
    row = backend.row("message")
    assert (row["payload"], row["effect_policy"]) == ("null", "idempotent")
    assert [
        row[name]
        for name in ("correlation_id", "ordering_key", "account", "currency", "cash_delta")
    ] == [None] * 5
    assert backend.row("delivery")["deferred_until"] is None
    assert backend.rows("lane") == []


def test_the_same_again_is_a_duplicate(backend: Backend, shop: Trex) -> None:
    shop.enqueue(**FULL)
    before = backend.dump()
    assert shop.enqueue(**FULL) == Enqueued(1, "duplicate")
    assert shop.enqueue(**FULL, on_conflict="report") == Enqueued(1, "duplicate")
    # delay isn't content
    assert shop.enqueue(**FULL, delay=timedelta(hours=1)) == Enqueued(1, "duplicate")
    assert backend.dump() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "ledger.other"),
        ("payload", {"n": 2}),
        ("payload", {"n": 1.0}),
        ("payload", {"n": True}),
        ("payload", {"n": "1"}),
        ("account", "acct 8"),
        ("currency", "EUR"),
        ("cash_delta", Decimal("-12.51")),
        ("correlation_id", None),
        ("correlation_id", "Corr-1"),
        ("ordering_key", None),
        ("effect_policy", "idempotent"),
    ],
)
def test_any_other_content_is_a_conflict(
    backend: Backend, shop: Trex, name: str, value: object
) -> None:
    shop.enqueue(**FULL)
    before = backend.dump()
    other = {**FULL, name: value}
    with pytest.raises(KeyReused):
        shop.enqueue(**other)
    assert shop.enqueue(**other, on_conflict="report") == Enqueued(1, "conflict")
    assert backend.dump()["message"] == before["message"]
    assert backend.dump()["delivery"] == before["delivery"]


def test_cash_is_stored_in_the_currency_s_decimals(backend: Backend, shop: Trex) -> None:
    amounts: list[tuple[str, Decimal | int, str]] = [
        ("JPY", 100, "100"),
        ("KWD", Decimal("1.234"), "1.234"),
        ("USD", Decimal("1.5000"), "1.50"),
        ("USD", -0, "0.00"),
        ("USD", Decimal("-0.00"), "0.00"),
        ("USD", Decimal("1E+3"), "1000.00"),
        ("BTC", Decimal("0.00000001"), "0.00000001"),
        ("ETH", Decimal("0.000000000000000001"), "0.000000000000000001"),
        ("KRW", 10**38 - 1, "9" * 38),
        ("USD", Decimal("9" * 36 + ".99"), "9" * 36 + ".99"),
    ]
    for number, (currency, amount, _) in enumerate(amounts):
        shop.enqueue("t", f"k{number}", {}, account="a", currency=currency, cash_delta=amount)
    assert [row["cash_delta"] for row in backend.rows("message")] == [a[2] for a in amounts]
    assert shop.enqueue(
        "t", "k2", {}, account="a", currency="USD", cash_delta=Decimal("1.50")
    ) == Enqueued(3, "duplicate")


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ('{"bb": 1, "a": 2, "aa": 3}', '{"a": 2, "aa": 3, "bb": 1}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('{"\\u00e9": "\\u00e9", "z": 1}', '{"z": 1, "é": "é"}'),
        ("[1.50, 1e2, -0, -0.0, 1E-3]", "[1.50, 100, 0, 0.0, 0.001]"),
        ('"\\u0007\\b\\f\\n\\r\\t\\"\\\\\\/"', '"\\u0007\\b\\f\\n\\r\\t\\"\\\\/"'),
        ('"\\ud83d\\ude00"', '"😀"'),
        (" [ ] ", "[]"),
        ("{}", "{}"),
        ('"\x7f\u2028"', '"\x7f\u2028"'),
        ("12345678901234567890.00000000000000000001", "12345678901234567890.00000000000000000001"),
    ],
)
def test_the_canonical_text_of_a_payload(
    backend: Backend, shop: Trex, written: str, stored: str
) -> None:
    shop.enqueue("t", "k", payload_json=written)
    row = backend.row("message")
    assert row["payload"] == stored
    assert row["digest"] == hashlib.sha256(stored.encode()).hexdigest()
    assert shop.enqueue("t", "k", payload_json=stored).status == "duplicate"
    (claim,) = shop.claim("w")
    assert claim.payload_json == stored


def test_python_data_is_the_same_as_its_text(backend: Backend, shop: Trex) -> None:
    data = {"b": [1, Decimal("2.50"), 0.5, None, True], "a": {"é": "x\ny"}}
    shop.enqueue("t", "k", data)
    as_text = '{"a": {"é": "x\\ny"}, "b": [1, 2.50, 0.5, null, true]}'
    assert shop.enqueue("t", "k", payload_json=as_text).status == "duplicate"


def test_keys_are_compared_byte_for_byte(backend: Backend, shop: Trex) -> None:
    keys = ["caf\u00e9", "cafe\u0301", "KEY", "key", "k\u200bey", "\uff11", "1", "a  b", "null"]
    for key in keys:
        assert shop.enqueue("t", key, {}, correlation_id=key).status == "enqueued"
    for number, key in enumerate(keys, 1):
        assert shop.status(idempotency_key=key).message_id == number
        assert [c.message_id for c in shop.claim("w", correlation_id=key)] == [number]


def test_instances_do_not_share_keys(backend: Backend, shop: Trex) -> None:
    other = backend.register("other")
    shop.enqueue(**FULL)
    assert other.enqueue(**{**FULL, "payload": []}).status == "enqueued"
    assert len(backend.rows("message", idempotency_key="order-1")) == 2


def test_rollback_leaves_nothing(backend: Backend, shop: Trex) -> None:
    before = backend.dump()
    with backend.rolled_back(shop):
        shop.enqueue(**FULL)
        shop.enqueue_many([Movement("t", "k2", 1, ordering_key="o")])
        assert shop.status(idempotency_key="k2").state == "ready"
    assert backend.dump() == before
    with backend.transaction(shop):
        shop.enqueue(**FULL)
    assert len(backend.rows("message")) == 1


def test_savepoints_undo_their_part(backend: Backend, shop: Trex) -> None:
    with backend.transaction(shop):
        shop.enqueue("t", "k1", {})
        with backend.rolled_back(shop):
            shop.enqueue("t", "k2", {})
            with pytest.raises(KeyReused):
                shop.enqueue("t", "k1", [])
        shop.enqueue("t", "k3", {})
    assert [row["idempotency_key"] for row in backend.rows("message")] == ["k1", "k3"]


def test_a_batch_answers_in_the_order_given(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "b", {})
    shop.enqueue("t", "z", {})
    answers = shop.enqueue_many(
        [
            Movement("t", "z", {}),
            Movement("t", "c", {}),
            Movement("t", "a", [], delay=timedelta(seconds=1)),
            Movement("t", "c", {}),
            Movement("t", "b", 1),
            Movement("t", "a", {}),
        ],
        on_conflict="report",
    )
    # Every row draws an id, whether it needs one or not.
    assert answers == [
        Enqueued(2, "duplicate"),
        Enqueued(4, "enqueued"),
        Enqueued(5, "enqueued"),
        Enqueued(4, "duplicate"),
        Enqueued(1, "conflict"),
        Enqueued(5, "conflict"),
    ]
    assert len(backend.rows("message")) == 4
    assert len(backend.rows("delivery")) == 4


def test_a_batch_with_one_conflict_stores_nothing(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "b", {})
    before = backend.dump()
    with pytest.raises(KeyReused):
        shop.enqueue_many([Movement("t", "a", {}), Movement("t", "b", [])])
    with pytest.raises(KeyReused):
        shop.enqueue_many([Movement("t", "c", 1), Movement("t", "c", 2)])
    assert backend.dump() == before


@pytest.mark.criterion("ac-0039")
def test_a_batch_with_one_bad_row_names_it_and_stores_nothing(backend: Backend, shop: Trex) -> None:
    good = [Movement("t", f"k{n}", {}) for n in range(4)]
    before = backend.dump()
    for bad in (
        Movement("T", "x", {}),
        Movement("t", "", {}),
        Movement("t", "x"),
        Movement("t", "x", {}, account="a"),
        Movement("t", "x", {}, account="a", currency="USD", cash_delta=Decimal("0.001")),
        Movement("t", "x", {}, delay=timedelta(seconds=-1)),
    ):
        with pytest.raises(InvalidArgument, match="movement 4"):
            shop.enqueue_many([*good[:3], bad, good[3]])
    assert backend.dump() == before


def test_an_empty_batch(backend: Backend, shop: Trex) -> None:
    before = backend.dump()
    assert shop.enqueue_many([]) == []
    assert backend.dump() == before


def test_the_largest_batch(backend: Backend, shop: Trex) -> None:
    movements = [Movement("t", f"k{n:05d}", n) for n in range(10_000)]
    answers = shop.enqueue_many(movements)
    assert [a.message_id for a in answers] == list(range(1, 10_001))
    with pytest.raises(InvalidArgument):
        shop.enqueue_many([*movements, Movement("t", "one more", {})])
    assert shop.stats().ready == 10_000


def test_delays_decide_when(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "later", {}, delay=timedelta(seconds=10))
    shop.enqueue("t", "now", {}, delay=timedelta(0))
    assert [c.idempotency_key for c in shop.claim("w", 5)] == ["now"]
    backend.advance(9.999999)
    assert shop.claim("w", 5) == []
    backend.advance(0.000001)
    assert [c.idempotency_key for c in shop.claim("w", 5)] == ["later"]


def test_payloads_up_to_the_limit_of_the_instance(backend: Backend) -> None:
    shop = backend.register("shop", payload_max=10)
    shop.enqueue("t", "k1", "é" * 4)
    with pytest.raises(InvalidArgument):
        shop.enqueue("t", "k2", "é" * 4 + "x")
    with pytest.raises(InvalidArgument, match="movement 2"):
        shop.enqueue_many([Movement("t", "k3", 1), Movement("t", "k4", "x" * 9)])
    # Canonical text is measured, with its blanks.
    with pytest.raises(InvalidArgument):
        shop.enqueue("t", "k5", payload_json="[1,2,3,4]")
    assert [row["idempotency_key"] for row in backend.rows("message")] == ["k1"]


def test_the_enqueue_time_is_the_clock_s(backend: Backend, shop: Trex) -> None:
    with backend.transaction(shop):
        shop.enqueue("t", "k1", {})
        backend.advance(30)
        shop.enqueue("t", "k2", {})
    assert backend.row("message", message_id=2)["enqueued_at"] == text(backend.now())
    assert shop.status(2).enqueued_at - shop.status(1).enqueued_at == timedelta(seconds=30)
