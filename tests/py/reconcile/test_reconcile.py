"""Reconciliation: silent on clean data, each planted drift once, repairs of leases only."""

from __future__ import annotations

import inspect
import json
import threading
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import CodeType
from typing import Any

import psycopg
import pytest

from tests.py.authority.world import ACCOUNT, Provider, drain, grant, order, receive
from tests.support.backends import WHO
from trex_client.errors import AccessDenied, InvalidArgument, NotFound
from trex_client.memory import MemoryClient, MemoryDatabase
from trex_client.model import Movement

pytestmark = pytest.mark.criterion("ac-0060")

ORDER = json.loads(
    (Path(__file__).resolve().parents[3] / "examples/machines/order.json").read_text("utf-8")
)


def run(client, limit=1000, **given):
    """A whole run; its report and what it found."""
    report = client.reconcile(limit=limit, **WHO, **given)
    calls = 1
    while report.state == "running":
        report = client.reconcile(run_id=report.run_id, limit=limit, **WHO)
        calls += 1
    return report, client.reconcile_findings(report.run_id, limit=10_000), calls


def lived_in(backend, client):
    """A shop with something of everything, all of it in order."""
    for number in range(6):
        client.enqueue(
            "pay", f"k{number}", {}, account="a", currency="USD", cash_delta=1,
            ordering_key=f"o{number % 2}",
        )  # fmt: skip
    for end in ("complete", "complete_duplicate", "retry", "release"):
        for claim in client.claim("w", 1):
            options: dict[str, Any] = {}
            if end.startswith("complete"):
                options = {"balance": Decimal(claim.message_id), "version": claim.message_id}
            getattr(client, end)(claim.message_id, claim.fence, **options)
    backend.advance(5)
    for claim in client.claim("w", 10):
        client.mark_unknown(claim.message_id, claim.fence, park=True)
        client.resolve(claim.message_id, "delivered", evidence="seen", **WHO)
    while claims := client.claim("w", 10):
        for claim in claims:
            client.complete(claim.message_id, claim.fence)
    licence = grant(backend, client, "in_1", valid_for=timedelta(days=30))
    grant(backend, client, "in_2")
    client.issue_capability("cap", licence, "buy_1")
    client.execute_licence("cap", "buy_1", "use")
    now = backend.now()
    client.update_subscription(
        ACCOUNT, "sub", "in_1", status="active", period_end=now + timedelta(days=30), asked_at=now
    )
    client.machine_load("order", ORDER, **WHO)
    client.transition("order", "o1", "place", 0, "p", actor="a", role="buyer", reason="r", amount=1)


def test_clean_data_is_clean(backend, shop):
    lived_in(backend, shop)
    backend.advance(60)
    before = backend.dump()
    report, findings, calls = run(shop)
    assert (report.state, report.found, report.fresh, report.repaired) == ("clean", 0, 0, 0)
    assert (findings, calls) == ([], 1)
    assert report.examined >= 20
    after = backend.dump()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"audit", "reconcile_run"}
    assert backend.rows("reconcile_run")[0]["state"] == "clean"


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_run_is_bounded_and_goes_on(backend, shop, limit):
    lived_in(backend, shop)
    shop.enqueue("pay", "late", {})
    backend.advance(3601)
    whole, findings, _ = run(shop)
    report, again, calls = run(shop, limit=limit)
    assert (report.state, report.examined) == ("findings", whole.examined)
    assert calls >= whole.examined // limit
    assert [f.finding_id for f in again] == [f.finding_id for f in findings]
    assert (report.found, report.fresh) == (whole.found, 0)
    # A finished run answers as it ended.
    assert shop.reconcile(run_id=report.run_id, **WHO) == report
    newest, oldest = shop.reconcile_reports()
    assert (newest, oldest) == (report, whole)
    assert shop.reconcile_reports(before=report.run_id) == [whole]
    assert shop.reconcile_reports(limit=1) == [report]


def found(client, **given):
    report, findings, _ = run(client, **given)
    assert report.state == "findings"
    assert report.found == report.fresh == len(findings)
    second, _again, _ = run(client, **given)
    assert (second.found, second.fresh) == (report.found - report.repaired, 0)
    return report, findings


