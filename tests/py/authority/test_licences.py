"""Capabilities are used once; counters equal the fold of their records."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.py.authority.world import ACCOUNT, grant
from tests.support.backends import WHO
from trex_client.errors import (
    DatabaseError,
    EndedOtherwise,
    Forbidden,
    InvalidArgument,
    KeyReused,
    NotFound,
)

pytestmark = pytest.mark.criterion("ac-0059")


def assert_counters_are_the_fold(backend):
    fold: Counter[tuple[str, str]] = Counter()
    for use in backend.rows("license_usage"):
        fold[use["licence_id"], "all"] += 1
        fold[use["licence_id"], use["used_at"][:7]] += 1
    counted = {(c["licence_id"], c["period"]): c["uses"] for c in backend.rows("usage_counter")}
    assert counted == fold
    consumed = {c["consumed_by"] for c in backend.rows("capability")} - {None}
    assert consumed == {use["usage_id"] for use in backend.rows("license_usage")}


def issue(shop, licence, number=1, subject="buy_1", **given):
    return shop.issue_capability(f"cap_{number}", licence, subject, **given)


@pytest.mark.case("L3")
def test_one_use_consumes_records_and_counts(backend, shop):
    licence = grant(backend, shop)
    issued = issue(shop, licence)
    assert (issued.status, issued.expires_at) == ("issued", backend.now() + timedelta(minutes=5))
    used = shop.execute_licence("cap_1", "buy_1", "use_1")
    assert (used.status, used.licence_id, used.total, used.month) == ("executed", licence, 1, 1)
    before = backend.dump()
    again = shop.execute_licence("cap_1", "buy_1", "use_1")
    assert (again.status, again.used_at, again.total) == ("replayed", used.used_at, 1)
    assert backend.dump() == before
    with pytest.raises(EndedOtherwise):
        shop.execute_licence("cap_1", "buy_1", "use_2")
    assert backend.dump() == before
    issue(shop, licence, 2)
    with pytest.raises(KeyReused):
        shop.execute_licence("cap_2", "buy_1", "use_1")
    assert shop.execute_licence("cap_2", "buy_1", "use_2").total == 2
    assert_counters_are_the_fold(backend)


def test_the_month_is_utcs(backend, shop):
    licence = grant(backend, shop)
    end = datetime(2030, 2, 1, tzinfo=UTC)
    for number, at in enumerate(
        (end - timedelta(microseconds=1), end, end + timedelta(hours=1)), 1
    ):
        backend.advance(at - backend.now())
        issue(shop, licence, number)
        used = shop.execute_licence(f"cap_{number}", "buy_1", f"use_{number}")
        assert (used.total, used.month) == (number, 1 if number < 3 else 2)
    periods = {row["period"]: row["uses"] for row in backend.rows("usage_counter")}
    assert periods == {"all": 3, "2030-01": 1, "2030-02": 2}
    # A replay counts for the month it happened in.
    assert shop.execute_licence("cap_1", "buy_1", "use_1").month == 1
    assert_counters_are_the_fold(backend)


def test_nobody_else_can_use_it(backend, shop):
    licence = grant(backend, shop)
    issue(shop, licence)
    with pytest.raises(NotFound):
        shop.execute_licence("cap_1", "thief", "use_1")
    told = shop.execute_licence("cap_1", "thief", "use_1", on_refused="report")
    assert (told.status, told.licence_id, told.total) == ("not_found", None, None)
    assert shop.execute_licence("cap_9", "thief", "u", on_refused="report").status == "not_found"
    with pytest.raises(NotFound):
        shop.execute_licence("cap_9", "thief", "use_1")
    assert backend.row("security_event")["kind"] == "other_subject"
    assert shop.execute_licence("cap_1", "buy_1", "use_1").status == "executed"
    assert_counters_are_the_fold(backend)


def test_what_is_over_cant_be_used(backend, shop):
    licence = grant(backend, shop, valid_for=timedelta(hours=1))
    issue(shop, licence, 1)
    issue(shop, licence, 2, lifetime=timedelta(days=1))
    backend.advance(299)
    assert issue(shop, licence, 1).status == "duplicate"
    backend.advance(1)
    with pytest.raises(Forbidden):
        shop.execute_licence("cap_1", "buy_1", "use_1")
    assert shop.execute_licence("cap_1", "buy_1", "use_1", on_refused="report").status == "expired"
    backend.advance(3300)
    told = shop.execute_licence("cap_2", "buy_1", "use_1", on_refused="report")
    assert told.status == "not_active"
    shop.expire_entitlements(**WHO)
    with pytest.raises(Forbidden):
        shop.execute_licence("cap_2", "buy_1", "use_1")
    with pytest.raises(Forbidden):
        issue(shop, licence, 3)
    assert issue(shop, licence, 2, lifetime=timedelta(days=1)).status == "duplicate"
    assert backend.rows("license_usage") == []
    kinds = sorted(row["kind"] for row in backend.rows("security_event"))
    assert kinds == ["expired", "not_active"]


def test_uses_and_devices_are_bounded(backend, shop):
    licence = grant(backend, shop, uses_max=2, devices_max=1)
    for number in range(1, 4):
        issue(shop, licence, number)

    def use(number, thumbprint):
        return shop.execute_licence(
            f"cap_{number}", "buy_1", f"use_{number}", thumbprint=thumbprint, on_refused="report"
        ).status

    assert use(1, None) == "device_unknown"
    assert shop.bind_device(licence, "sha256:aa") == "bound"
    assert shop.bind_device(licence, "sha256:aa") == "duplicate"
    with pytest.raises(Forbidden):
        shop.bind_device(licence, "sha256:bb")
    assert use(1, "sha256:bb") == "device_unknown"
    assert [use(n, "sha256:aa") for n in (1, 2, 3)] == ["executed", "executed", "exhausted"]
    with pytest.raises(NotFound):
        shop.bind_device("none", "sha256:aa")
    assert_counters_are_the_fold(backend)


def test_capabilities_are_issued_once(backend, shop):
    licence = grant(backend, shop)
    issue(shop, licence)
    with pytest.raises(KeyReused):
        issue(shop, licence, subject="other")
    with pytest.raises(NotFound):
        issue(shop, "none", 2)
    for bad in (
        {"subject": ""}, {"lifetime": timedelta(0)}, {"lifetime": timedelta(days=31)},
        {"licence": ""},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            issue(shop, bad.pop("licence", licence), 5, **bad)
    for keys in (
        ("", "s", "u"), ("c", "", "u"), ("c", "s", ""),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            shop.execute_licence(*keys)
    with pytest.raises(InvalidArgument):
        shop.execute_licence("c", "s", "u", thumbprint="")
    with pytest.raises(InvalidArgument):
        shop.execute_licence("c", "s", "u", on_refused="no")


def test_a_use_is_part_of_the_callers_transaction(backend, shop):
    licence = grant(backend, shop)
    issue(shop, licence)

    def use_and_crash():
        with backend.transaction(shop):
            shop.execute_licence("cap_1", "buy_1", "use_1")
            raise ZeroDivisionError

    before = backend.dump()
    with pytest.raises(ZeroDivisionError):
        use_and_crash()
    assert backend.dump() == before
    assert shop.execute_licence("cap_1", "buy_1", "use_2").total == 1
    assert_counters_are_the_fold(backend)


def test_a_capability_has_one_winner(postgres):
    postgres.uncompared()
    clients = [postgres.register("shop")]
    clients += [postgres.client("shop") for _ in range(7)]
    licence = grant(postgres, clients[0])
    statuses = []
    for number in range(10):
        issue(clients[0], licence, number)
        barrier = threading.Barrier(len(clients))

        def use(index, client, number=number, barrier=barrier):
            barrier.wait()
            statuses.append(
                client.execute_licence(
                    f"cap_{number}", "buy_1", f"use_{number}_{index}", on_refused="report"
                ).status
            )

        _together(use, enumerate(clients))
    assert Counter(statuses) == {"executed": 10, "consumed": 70}
    assert_counters_are_the_fold(postgres)


@pytest.mark.parametrize("uses_max", [None, 25])
@pytest.mark.case("L3")
def test_counters_under_twenty_writers_and_crashes(postgres, uses_max):
    postgres.uncompared()
    clients = [postgres.register("shop")]
    clients += [postgres.client("shop") for _ in range(19)]
    licence = grant(postgres, clients[0], uses_max=uses_max)
    for number in range(60):
        issue(clients[0], licence, number)
    barrier = threading.Barrier(len(clients))
    done = []

    def use(index, client):
        barrier.wait()
        for number in range(index, 60, 20):
            if number % 3 == 0:
                with pytest.raises(ZeroDivisionError):
                    _use_and_crash(postgres, client, number)
            done.append(
                client.execute_licence(
                    f"cap_{number}", "buy_1", f"use_{number}", on_refused="report"
                ).status
            )

    _together(use, enumerate(clients))
    executed = 60 if uses_max is None else uses_max
    assert Counter(done) == Counter({"executed": executed, "exhausted": 60 - executed})
    assert postgres.row("usage_counter", period="all")["uses"] == executed
    assert_counters_are_the_fold(postgres)


def _use_and_crash(backend, client, number):
    with backend.transaction(client):
        client.execute_licence(f"cap_{number}", "buy_1", f"use_{number}", on_refused="report")
        raise ZeroDivisionError


def _together(run, arguments):
    failures = []

    def guarded(*args):
        try:
            run(*args)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=args) for args in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_one_usage_id_on_two_licences_at_once_is_a_conflict(postgres):
    postgres.uncompared()
    clients = [postgres.register("shop"), postgres.client("shop")]
    licences = [grant(postgres, clients[0], f"in_{n}") for n in range(2)]
    statuses = []
    for number in range(20):
        for n, licence in enumerate(licences):
            issue(clients[0], licence, f"{number}_{n}")
        barrier = threading.Barrier(2)

        def use(index, client, number=number, barrier=barrier):
            barrier.wait()
            statuses.append(
                client.execute_licence(
                    f"cap_{number}_{index}", "buy_1", f"use_{number}", on_refused="report"
                ).status
            )

        _together(use, enumerate(clients))
    assert Counter(statuses) == {"executed": 20, "operation_conflict": 20}
    assert_counters_are_the_fold(postgres)


def test_rights_and_counters_are_guarded(postgres):
    shop = postgres.register("shop")
    licence = grant(postgres, shop, valid_for=timedelta(days=1), devices_max=1)
    shop.bind_device(licence, "t")
    issue(shop, licence, 1)
    issue(shop, licence, 2)
    shop.execute_licence("cap_1", "buy_1", "use_1", thumbprint="t")
    shop.execute_licence("cap_1", "buy_1", "use_2", on_refused="report")
    now = postgres.now()
    shop.update_subscription(ACCOUNT, "s", "in_1", status="active", period_end=now, asked_at=now)
    facts = ["order_invoice", "payment", "licence", "license_usage", "device_binding"]
    facts.append("security_event")
    mine = f"where instance_key = '{shop.instance_key}'"
    refused = [
        *((f"update trex.{table} set instance_key = instance_key", "TX901") for table in facts),
        *((f"delete from trex.{table}", "TX901") for table in facts),
        *((f"truncate trex.{table}", "TX901") for table in facts),
        *(
            (f"{verb} trex.{table}", "TX901")
            for table in ("entitlement", "subscription", "capability", "usage_counter")
            for verb in ("delete from", "truncate")
        ),
        (f"update trex.entitlement set valid_until = null {mine}", "TX902"),
        (f"update trex.entitlement set state = 'expired' {mine}", "TX902"),
        (f"update trex.subscription set status = 'expired' {mine}", "TX902"),
        (f"update trex.capability set consumed_by = null, consumed_at = null {mine}", "TX902"),
        (f"update trex.capability set expires_at = 'infinity' {mine}", "TX902"),
        (f"update trex.usage_counter set uses = uses + 2 {mine}", "TX902"),
        (f"update trex.usage_counter set uses = uses - 1 {mine}", None),
    ]
    for statement, code in refused:
        for role in ("origin", "replica"):
            postgres.admin.execute(f"set session_replication_role = {role}")
            with pytest.raises(psycopg.Error) as caught:
                postgres.admin.execute(statement)
            postgres.admin.execute("reset session_replication_role")
            assert code is None or caught.value.sqlstate == code, statement
    assert_counters_are_the_fold(postgres)


def test_l3_a_counter_that_cant_be_written_is_an_error_and_no_use(postgres):
    """Neither swallowed nor counted: the use itself is undone, and told as failed."""
    postgres.uncompared()
    shop = postgres.register("shop")
    licence = grant(postgres, shop)
    issue(shop, licence, 1)
    before = postgres.dump()
    postgres.admin.execute("alter table trex.usage_counter rename to counter_gone")
    try:
        with pytest.raises(DatabaseError):
            shop.execute_licence("cap_1", "buy_1", "use_1")
        report = shop.reconcile(actor="t", reason="t")
        assert (report.state, report.failed_check) == ("failed", "licences")
    finally:
        postgres.admin.execute("alter table trex.counter_gone rename to usage_counter")
    after = postgres.dump()
    assert {name for name in after if after[name] != before[name]} == {"audit", "reconcile_run"}
    assert shop.execute_licence("cap_1", "buy_1", "use_1").total == 1
    assert_counters_are_the_fold(postgres)
