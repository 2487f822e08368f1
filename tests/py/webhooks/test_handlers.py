"""Handlers: what they write and the receipt are one transaction, whatever they do."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import psycopg
import pytest

from examples.inbox import handlers as example
from tests.support.rig import KEY, register
from trex_client.errors import InvalidArgument
from trex_client.worker import (
    Program,
    Refused,
    Steps,
    Waiting,
    WorkerSettings,
    load_handlers,
    run_once,
)


@pytest.fixture
def shop(pg_db):
    admin = register(pg_db, max_attempts=2)
    conn = pg_db.connect()
    conn.execute("create table public.ledger (event_id text, note text)")
    conn.execute("grant insert, select on public.ledger to trex_test_worker")
    return admin


def receive(shop, event_id="evt_1", kind="invoice.paid", object_id="in_1"):
    raw = json.dumps({"id": event_id}).encode()
    return shop.receive(
        "stripe", "acct_a", event_id, kind, object_id, raw, {"id": event_id}
    ).message_id


def run(pg_db, handlers, **settings):
    program = Program(
        KEY,
        pg_db.dsn("worker"),
        WorkerSettings(box="inbox", concurrency=4, listen=False, reach=10.0, **settings),
        adapter={"kind": "none"},
        handlers=handlers,
        level="error",
    )
    return asyncio.run(run_once(program))[1]


def ledger(pg_db):
    return pg_db.connect().execute("select event_id, note from public.ledger").fetchall()


async def write(incoming, note="done"):
    await incoming.conn.execute(
        "insert into public.ledger values (%s, %s)", (incoming.event.event_id, note)
    )


def test_rows_and_receipt_together(pg_db, shop):
    first, second = receive(shop), receive(shop, "evt_2", "other")
    seen = []

    async def other(incoming):
        seen.append((incoming.payload, incoming.event.raw, incoming.asked))
        await write(incoming, "other")

    counts = run(pg_db, {"invoice.paid": write, "*": other})
    assert (counts.claimed, counts.delivered) == (2, 2)
    assert sorted(ledger(pg_db)) == [("evt_1", "done"), ("evt_2", "other")]
    assert seen == [({"id": "evt_2"}, b'{"id": "evt_2"}', None)]
    assert [shop.inbox_status(one).status for one in (first, second)] == ["processed"] * 2
    confirmed = pg_db.connect().execute("select distinct confirmed_by from trex.receipt").fetchall()
    assert confirmed == [("handler",)]
    assert run(pg_db, {"*": write}).claimed == 0


def test_waiting_costs_no_try_and_keeps_what_was_written(pg_db, shop):
    message = receive(shop)

    async def not_yet(incoming):
        await write(incoming, "asked")
        return Waiting("not_paid", timedelta(minutes=5))

    for _ in range(3):  # more than the allowance
        counts = run(pg_db, {"invoice.paid": not_yet})
        assert (counts.claimed, counts.postponed, counts.retried) == (1, 1, 0)
        shop.expedite([message], actor="test", reason="test")
    state = shop.inbox_status(message)
    assert (state.status, state.reason) == ("received", "not_paid")
    assert ledger(pg_db) == [("evt_1", "asked")] * 3
    assert run(pg_db, {"invoice.paid": write}).delivered == 1


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(seconds=-5)])
def test_waiting_for_no_time_is_waiting_for_a_second(pg_db, shop, delay):
    message = receive(shop)

    async def not_yet(incoming):
        return Waiting("not_paid", delay)

    assert run(pg_db, {"invoice.paid": not_yet}).postponed == 1
    found = pg_db.connect().execute(
        "select d.deferred_until - o.recorded_at from trex.delivery d join trex.outcome o"
        " using (instance_key, message_id) where d.message_id = %s",
        (message,),
    )
    assert found.fetchone() == (timedelta(seconds=1),)


@pytest.mark.parametrize("answer", [Waiting, Refused])
def test_reasons_come_from_the_closed_list(answer):
    with pytest.raises(InvalidArgument):
        answer("because")
    assert answer("no_order").reason == "no_order"


async def boom(incoming):
    await write(incoming)
    raise ValueError("canary")


async def refuse(incoming):
    await write(incoming)
    return Refused("invalid_request")


async def nonsense(incoming):
    await write(incoming)
    return "done"


async def broken_sql(incoming):
    await write(incoming)
    await incoming.conn.execute("select 1/0")


async def own_call_refused(incoming):
    await write(incoming)
    await incoming.kernel.status(message_id=999_999)


async def commits_itself(incoming):
    await write(incoming)
    await incoming.conn.commit()


async def commits_in_sql(incoming):
    await incoming.conn.execute("commit and chain")
    await write(incoming)


async def rolls_back_in_sql(incoming):
    await incoming.conn.execute("rollback")
    await incoming.conn.execute("begin")
    await write(incoming)


async def ends_it_and_waits(incoming):
    await incoming.conn.execute("rollback and chain")
    await write(incoming)
    return Waiting("not_paid", timedelta(hours=1))


async def ends_it_and_refuses(incoming):
    await incoming.conn.execute("commit")
    return Refused("invalid_request")


async def cancels(incoming):
    await write(incoming)
    raise asyncio.CancelledError


async def awaits_a_cancelled_task(incoming):
    await write(incoming)
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def exits(incoming):
    await write(incoming)
    raise SystemExit(3)


async def cancels_asking(incoming):
    raise asyncio.CancelledError


async def exits_asking(incoming):
    raise SystemExit(3)


async def dies(incoming):
    await write(incoming)
    incoming.conn.pgconn.finish()


@pytest.mark.parametrize(
    ("handler", "count", "reason"),
    [
        (boom, "retried", "handler_error"),
        (nonsense, "retried", "handler_error"),
        (broken_sql, "retried", "handler_error"),
        (own_call_refused, "retried", "handler_error"),
        (commits_itself, "retried", "handler_error"),
        (commits_in_sql, "retried", "handler_error"),
        (rolls_back_in_sql, "retried", "handler_error"),
        (ends_it_and_waits, "retried", "handler_error"),
        (ends_it_and_refuses, "retried", "handler_error"),
        (cancels, "retried", "handler_error"),
        (awaits_a_cancelled_task, "retried", "handler_error"),
        (exits, "retried", "handler_error"),
        (Steps(ask=cancels_asking, apply=write), "retried", "handler_error"),
        (Steps(ask=exits_asking, apply=write), "retried", "handler_error"),
        (dies, "retried", "connection_lost"),
        (refuse, "permanent", "invalid_request"),
    ],
)
def test_what_fails_leaves_nothing(pg_db, shop, capfd, handler, count, reason):
    message = receive(shop)
    counts = run(pg_db, {"invoice.paid": handler})
    assert (counts.claimed, getattr(counts, count)) == (1, 1)
    assert shop.inbox_status(message).reason == reason
    assert ledger(pg_db) == []
    assert "canary" not in "".join(capfd.readouterr())
    if count == "retried":
        shop.expedite([message], actor="test", reason="test")
    else:
        shop.redrive([message], actor="test", reason="test")
    assert run(pg_db, {"invoice.paid": write}).delivered == 1
    assert ledger(pg_db) == [("evt_1", "done")]


def test_a_type_without_handler_is_never_lost(pg_db, shop):
    message = receive(shop, kind="other")
    assert run(pg_db, {"invoice.paid": write}).retried == 1
    shop.expedite([message], actor="test", reason="test")
    counts = run(pg_db, {"invoice.paid": write})
    assert (counts.dead_lettered, shop.inbox_status(message).reason) == (1, "consumer:none")
    assert shop.inbox_status(message).status == "failed"


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("canary"), TimeoutError(), ConnectionResetError()]
)
def test_nobody_to_ask_is_waiting(pg_db, shop, error):
    message = receive(shop)

    async def ask(incoming):
        with pytest.raises(RuntimeError):
            _ = incoming.conn
        raise error

    counts = run(pg_db, {"invoice.paid": Steps(ask=ask, apply=write)})
    assert (counts.postponed, ledger(pg_db)) == (1, [])
    assert shop.inbox_status(message).reason == "provider_unreachable"


def test_a_lost_claim_writes_nothing(pg_db, shop):
    """While the handler asks, the lease ends and somebody else completes the event."""
    message = receive(shop)

    async def ask(incoming):
        conn = pg_db.connect()
        conn.execute(
            "update trex.delivery set lease_until = now() - interval '1 h' where message_id = %s",
            (message,),
        )
        (claim,) = shop.claim("rival", box="inbox")
        shop.complete(claim.message_id, claim.fence)

    counts = run(pg_db, {"invoice.paid": Steps(ask=ask, apply=write)})
    assert (counts.claim_lost, counts.delivered, ledger(pg_db)) == (1, 0, [])
    assert shop.inbox_status(message).status == "processed"


def test_rivals_are_tried_again_at_once(pg_db, shop):
    message = receive(shop)
    tries = []

    async def clash(incoming):
        await write(incoming)
        tries.append(1)
        if len(tries) < 3:
            raise psycopg.errors.SerializationFailure

    assert run(pg_db, {"invoice.paid": clash}).delivered == 1
    assert ledger(pg_db) == [("evt_1", "done")]
    assert shop.inbox_status(message).attempts == 1


INVOICES = {"in_1": {"status": "open", "metadata": {"order_id": "order_1"}}}


class Provider(BaseHTTPRequestHandler):
    def do_GET(self):
        invoice = INVOICES.get(self.path.rpartition("/")[2])
        body = json.dumps(invoice).encode()
        self.send_response(200 if invoice else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.criterion("ac-0056")
def test_the_example_grants_once(pg_db, shop, monkeypatch):
    """Paid, paid again, a late created one, another paid one: one right."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PROVIDER_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("PROVIDER_KEY", "sk_test")
    conn = pg_db.connect()

    def granted():
        return conn.execute(
            "select (select count(*) from trex.operation), (select count(*) from trex.entitlement)"
        ).fetchone()

    ids = [receive(shop, "evt_2"), receive(shop, "evt_2")]
    ids += [receive(shop, "evt_1", "invoice.created"), receive(shop, "evt_3")]
    ids += [receive(shop, "evt_4", object_id="in_9")]
    counts = run(pg_db, example.HANDLERS)
    assert (counts.claimed, counts.delivered, counts.postponed, counts.permanent) == (4, 1, 2, 1)
    assert granted() == (0, 0)
    monkeypatch.setitem(INVOICES["in_1"], "status", "paid")
    shop.expedite([ids[0], ids[3]], actor="test", reason="test")
    assert run(pg_db, example.HANDLERS).postponed == 2  # no order yet
    assert granted() == (0, 0)
    shop.register_currency("EUR", 2, actor="test", reason="test")
    shop.register_order(
        "acct_a", "in_1", "order_1", seller="s", buyer="b", item="i", amount=5, currency="EUR"
    )
    shop.expedite([ids[0], ids[3]], actor="test", reason="test")
    assert run(pg_db, example.HANDLERS).delivered == 2
    assert granted() == (1, 1)
    server.shutdown()


def test_handlers_by_name(tmp_path, monkeypatch):
    (tmp_path / "shop_events.py").write_text(
        "async def f(incoming): ...\nGOOD = {'a': f}\nBAD = {'a': 1}\nEMPTY = {}\n"
    )
    (tmp_path / "shop_broken.py").write_text("raise ValueError('canary')\n")
    monkeypatch.chdir(tmp_path)
    assert list(load_handlers("shop_events:GOOD")) == ["a"]
    for where in (
        "shop_events", "shop_events:", ":GOOD", "shop_events:BAD", "shop_events:EMPTY",
        "shop_events:MISSING", "shop_broken:GOOD", "shop_nothing:GOOD",
    ):  # fmt: skip
        with pytest.raises(InvalidArgument) as caught:
            load_handlers(where)
        assert "canary" not in str(caught.value)
    with pytest.raises(InvalidArgument):
        Program(KEY, "", WorkerSettings(), handlers={"a": boom}, adapter={"kind": "none"}).check()