@pytest.mark.parametrize("end", ["fail", "dead_letter", "conflict", "mark_unknown"])
def test_a_parked_movement(backend, shop, end):
    lived_in(backend, shop)
    shop.enqueue("pay", "bad", {})
    (claim,) = shop.claim("w")
    getattr(shop, end)(
        claim.message_id, claim.fence, **({"park": True} if end == "mark_unknown" else {})
    )
    report, (finding,) = found(shop)
    assert (finding.type, finding.state) == ("failed_or_stuck_outbox", "needs_review")
    assert finding.ref_ids.items() >= {"message_id": claim.message_id, "fence": claim.fence}.items()
    assert finding.causal_events == [f"message:{claim.message_id}"]
    assert ("resolve" in finding.recommended_action) == (end in ("conflict", "mark_unknown"))
    assert report.repaired == 0


def test_a_stuck_movement_and_a_waiting_one(backend, shop):
    shop.enqueue("pay", "stuck", {})
    shop.enqueue("pay", "later", {}, delay=timedelta(days=1))
    shop.enqueue("pay", "first", {}, ordering_key="o")
    shop.enqueue("pay", "second", {}, ordering_key="o")
    backend.advance(3600)
    assert run(shop)[0].state == "clean"
    backend.advance(1)
    _, findings = found(shop)
    assert sorted(f.ref_ids["message_id"] for f in findings) == [1, 3, 4]
    assert {f.actual for f in findings} == {"stuck"}


def test_an_event_that_waits_too_long(backend, shop):
    receive(shop, "E1")
    provider = Provider()
    for _ in range(61):
        drain(backend, shop, provider)
        backend.advance(60)
    _, findings = found(shop)
    types = {f.type for f in findings}
    assert types == {"unprocessed_inbox_events"}
    assert len(findings) == 1


def test_an_ended_lease_is_turned_back_and_nothing_else(backend, shop):
    shop.enqueue("pay", "k", {})
    receive(shop, "E1")
    (claim,) = shop.claim("w")
    shop.claim("w", box="inbox")
    backend.advance(30 + 3600)
    assert run(shop)[0].state == "clean"
    backend.advance(1)
    report, findings = found(shop)
    assert report.repaired == 2
    assert {f.type for f in findings} == {"failed_or_stuck_outbox", "unprocessed_inbox_events"}
    for finding in findings:
        assert (finding.state, finding.recoverable) == ("repaired", True)
    for row in backend.rows("delivery"):
        assert (row["lease_until"], row["attempts"], row["uncertain"]) == (None, 1, True)
    assert {row["kind"] for row in backend.rows("outcome")} == {"lease_expired"}
    audits = backend.rows("audit", action="reconcile", message_id=claim.message_id)
    assert len(audits) == 1
    (again,) = shop.claim("w2")
    assert (again.message_id, again.attempt) == (claim.message_id, 2)
    assert again.fence > claim.fence


def test_an_exhausted_lease_parks_as_claim_would_do_it(backend):
    shop = backend.register("shop", max_attempts=1)
    shop.enqueue("pay", "k", {})
    shop.claim("w")
    backend.advance(3700)
    report, _, _ = run(shop)
    assert report.repaired == 1
    assert shop.status(1).state == "unknown"
    # The lease that ended is repaired; that it parked is another drift.
    report, findings, _ = run(shop)
    assert (report.found, report.fresh) == (1, 1)
    assert sorted(f.actual for f in findings) == ["parked unknown"]


def test_a_message_that_parks_again_is_a_fresh_finding(backend):
    shop = backend.register("shop", max_attempts=1)
    shop.enqueue("pay", "k", {})
    seen = []
    for _ in range(2):
        (claim,) = shop.claim("w")
        shop.fail(claim.message_id, claim.fence)
        report, findings = found(shop)
        assert (report.found, report.fresh) == (1, 1)
        seen.append(findings[0].ref_ids)
        assert seen[-1] == {"message_id": 1, "fence": claim.fence, "parked": "permanent"}
        shop.redrive([1], **WHO)
    assert len(shop.reconcile_findings()) == 2


