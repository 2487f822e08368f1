"""Corrections stand beside what was done, once each, and never overwrite it."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support.backends import WHO
from trex_client.errors import Forbidden, InvalidArgument, KeyReused, NotFound, VersionConflict

pytestmark = pytest.mark.criterion("ac-0058")

ROOT = Path(__file__).resolve().parents[3]
ORDER = json.loads((ROOT / "examples/machines/order.json").read_text(encoding="utf-8"))
BY = {"actor": "ann", "role": "clerk", "reason": "damaged", "evidence": "photo 7"}


@pytest.fixture
def shop(backend):
    return prepared(backend)


def prepared(backend):
    client = backend.register("shop")
    client.machine_load("order", ORDER, **WHO)
    client.transition(
        "order", "o1", "place", 0, "buy", actor="bob", role="buyer", reason="r",
        amount=Decimal("100.00"),
    )  # fmt: skip
    client.transition(
        "order", "o2", "place", 0, "free", actor="bob", role="buyer", reason="r", amount=1
    )
    client.transition("order", "o2", "cancel", 1, "cancel", actor="bob", role="buyer", reason="r")
    return client


def test_original_corrections_and_balance_stand_together(backend, shop):
    original = backend.row("operation", operation_id="buy")
    first = shop.correct("buy", "c1", "refund", Decimal("-30.50"), 0, **BY)
    assert (first.status, first.version, first.balance) == ("applied", 1, Decimal("69.5"))
    assert (first.on_state, first.on_version) == ("placed", 1)
    second = shop.correct("buy", "c2", "rebate", -10, 1, expected_balance=Decimal("69.50"), **BY)
    assert (second.version, second.balance) == (2, Decimal("59.5"))
    lines = shop.operation_history("buy")
    assert [(x.version, x.id, x.amount, x.balance) for x in lines] == [
        (0, "buy", Decimal(100), Decimal(100)),
        (1, "c1", Decimal("-30.5"), Decimal("69.5")),
        (2, "c2", Decimal(-10), Decimal("59.5")),
    ]
    assert [x.kind for x in lines] == ["transition", "refund", "rebate"]
    assert (lines[1].actor, lines[1].reason, lines[1].evidence) == ("ann", "damaged", "photo 7")
    assert backend.row("operation", operation_id="buy") == original
    assert len(backend.rows("audit", action="correct")) == 2


def test_a_correction_is_applied_once(backend, shop):
    first = shop.correct("buy", "c1", "refund", -30, 0, **BY)
    before = backend.dump()
    for version in (0, 1, 7):
        again = shop.correct("buy", "c1", "refund", Decimal("-30.00"), version, **BY)
        assert (again.status, again.version, again.balance) == ("replayed", 1, first.balance)
    with pytest.raises(KeyReused):
        shop.correct("buy", "c1", "refund", -31, 1, **BY)
    with pytest.raises(KeyReused):
        shop.correct("free", "c1", "refund", -30, 0, **BY)
    assert backend.dump() == before


@pytest.mark.parametrize(
    ("error", "operation", "amount", "version", "balance"),
    [
        (NotFound, "none", -1, 0, None),
        (VersionConflict, "buy", -1, 1, None),
        (VersionConflict, "buy", -1, 0, 99),
        (Forbidden, "buy", Decimal("-100.01"), 0, None),
        (Forbidden, "cancel", 1, 0, None),
        (Forbidden, "buy", Decimal("99999999999999999999"), 0, None),
    ],
)
def test_refusals(backend, shop, error, operation, amount, version, balance):
    before = backend.dump()
    with pytest.raises(error):
        shop.correct(operation, "c", "k", amount, version, expected_balance=balance, **BY)
    told = shop.correct(
        operation, "c", "k", amount, version, expected_balance=balance, on_refused="report", **BY
    )
    assert told.status in ("not_found", "version_conflict", "forbidden")
    assert backend.dump() == before


def test_each_correction_builds_on_the_last_one(backend, shop):
    for number in range(4):
        done = shop.correct("buy", f"c{number}", "refund", -10, number, **BY)
        assert (done.status, done.version, done.balance) == (
            "applied",
            number + 1,
            90 - 10 * number,
        )


def test_a_full_correction_leaves_nothing_and_not_less(shop):
    assert shop.correct("buy", "c1", "refund", -100, 0, **BY).balance == 0
    with pytest.raises(Forbidden):
        shop.correct("buy", "c2", "refund", -1, 1, **BY)
    assert shop.correct("buy", "c3", "note", 0, 1, **BY).balance == 0


def test_an_operation_without_amount_takes_notes_only(shop):
    assert shop.correct("cancel", "c1", "note", 0, 0, **BY).status == "applied"
    lines = shop.operation_history("cancel")
    assert [(x.amount, x.balance) for x in lines] == [(None, None), (0, 0)]


@pytest.mark.parametrize(
    "given",
    [
        {"operation_id": ""}, {"adjustment_id": ""}, {"kind": "K"}, {"amount": None},
        {"amount": 0.5}, {"amount": Decimal("inf")}, {"expected_version": -1}, {"actor": ""},
        {"role": "R"}, {"reason": ""}, {"evidence": ""}, {"expected_balance": Decimal("NaN")},
        {"on_refused": None},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_arguments(shop, given):
    call = {
        "operation_id": "buy", "adjustment_id": "c", "kind": "k", "amount": 0,
        "expected_version": 0,
    } | BY | given  # fmt: skip
    with pytest.raises(InvalidArgument):
        shop.correct(**call)
    with pytest.raises(NotFound):
        shop.operation_history("none")


def test_of_many_correctors_each_builds_on_what_it_saw(postgres):
    postgres.uncompared()
    clients = [prepared(postgres)]
    clients += [postgres.client("shop") for _ in range(5)]
    applied = []
    barrier = threading.Barrier(len(clients))

    def run(index, client):
        barrier.wait()
        version = done = 0
        while done < 3:
            told = client.correct(
                "buy", f"c{index}-{done}", "refund", -5, version, on_refused="report", **BY
            )
            version = told.version
            if told.status == "applied":
                done += 1
                applied.append(told)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(applied) == 18
    lines = clients[0].operation_history("buy")
    assert [x.version for x in lines] == list(range(19))
    assert [x.balance for x in lines] == [Decimal(100 - 5 * n) for n in range(19)]


def test_a_correction_against_a_late_completion(backend, shop):
    """The order ships; the carrier's success comes after the amount was corrected."""

    def move(event, version, operation, role, amount=None):
        return shop.transition(
            "order", "o1", event, version, operation, actor="x", role=role, reason="r",
            amount=amount,
        )  # fmt: skip

    move("approve", 1, "approve", "clerk", 100)
    shipped = move("ship", 2, "ship", "warehouse")
    corrected = shop.correct("buy", "c1", "refund", -20, 0, **BY)
    assert (corrected.on_state, corrected.on_version) == ("shipped", 3)
    (claimed,) = shop.claim("w")
    assert claimed.message_id == shipped.message_id
    backend.advance(60)
    late = shop.complete(claimed.message_id, claimed.fence)
    assert (late.status, late.late) == ("recorded", True)
    assert move("arrive", 3, "arrive", "carrier").state == "delivered"
    assert shop.operation_history("buy")[-1].balance == 80
    assert shop.correct("buy", "c1", "refund", -20, 1, **BY).status == "replayed"
