"""Snapshots, skips and the sums of pending cash follow the recorded outcome, and only it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import WHO, text
from trex_client.errors import ClaimLost, InvalidArgument
from trex_client.model import Cash, Movement, Report

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from trex_client.api import Trex
    from trex_client.model import Claim

pytestmark = [pytest.mark.criterion("ac-0042"), pytest.mark.criterion("ac-0038")]

D = Decimal


def movements(shop: Trex, count: int, **more: Any) -> list[Claim]:
    cash = {"account": "a", "currency": "USD", "cash_delta": D(1), **more}
    shop.enqueue_many([Movement("t", f"k{n}", n, **cash) for n in range(1, count + 1)])
    return sorted(shop.claim("w", count), key=lambda c: c.message_id)


def snapshot(backend: Backend) -> tuple[object, ...]:
    row = backend.row("ledger_snapshot")
    return row["balance"], row["version"], row["message_id"], row["ignored"], row["contradicted"]


def test_the_newest_version_stays(backend: Backend, shop: Trex) -> None:
    c = movements(shop, 7)
    stored = backend.now()
    shop.complete(1, c[0].fence, balance=D("10"), version=11)
    assert backend.rows("ledger_snapshot") == [
        {
            "instance_key": shop.instance_key,
            "account": "a",
            "currency": "USD",
            "balance": "10.00",
            "version": 11,
            "message_id": 1,
            "fence": c[0].fence,
            "ignored": 0,
            "contradicted": 0,
            "stored_at": text(stored),
        }
    ]
    backend.advance(1)
    shop.complete(2, c[1].fence, balance=D("9"), version=10)
    assert snapshot(backend) == ("10.00", 11, 1, 1, 0)
    shop.complete(3, c[2].fence, balance=D("10.00"), version=11)
    assert snapshot(backend) == ("10.00", 11, 1, 1, 0)
    shop.complete(4, c[3].fence, balance=D("12"), version=11)
    assert snapshot(backend) == ("10.00", 11, 1, 1, 1)
    shop.complete(5, c[4].fence)
    assert snapshot(backend) == ("10.00", 11, 1, 1, 1)
    shop.complete_duplicate(6, c[5].fence, balance=D("-13.5"), version=12)
    assert snapshot(backend) == ("-13.50", 12, 6, 1, 1)
    shop.complete(7, c[6].fence, balance=D(0), version=0)
    assert snapshot(backend) == ("-13.50", 12, 6, 2, 1)


def test_a_batch_stores_the_newest_of_each_account(backend: Backend, shop: Trex) -> None:
    for number, (account, currency) in enumerate(
        [("a", "USD"), ("b", "USD"), ("a", "USD"), ("a", "JPY"), ("b", "USD"), ("a", "USD")], 1
    ):
        shop.enqueue("t", f"k{number}", {}, account=account, currency=currency, cash_delta=1)
    fences = {c.message_id: c.fence for c in shop.claim("w", 6)}
    versions = {1: 5, 2: 2, 3: 7, 4: 1, 5: 3, 6: 6}
    shop.record(
        [
            Report(i, fences[i], "completed", balance=D(i), version=versions[i])
            for i in (6, 3, 5, 1, 4, 2)
        ]
    )
    rows = {
        (r["account"], r["currency"]): (r["balance"], r["version"], r["message_id"])
        for r in backend.rows("ledger_snapshot")
    }
    assert rows == {("a", "USD"): ("3.00", 7, 3), ("b", "USD"): ("5.00", 3, 5),
                    ("a", "JPY"): ("4", 1, 4)}  # fmt: skip


@pytest.mark.criterion("ac-0029")
def test_a_lost_claim_writes_no_snapshot_and_resolves_no_skip(backend: Backend, shop: Trex) -> None:
    (old,) = movements(shop, 1)
    shop.dead_letter(1, old.fence)
    shop.redrive([1], **WHO)
    (old,) = shop.claim("w")
    backend.advance(60)
    (new,) = shop.claim("v")
    before = backend.dump()
    with backend.rolled_back(shop), pytest.raises(ClaimLost):
        shop.complete(1, old.fence, balance=D(5), version=1)
    answer = shop.complete(1, old.fence, balance=D(5), version=1, on_lost="report")
    assert answer.status == "claim_lost"
    assert shop.record([Report(1, old.fence, "completed", balance=D(5), version=1)]) == [answer]
    after = backend.dump()
    for table in ("ledger_snapshot", "ledger_skip", "delivery", "outcome", "receipt"):
        assert after[table] == before[table], table
    assert backend.row("ledger_skip")["resolved_at"] is None
    shop.complete(1, new.fence, balance=D(6), version=2)
    assert snapshot(backend)[:2] == ("6.00", 2)
    assert backend.row("ledger_skip")["resolved_fence"] == new.fence


def test_write_back_and_outcome_are_one(backend: Backend, shop: Trex) -> None:
    claim, other = movements(shop, 2)
    before = backend.dump()
    with backend.rolled_back(shop):
        shop.complete(1, claim.fence, balance=D(5), version=1)
    assert backend.dump() == before
    # The next try ends as a duplicate, with the write-back.
    shop.complete_duplicate(1, claim.fence, balance=D(5), version=1)
    assert snapshot(backend) == ("5.00", 1, 1, 0, 0)
    # Repeated: the write-back isn't.
    shop.complete_duplicate(1, claim.fence, balance=D(7), version=9)
    assert snapshot(backend) == ("5.00", 1, 1, 0, 0)
    # Over an older one as well.
    with backend.rolled_back(shop):
        shop.complete(2, other.fence, balance=D(6), version=2)
    assert snapshot(backend) == ("5.00", 1, 1, 0, 0)


def test_a_skip_opens_and_closes_with_the_message(backend: Backend, shop: Trex) -> None:
    (claim,) = movements(shop, 1)
    first = backend.now()
    shop.fail(1, claim.fence, reason="rejected")
    skip = {
        "instance_key": shop.instance_key,
        "message_id": 1,
        "account": "a",
        "currency": "USD",
        "cash_delta": "1.00",
        "parked": "permanent",
        "reason": "rejected",
        "opened_at": text(first),
        "resolved_at": None,
        "resolved_fence": None,
    }
    assert backend.rows("ledger_skip") == [skip]
    shop.redrive([1], **WHO)
    assert backend.rows("ledger_skip") == [skip]
    second = backend.advance(5)
    (claim,) = shop.claim("w")
    shop.conflict(1, claim.fence)
    skip |= {"parked": "conflict", "reason": "key_conflict", "opened_at": text(second)}
    assert backend.rows("ledger_skip") == [skip]
    third = backend.advance(5)
    shop.resolve(1, "resend", evidence="not there", **WHO)
    (claim,) = shop.claim("w")
    shop.complete(1, claim.fence)
    skip |= {"resolved_at": text(third), "resolved_fence": claim.fence}
    assert backend.rows("ledger_skip") == [skip]


def cash(shop: Trex) -> dict[tuple[str, str], tuple[Decimal, Decimal, Decimal, int]]:
    return {
        (c.account, c.currency): (c.pending, c.uncertain, c.skipped, c.entries)
        for c in shop.pending_cash_delta()
    }


def test_the_three_sums_through_a_life(backend: Backend, shop: Trex) -> None:
    """After each step the sums equal a plain sum over what is undelivered."""
    other = backend.register("other")
    other.enqueue("t", "k", {}, account="a", currency="USD", cash_delta=1000)
    shop.enqueue("t", "no cash", {}, delay=timedelta(days=9))

    def check() -> None:
        sums: dict[tuple[str, str], list[Decimal]] = {}
        facts = {
            r["message_id"]: r
            for r in backend.rows("message", instance_key=shop.instance_key)
            if r["account"] is not None
        }
        for row in backend.rows("delivery", instance_key=shop.instance_key):
            fact = facts.get(row["message_id"])
            if fact is None:
                continue
            column = 1 if row["uncertain"] else 0 if row["parked"] is None else 2
            entry = sums.setdefault((fact["account"], fact["currency"]), [D(0), D(0), D(0), D(0)])
            entry[column] += D(fact["cash_delta"])
            entry[3] += 1
        assert {key: list(entry) for key, entry in cash(shop).items()} == sums

    amounts = ["0.1", "0.2", "-12.34", "99999999999999999999.99", "0", "5", "6", "7", "8", "9"]
    for number, amount in enumerate(amounts, 1):
        shop.enqueue("t", f"k{number}", {}, account="ab"[number % 2], currency="USD",
                     cash_delta=D(amount))  # fmt: skip
        check()
    fences = {c.message_id: c.fence for c in shop.claim("w", 20)}
    check()
    ids = sorted(fences)
    shop.complete(ids[0], fences[ids[0]])
    check()
    shop.complete_duplicate(ids[1], fences[ids[1]])
    check()
    shop.retry(ids[2], fences[ids[2]])
    check()
    shop.mark_unknown(ids[3], fences[ids[3]])
    check()
    shop.conflict(ids[4], fences[ids[4]])
    check()
    shop.fail(ids[5], fences[ids[5]])
    check()
    shop.dead_letter(ids[6], fences[ids[6]])
    check()
    shop.mark_unknown(ids[7], fences[ids[7]], park=True)
    check()
    shop.redrive([ids[5], ids[6]], **WHO)
    check()
    with backend.rolled_back(shop):
        shop.complete(ids[8], fences[ids[8]])
        check_inside = cash(shop)
    assert cash(shop) != check_inside
    check()
    backend.advance(60)
    fences_again = {c.message_id: c.fence for c in shop.claim("v", 20)}
    check()
    with pytest.raises(ClaimLost):
        shop.complete(ids[8], fences[ids[8]])
    check()
    shop.complete(ids[8], fences_again[ids[8]])
    shop.complete(ids[8], fences_again[ids[8]])
    check()
    shop.resolve(ids[7], "abandon", evidence="e", **WHO)
    check()
    shop.resolve(ids[4], "delivered", evidence="e", **WHO)
    check()


def test_sums_by_account_and_currency(backend: Backend, shop: Trex) -> None:
    for number, (account, currency, amount) in enumerate(
        [("b", "USD", "1"), ("a", "JPY", "2"), ("a", "USD", "0.10"), ("a", "USD", "0.20"),
         ("a", "BTC", "0.00000001"), ("B", "USD", "-0")]
    ):  # fmt: skip
        shop.enqueue("t", f"k{number}", {}, account=account, currency=currency,
                     cash_delta=D(amount))  # fmt: skip
    zero = D(0)
    every = [
        Cash("B", "USD", zero, zero, zero, 1),
        Cash("a", "BTC", D("0.00000001"), zero, zero, 1),
        Cash("a", "JPY", D(2), zero, zero, 1),
        Cash("a", "USD", D("0.30"), zero, zero, 2),
        Cash("b", "USD", D(1), zero, zero, 1),
    ]
    assert shop.pending_cash_delta() == every
    assert shop.pending_cash_delta(account="a") == every[1:4]
    assert shop.pending_cash_delta(currency="USD") == [every[0], every[3], every[4]]
    assert shop.pending_cash_delta(account="a", currency="USD") == [every[3]]
    assert shop.pending_cash_delta(account="nobody") == []


def test_a_balance_that_cannot_be_is_refused_by_its_report(backend: Backend, shop: Trex) -> None:
    """Of a thousand reports somebody must find the one that stops the others."""
    claims = movements(shop, 3)
    shop.enqueue("t", "no cash", {})
    claims += shop.claim("w")
    before = backend.dump()

    def refused(*reports: Report) -> list[str]:
        said = []
        for call in (
            lambda: shop.record(reports),
            lambda: shop.exchange(reports, "w"),
        ):
            with pytest.raises(InvalidArgument) as error:
                call()
            said.append(
                str(error.value).removeprefix("invalid argument: ").rpartition("balance")[0]
            )
        return said

    def report(index: int, balance: str) -> Report:
        c = claims[index]
        return Report(c.message_id, c.fence, "completed", balance=D(balance), version=1)

    fine = report(2, "1")
    assert refused(fine, report(1, "1.001"), report(0, "1.002")) == ["report 2: "] * 2
    assert refused(fine, report(3, "1")) == ["report 2: "] * 2
    assert refused(report(0, "1.001")) == ["report 1: "] * 2
    assert refused(fine, report(0, "1e38")) == ["report 2: "] * 2
    # Also where there is no such claim: what is wrong is wrong whoever has the message.
    nobody = Report(999_999, 1, "completed", balance=D("1e38"), version=1)
    assert refused(fine, nobody) == ["report 2: "] * 2
    with pytest.raises(InvalidArgument, match=r"^invalid argument: balance"):
        shop.complete(claims[0].message_id, claims[0].fence, balance=D("1.001"), version=1)
    assert backend.dump() == before