def test_an_overdue_entity(backend, shop):
    lived_in(backend, shop)
    backend.advance(timedelta(days=1, seconds=1))
    _, (finding,) = found(shop)
    assert (finding.type, finding.actual) == ("overdue_state", "still placed")
    assert finding.ref_ids == {"machine": "order", "entity": "o1", "version": 1}
    assert finding.recommended_action == "approve or cancel"


def test_paid_without_a_right(backend, shop):
    order(shop)
    shop.record_payment(ACCOUNT, "in_1", "paid")
    backend.advance(3600)
    assert run(shop)[0].state == "clean"
    backend.advance(1)
    _, (finding,) = found(shop)
    assert (finding.type, finding.recoverable) == ("paid_no_entitlement", False)
    assert finding.ref_ids == {"account": ACCOUNT, "invoice_id": "in_1"}


@pytest.mark.parametrize("status", ["open", "void"])
def test_a_right_without_payment(backend, shop, status):
    right = grant(backend, shop)
    shop.record_payment(ACCOUNT, "in_1", status)
    before = backend.row("entitlement")
    _, (finding,) = found(shop)
    assert (finding.type, finding.actual) == ("unpaid_but_entitled", status)
    assert finding.ref_ids["entitlement_id"] == right
    assert (finding.state, finding.recoverable) == ("needs_review", False)
    assert backend.row("entitlement") == before


def test_refunded_but_still_valid(backend, shop):
    grant(backend, shop)
    shop.record_payment(ACCOUNT, "in_1", "refunded")
    _, (finding,) = found(shop)
    assert finding.type == "refunded_but_valid_entitlement"


def test_nothing_left_of_a_valid_right():
    """On a server: tests/sql/reconcile/nothing_left_of_a_right.sql."""
    shop = MemoryClient(MemoryDatabase(), "shop")
    shop.register_instance(**WHO)
    shop.bind("app", **WHO)
    order(shop)
    shop.receive("stripe", ACCOUNT, "E", "paid", "in_1", b"raw", {})
    (claim,) = shop.claim("w", box="inbox")
    right = shop.finalize_paid(
        claim.message_id, claim.fence, account=ACCOUNT, invoice_id="in_1", order_id="ord_1",
        status="paid",
    ).entitlement_id  # fmt: skip
    assert right is not None
    assert shop.reconcile(**WHO).state == "clean"
    shop._correct(
        right, "c-1", "fee", Decimal("-49.90"), 0, None, "ann", "boss", "r", "e", shop.db._now()
    )
    shop.reconcile(**WHO)
    (finding,) = shop.reconcile_findings(2)
    assert (finding.type, finding.actual) == ("refunded_but_valid_entitlement", "paid")


def test_a_subscription_that_ended_with_a_right_that_goes_on(backend, shop):
    grant(backend, shop)
    now = backend.now()
    shop.update_subscription(ACCOUNT, "sub", "in_1", status="expired", period_end=now, asked_at=now)
    assert run(shop)[0].state == "clean"
    backend.advance(1)
    _, (finding,) = found(shop)
    assert (finding.type, finding.actual) == (
        "subscription_expired_but_renewed", "subscription expired",
    )  # fmt: skip


def test_a_contradicted_snapshot(backend, shop):
    for number in (1, 2):
        shop.enqueue("pay", f"k{number}", {}, account="a", currency="USD", cash_delta=1)
        (claim,) = shop.claim("w")
        shop.complete(claim.message_id, claim.fence, balance=Decimal(number), version=7)
    _, (finding,) = found(shop)
    assert (finding.type, finding.actual) == ("snapshot_drift", "contradicted")
    assert finding.ref_ids == {"account": "a", "currency": "USD"}


