"""The workers of `examples/`, run for real: in bash with psql, in Node.js, in Python."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from datetime import timedelta
from decimal import Decimal

import pytest

from tests.py.examples.conftest import EXAMPLES, INSTANCE, awkward_movements
from trex_client.model import Movement
from trex_client.postgres import PostgresClient

KINDS = ["psql", "node", "python"]


def run(command, kind, *arguments):
    words, environment = command(kind)
    if kind != "python":
        words = [*words, "--once", *arguments]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def live(shop):
    stats = shop.client.stats()
    return (
        stats.ready + stats.due + stats.deferred + stats.waiting + stats.leased + stats.lease_ended
    )


def run_until_quiet(shop, command, kind):
    out = ""
    for _ in range(20):
        out += run(command, kind)
        if not live(shop):
            return out
        time.sleep(0.05)
    raise AssertionError("messages are left")


def numbered(count, name="m", **more):
    return [
        Movement("ledger.post", f"{name}-{n}", {"n": n}, account=f"a-{n % 5}", currency="JPY",
                 cash_delta=Decimal(n + 1), **more)
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_everything_arrives_as_it_was_written(shop, command, kind):
    shop.enqueue(awkward_movements())
    run_until_quiet(shop, command, kind)
    for movement in shop.movements:
        status = shop.client.status(idempotency_key=movement.idempotency_key)
        assert (status.state, status.duplicate) == ("delivered", False)
        payload = (
            shop.trex.connect()
            .execute(
                "select payload::text, cash_delta from trex.message where idempotency_key = %s",
                (movement.idempotency_key,),
            )
            .fetchone()
        )
        # The ledger answers `duplicate` only for the very same content.
        again = shop.ask(
            "select result from ledger.post(%s, 9000000000000000000, 1, %s, %s, %s, %s, %s)",
            shop.key(movement), movement.topic, movement.account, movement.currency,
            payload[1], payload[0],
        )  # fmt: skip
        assert again == [("duplicate",)], movement.idempotency_key


@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_of_the_ledger_is_recorded_as_what_it_is(shop, command, kind):
    movements = numbered(5) + numbered(1, "once", effect_policy="at_most_once")
    posted, duplicate, refused, conflict, retried, once = movements
    shop.enqueue(movements)
    with shop.ledger.connect() as ledger:
        ledger.execute(
            "select ledger.post(%s, 0, 0, %s, %s, %s, %s, %s)",
            (shop.key(duplicate), duplicate.topic, duplicate.account, duplicate.currency,
             duplicate.cash_delta, '{"n": 1}'),
        )  # fmt: skip
        ledger.execute(
            "insert into ledger.fault values (%s, 'refused'), (%s, 'conflict')",
            (shop.key(refused), shop.key(conflict)),
        )
        ledger.execute("insert into ledger.fault values (%s, 'retry', 2)", (shop.key(retried),))
    run_until_quiet(shop, command, kind)
    found = {
        m.idempotency_key: shop.client.status(idempotency_key=m.idempotency_key) for m in movements
    }
    assert {key: (s.state, s.attempts, s.uncertain) for key, s in found.items()} == {
        posted.idempotency_key: ("delivered", 1, False),
        duplicate.idempotency_key: ("delivered", 1, False),
        refused.idempotency_key: ("permanent", 1, False),
        conflict.idempotency_key: ("conflict", 1, False),
        retried.idempotency_key: ("delivered", 3, False),
        once.idempotency_key: ("delivered", 1, False),
    }
    assert found[duplicate.idempotency_key].duplicate is True
    assert found[posted.idempotency_key].reference == f"posting-{shop.key(posted)[:16]}"
    snapshots = shop.trex.connect().execute("select count(*) from trex.ledger_snapshot").fetchone()
    assert snapshots[0] > 0
    sent = (
        shop.trex.connect()
        .execute(
            "select count(*) from trex.receipt as r"
            " join trex.message as m using (instance_key, message_id)"
            " where m.effect_policy = 'at_most_once'"
        )
        .fetchone()
    )
    assert sent == (1,)


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_have_arrived_is_looked_up_and_not_sent_again(shop, command, kind):
    arrived, lost, foreign = numbered(3)
    shop.enqueue([arrived, lost, foreign])
    dead = PostgresClient(shop.trex.connect("worker"), INSTANCE)
    assert len(dead.claim("dead", 3, lease=timedelta(milliseconds=100))) == 3
    shop.ask(
        "select ledger.post(%s, 1, 1, %s, %s, %s, %s, %s)",
        shop.key(arrived), arrived.topic, arrived.account, arrived.currency, arrived.cash_delta,
        '{"n": 0}',
    )  # fmt: skip
    shop.ask(
        "select ledger.post(%s, 1, 1, 'elsewhere', %s, %s, %s, '{}')",
        shop.key(foreign), foreign.account, foreign.currency, foreign.cash_delta + 1,
    )  # fmt: skip
    shop.trex.clock.advance(1)
    run_until_quiet(shop, command, kind)
    movements = (arrived, lost, foreign)
    states = [shop.client.status(idempotency_key=m.idempotency_key) for m in movements]
    assert [s.state for s in states] == ["delivered", "delivered", "conflict"]
    assert states[0].confirmed_by == "lookup"
    calls = shop.ask("select key, array_agg(result order by call_id) from ledger.call group by key")
    assert dict(calls) == {
        shop.key(arrived): ["posted", "lookup"],
        shop.key(lost): ["lookup", "posted"],
        shop.key(foreign): ["posted", "lookup"],
    }


def test_all_three_at_once_post_each_movement_once(shop, command):
    movements = numbered(120)
    shop.enqueue(movements)
    running = []
    for kind in KINDS:
        words, environment = command(kind)
        words = words if kind == "python" else [*words, "--once"]
        running.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert live(shop) == 0
    assert shop.ask("select count(*), count(distinct key) from ledger.call") == [(120, 120)]
    assert shop.ask("select sum(amount) from ledger.entry where side = 'account'") == [
        (sum(m.cash_delta for m in movements),)
    ]
    assert sum(len(out.splitlines()) for out in outputs) == 120


@pytest.mark.parametrize("kind", ["psql", "node"])
def test_a_waiting_worker_gets_new_messages_and_ends_on_sigterm(shop, command, kind):
    words, environment = command(kind)
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for name in ("first", "second"):
            shop.enqueue(numbered(1, name))
            assert process.stdout.readline()
        if kind == "node":
            admin = shop.trex.connect()
            end = time.monotonic() + 20
            while not admin.execute("select 1 from trex.listener").fetchone():
                assert time.monotonic() < end
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert live(shop) == 0
    assert shop.trex.connect().execute("select count(*) from trex.listener").fetchone() == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_that_is_not_bound_is_told_nothing(shop, command, kind):
    words, environment = command(kind)
    environment["TREX_INSTANCE"] = "somebody-else"
    words = words if kind == "python" else [*words, "--once"]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_up_that_fails_sends_nothing(shop, command, kind):
    shop.enqueue(numbered(1))
    dead = PostgresClient(shop.trex.connect("worker"), INSTANCE)
    assert len(dead.claim("dead", 1, lease=timedelta(milliseconds=100))) == 1
    shop.trex.clock.advance(1)
    shop.ledger.connect().execute("alter function ledger.lookup(text) rename to gone")
    run(command, kind)
    reasons = shop.trex.connect().execute("select distinct reason from trex.outcome").fetchall()
    assert ("lookup_failed",) in reasons
    assert shop.client.status(idempotency_key="m-0").uncertain is True
    assert shop.ask("select count(*) from ledger.posting") == [(0,)]


def ends(command, kind, **more):
    words, environment = command(kind)
    done = subprocess.run(
        words, env={**environment, **more}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_that_is_not_bound_is_told_once(shop, command, kind):
    shop.operator.unbind("trex_test_worker", actor="test", reason="test")
    assert any(word in ends(command, kind) for word in ("TX403", "not bound"))


@pytest.mark.parametrize("kind", ["node", "python"])
def test_a_ledger_that_is_missing_is_told_in_one_line(shop, command, kind):
    missing = shop.environment()["LEDGER_DSN"] + "_missing"
    assert "_missing" not in ends(command, kind, LEDGER_DSN=missing)


def test_node_without_its_package_says_so(shop, tmp_path):
    shutil.copy(EXAMPLES / "node-worker" / "worker.mjs", tmp_path)
    done = subprocess.run(
        ["node", str(tmp_path / "worker.mjs")], env=shop.environment(), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_no_command_line_of_psql_has_a_connection(shop, command, tmp_path):
    shop.enqueue(numbered(1))
    words, environment = command("psql")
    real = shutil.which("psql", path=environment["PATH"])
    log = tmp_path / "log"
    shim = tmp_path / "bin" / "psql"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >> {log}\nexec {real} "$@"\n')
    shim.chmod(0o755)
    environment["PATH"] = f"{shim.parent}:{environment['PATH']}"
    subprocess.run([*words, "--once"], env=environment, check=True, timeout=120)
    assert shop.client.status(idempotency_key="m-0").state == "delivered"
    given = log.read_text()
    port = environment["PGPORT"]
    assert not any(word in given for word in ("host", "password", "postgres:", "m-0", port))