def test_findings_by_run_and_state(backend, shop):
    shop.enqueue("pay", "k", {})
    shop.claim("w")
    backend.advance(3700)
    first, _, _ = run(shop)
    shop.enqueue("pay", "bad", {})
    claims = shop.claim("w", 5)
    for claim in claims:
        shop.fail(claim.message_id, claim.fence)
    second, _, _ = run(shop)
    assert len(shop.reconcile_findings()) == 3
    assert [f.state for f in shop.reconcile_findings(first.run_id)] == ["repaired"]
    assert [f.state for f in shop.reconcile_findings(second.run_id)] == ["needs_review"] * 2
    assert len(shop.reconcile_findings(state="repaired")) == 1
    everything = shop.reconcile_findings()
    assert shop.reconcile_findings(limit=2, after=everything[0].finding_id) == everything[1:]


@pytest.mark.parametrize(
    "given",
    [
        {"actor": ""}, {"reason": ""}, {"run_id": 0}, {"limit": 0}, {"limit": 10_001},
        {"longest_stay": timedelta(0)}, {"longest_stay": timedelta(days=367)},
        {"longest_stay": None},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_arguments(backend, shop, given):
    with pytest.raises(InvalidArgument):
        shop.reconcile(**(WHO | given))
    assert backend.rows("reconcile_run") == []


def test_others_are_refused(backend, shop):
    report, _, _ = run(shop)
    other, stranger = backend.register("other"), backend.client("shop", "stranger")
    with pytest.raises(NotFound):
        other.reconcile(run_id=report.run_id, **WHO)
    with pytest.raises(NotFound):
        other.reconcile_findings(report.run_id)
    with pytest.raises(NotFound):
        shop.reconcile_findings(report.run_id + 1)
    assert other.reconcile_reports() == other.reconcile_findings() == []
    for call in (
        lambda: stranger.reconcile(**WHO),
        lambda: stranger.reconcile_reports(),
        lambda: stranger.reconcile_findings(),
    ):
        with pytest.raises(AccessDenied):
            call()
    for bad in ({"run_id": 0}, {"state": "open"}, {"limit": 0}, {"after": "x" * 65}):
        with pytest.raises(InvalidArgument):
            shop.reconcile_findings(**bad)
    for bad in ({"limit": 0}, {"before": 0}):
        with pytest.raises(InvalidArgument):
            shop.reconcile_reports(**bad)


# Drift that no function can make: planted past the guards, by the superuser.


@contextmanager
def unguarded(postgres, *tables):
    postgres.uncompared()
    for table in tables:
        postgres.admin.execute(f"alter table trex.{table} disable trigger user")
    yield
    for table in tables:
        for (name,) in postgres.admin.execute(
            "select tgname from pg_trigger where tgrelid = %s::regclass and not tgisinternal",
            (f"trex.{table}",),
        ).fetchall():
            postgres.admin.execute(f"alter table trex.{table} enable always trigger {name}")


PLANTED = {
    "fence_gap": ("outcome", "delete from trex.outcome where {mine} and kind = 'retry'"),
    "orphan_row": ("message", "delete from trex.message where {mine} and message_id = 2"),
    "skip_without_parked_row": (
        "ledger_skip",
        (
            "insert into trex.ledger_skip (instance_key, message_id, parked, reason, opened_at)"
            " select instance_key, 1, 'unknown', 'timeout', now() from trex.message where {mine}"
            " and message_id = 1"
        ),
    ),
    "snapshot_drift": ("ledger_snapshot", "update trex.ledger_snapshot set fence = 1 where {mine}"),
    "duplicate_issuance_per_payment": (
        "entitlement",
        (
            "insert into trex.entitlement select instance_key, 'zz', account, invoice_id, order_id,"
            " seller, buyer, item, state, 1, granted_at, valid_until, changed_at"
            " from trex.entitlement where {mine} and invoice_id = 'in_2'"
        ),
    ),
    "counter_drift": (
        "usage_counter",
        "update trex.usage_counter set uses = 5 where {mine} and period = 'all'",
    ),
    "paid_no_entitlement": (
        "entitlement",
        "delete from trex.entitlement where {mine} and invoice_id = 'in_2'",
    ),
}


@pytest.mark.parametrize("kind", list(PLANTED))
def test_planted_drift_is_told_once(postgres, kind):
    shop = postgres.register("shop")
    lived_in(postgres, shop)
    # The right of this licence goes in one of the cases.
    table, statement = PLANTED[kind]
    with unguarded(postgres, table):
        mine = f"instance_key = '{shop.instance_key}'"
        cursor = postgres.admin.execute(statement.format(mine=mine))
        assert cursor.rowcount == 1
    try:
        if kind == "paid_no_entitlement":
            postgres.advance(3601)
        _, (finding,) = found(shop)
        assert (finding.type, finding.state) == (kind, "needs_review")
        assert not finding.recoverable
    finally:
        _heal(postgres, shop)


def test_the_simulation_says_what_sql_says():
    """What drifts are called and what to do about them: every text of the twin is in the SQL."""
    folder = Path(__file__).resolve().parents[3] / "sql/functions"
    sql = "".join(path.read_text("utf-8") for path in folder.rglob("*reconcile*.sql"))
    texts = set()
    for name, function in inspect.getmembers(MemoryClient, inspect.isfunction):
        ours = function.__code__.co_filename.endswith("_memory_reconcile.py")
        if ours and (name.startswith("_check_") or name in {"_drifts", "_rights"}):
            texts |= set(_texts(function.__code__)) - {function.__doc__}
    assert len(texts) > 80
    assert {text for text in texts if text not in sql} == set()


def _texts(code):
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _texts(value)
        elif isinstance(value, (tuple, frozenset)):
            yield from (one for one in value if isinstance(one, str))
        elif isinstance(value, str) and "<" not in value:
            yield value


@pytest.mark.parametrize(
    ("kind", "statement"),
    [
        ("orphan_row", "insert into trex.delivery (instance_key, message_id, box)"),
        (
            "fence_gap",
            (
                "insert into trex.outcome (fence, attempt, kind, state, reason, late, recorded_at,"
                " instance_key, message_id)"
            ),
        ),
    ],
)
def test_what_no_guard_refuses_is_found(postgres, kind, statement):
    """A second life of a delivered message, and a second end of its fence: only the owner can."""
    postgres.uncompared()
    shop = postgres.register("shop")
    shop.enqueue("pay", "k", {})
    (claim,) = shop.claim("w")
    shop.complete(1, claim.fence)
    values = f"'{shop.instance_key}', 1"
    if kind == "orphan_row":
        postgres.admin.execute(f"{statement} values ({values}, 'outbox')")
    else:
        postgres.admin.execute(
            f"{statement} values"
            f" ({claim.fence}, 1, 'retry', 'ready', 'timeout', false, now(), {values})"
        )
    try:
        _, (finding,) = found(shop)
        assert (finding.type, finding.state) == (kind, "needs_review")
    finally:
        _heal(postgres, shop)


def _heal(postgres, shop):
    """What was planted breaks the invariants that every test ends with."""
    tables = ("message", "delivery", "receipt", "outcome", "ledger_skip", "ledger_snapshot")
    with unguarded(postgres, *tables):
        for table in tables:
            postgres.admin.execute(
                f"delete from trex.{table} where instance_key = %s", (shop.instance_key,)
            )


def test_a_source_that_cant_be_read_makes_the_run_failed(postgres):
    shop = postgres.register("shop")
    lived_in(postgres, shop)
    postgres.uncompared()
    postgres.admin.execute("alter table trex.payment rename to payment_gone")
    try:
        report, findings, _ = run(shop)
    finally:
        postgres.admin.execute("alter table trex.payment_gone rename to payment")
    assert (report.state, report.failed_check, report.failed_code) == (
        "failed", "payments", "42P01",
    )  # fmt: skip
    assert findings == []
    assert report.finished_at is not None
    assert shop.reconcile(run_id=report.run_id, **WHO) == report
    assert run(shop)[0].state == "clean"


def test_runs_and_findings_are_guarded(postgres):
    shop = postgres.register("shop")
    shop.enqueue("pay", "k", {})
    postgres.advance(3601)
    run(shop)
    mine = f"where instance_key = '{shop.instance_key}'"
    for statement, code in (
        ("delete from trex.reconcile_run", "TX901"),
        ("truncate trex.reconcile_finding", "TX901"),
        ("delete from trex.reconcile_finding", "TX901"),
        (f"update trex.reconcile_run set found = 0 {mine}", "TX902"),
        (f"update trex.reconcile_finding set state = 'repaired' {mine}", "TX902"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            postgres.admin.execute(statement)
        assert caught.value.sqlstate == code, statement


def test_a_page_reads_what_it_holds(postgres):
    """Bounded on a large instance: buffers of one page don't grow with the table."""
    shop = postgres.register("shop")
    postgres.uncompared()
    postgres.admin.execute(
        "with m as (insert into trex.message (instance_key, message_id, box, topic,"
        " idempotency_key, payload, digest, effect_policy, enqueued_at)"
        " select %s, nextval('trex.message_id_seq'), 'outbox', 't', 'k' || n, '{}', sha256('{}'),"
        " 'idempotent', trex._now() from generate_series(1, 20000) n returning message_id)"
        " insert into trex.delivery (instance_key, message_id, box)"
        " select %s, message_id, 'outbox' from m",
        (shop.instance_key, shop.instance_key),
    )
    postgres.admin.execute("analyze trex.message; analyze trex.delivery; analyze trex.outcome")
    report = shop.reconcile(limit=100, **WHO)
    while report.examined < 10_000:
        report = shop.reconcile(run_id=report.run_id, limit=5000, **WHO)
    row = postgres.admin.execute(
        "explain (analyze, buffers, format json) select trex._reconcile_page(%s, 'messages', %s,"
        " 100, '1 hour', trex._now())",
        (shop.instance_key, postgres.rows("reconcile_run")[0]["after"]),
    ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 3000


def test_j7_what_is_under_way_is_no_finding(backend, shop):
    """Deferred to tomorrow, in retry, claimed, and delivered between two pages of one run."""
    lived_in(backend, shop)
    shop.enqueue("pay", "tomorrow", {}, account="a", currency="USD", cash_delta=5,
                 delay=timedelta(days=1))  # fmt: skip
    for number in range(3):
        shop.enqueue("pay", f"again{number}", {}, account="a", currency="USD", cash_delta=1)
        (claim,) = shop.claim("w")
        shop.retry(claim.message_id, claim.fence, delay=timedelta(hours=2))
    for number in range(40):
        shop.enqueue("pay", f"now{number}", {}, account="a", currency="USD", cash_delta=1)
    held = shop.claim("w", 40, lease=timedelta(minutes=10))
    backend.advance(60)
    for _ in range(2):
        report = shop.reconcile(limit=4, **WHO)
        while report.state == "running":
            for claim in held[:1]:
                shop.complete(
                    claim.message_id, claim.fence, balance=Decimal(1000), version=claim.fence
                )
                held.remove(claim)
            report = shop.reconcile(run_id=report.run_id, limit=4, **WHO)
        assert (report.state, report.found) == ("clean", 0)
    assert not held
    assert shop.reconcile_findings() == []
    (cash,) = shop.pending_cash_delta()
    assert (cash.pending, cash.entries) == (8, 4)


@pytest.mark.case("J7")
def test_a_run_beside_workers_finds_nothing(postgres):
    """Each page is one snapshot, whatever is delivered while it is read."""
    postgres.uncompared()
    shop = postgres.register("shop")
    workers = [postgres.client("shop") for _ in range(2)]
    over = threading.Event()
    done = []

    def work(client):
        while not over.is_set():
            for claim in client.claim("w", 5):
                client.complete(claim.message_id, claim.fence)
                done.append(claim.message_id)

    threads = [threading.Thread(target=work, args=(client,)) for client in workers]
    for thread in threads:
        thread.start()
    runs: list[Any] = []
    try:
        while len(runs) < 5 or len(done) < 200:
            shop.enqueue_many([Movement("pay", f"k{len(runs)}-{n}", n) for n in range(40)])
            runs.append(run(shop, limit=7)[0])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert {(report.state, report.found) for report in runs} == {("clean", 0)}
