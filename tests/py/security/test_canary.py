"""A canary in every place that holds a secret, every kind of failure, a search of all that was
written. One test proves that the search would find it.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import time
import traceback
import urllib.request
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import psycopg
import pytest

from tests.py.cli.conftest import Trex
from tests.support import canaries
from tests.support.canaries import CANARY, holds
from tests.support.http_sink import CUT, HANG, http_sink, ok
from tests.support.processes import COMMAND, ROOT, daemons
from tests.support.rig import BOOMS, FakeSink, job, movement, register, rows, run_once, until
from trex_client.errors import TrexError
from trex_client.model import Report
from trex_client.postgres import PostgresClient

pytestmark = pytest.mark.criterion("ac-0052")

# What a server itself logs because the test makes it: not searched for in its log.
PLANTED = "pLaNtEd"
# Where a business fact belongs: the message itself, and what is derived from its account.
ITS_OWN_PLACE = {
    "message": {"payload", "account", "correlation_id", "idempotency_key", "ordering_key"},
    "ledger_skip": {"account"},
    "ledger_snapshot": {"account"},
    "delivery": {"ordering_key"},
    "lane": {"ordering_key"},
}


def in_tables(database):
    """Cells that hold the canary, without those where it belongs."""
    found = []
    tables = rows(
        database,
        "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'trex'::regnamespace and c.relkind = 'r' and a.attnum > 0"
        " and not a.attisdropped",
    )
    for table, column in tables:
        if column not in ITS_OWN_PLACE.get(table, set()):
            cells = rows(database, f'select "{column}"::text from trex."{table}"')
            found += [(table, column) for (cell,) in cells if cell is not None and holds(cell)]
    return found


def secret_movement(number, **changes):
    return movement(
        number,
        payload={"card": CANARY, "note": f"token {CANARY}"},
        account=f"account-{CANARY}",
        correlation_id=f"order-{CANARY}-{number}",
        **changes,
    )


NASTY = [
    ok(CANARY.encode(), f"X-Echo: {CANARY}", f"Set-Cookie: s={CANARY}", status=500),
    ok(CANARY.encode(), f"Location: https://user:{CANARY}@evil.example/{CANARY}", status=302),
    ok(json.dumps({"error": CANARY, "result": CANARY}).encode(), status=400),
    ok(CANARY.encode(), f"Retry-After: {CANARY}", status=503),
    ok(CANARY.encode(), status=422),
    ok(json.dumps({"result": "posted", "reference": f"\u0000{CANARY}"}).encode()),
    ok(json.dumps({"result": "posted", "balance": CANARY, "version": 1}).encode()),
    ok(CANARY.encode() * 5000),
    f"HTTP/1.1 200 {CANARY}\r\nX: {CANARY}\r\nContent-Length: {CANARY}\r\n\r\n".encode(),
    f"{CANARY}\r\n\r\n".encode(),
    CUT,
    HANG,
    ok(status=403),
    ok(b"", f"X-Bad: {CANARY}", status=409),
]


@pytest.mark.case("M2")
async def test_a_daemon_at_debug_shows_nothing(new_db, tmp_path):
    database = new_db()
    client = register(
        database, max_attempts=2, backoff_base=timedelta(milliseconds=10),
        backoff_cap=timedelta(milliseconds=10),
    )  # fmt: skip
    client.enqueue_many([secret_movement(number) for number in range(len(NASTY))])
    activity = []
    async with http_sink(*NASTY, ok()) as sink, http_sink(ok(status=500)) as hook:
        config = {
            "kind": "http",
            "url": {"env": "SINK_URL"},
            "read_timeout": 0.3,
            "bearer": {"env": "SINK_TOKEN"},
            "headers": {"X-Api-Key": {"env": "SINK_TOKEN"}},
            "answer": {"result": "result", "reference": "reference", "delivered": ["posted"],
                       "balance": "balance", "version": "version"},
        }  # fmt: skip
        environ = {
            "SINK_URL": f"{sink.url}/{CANARY}?api_key={CANARY}",
            "SINK_TOKEN": CANARY,
            "TREX_ALERT_WEBHOOK": f"{hook.url}?token={CANARY}",
        }
        dsn = database.dsn("worker", tcp=True) + f" passfile=/tmp/{CANARY}"
        with daemons(tmp_path, dsn, config, environ=environ) as group:
            daemon = group.start(
                "--log-level", "debug", "--http", "127.0.0.1:0", "--poll", "50ms", "-c", "3",
            )  # fmt: skip
            await until(lambda: any(line["event"] == "serving" for line in daemon.lines()))
            (port,) = [line["port"] for line in daemon.lines() if line["event"] == "serving"]

            def settled():
                activity.extend(
                    rows(database, "select query, application_name from pg_stat_activity")
                )
                return not rows(database, "select 1 from trex.delivery where parked is null")

            await until(settled)
            # A claim failure, a write-back error and a lost server, with everything in place.
            conn = database.connect()
            client.enqueue_many([secret_movement(number) for number in range(100, 110)])
            conn.execute(
                "alter table trex.receipt add constraint broken check (message_id < 0) not valid"
            )
            await asyncio.sleep(1.0)
            conn.execute("alter table trex.receipt drop constraint broken")
            conn.execute("alter table trex.delivery rename to gone")
            await asyncio.sleep(0.5)
            conn.execute("alter table trex.gone rename to delivery")
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = %s and usename = 'trex_test_worker'",
                (database.dbname,),
            )
            await until(settled)

            def fetch():
                address = f"http://127.0.0.1:{port}/metrics"
                with urllib.request.urlopen(address) as answer:
                    return answer.read().decode()

            metrics = await asyncio.to_thread(fetch)
            daemon.signal(signal.SIGTERM)
            assert await daemon.ended() == 0
        log = daemon.log.read_text()
        assert daemon.process.stdout is None or daemon.process.stdout.closed
    # It was there, and it left where it should.
    assert len(sink.requests) > len(NASTY)
    assert holds(sink.requests[0].headers["authorization"])
    assert holds(sink.requests[0].body.decode())
    assert len(hook.requests) >= 2
    # And nowhere else.
    assert not holds(log)
    assert not holds(metrics)
    for request in hook.requests:
        assert not holds(request.body.decode())
    assert not any(holds(f"{query} {name}") for query, name in activity)
    assert in_tables(database) == []
    assert database.server.embedded is None or not holds(database.server.embedded.log.read_text())
    events = {json.loads(line)["event"] for line in log.splitlines()}
    print(sorted(events))
    assert events >= {
        "parked", "retried", "unknown", "alert", "alert_not_sent", "connection_lost", "delivered",
    }  # fmt: skip


class Chatty(FakeSink):
    """An adapter that puts the canary into everything it can."""

    async def deliver(self, claim, context):
        await super().deliver(claim, context)
        kind = claim.message_id % 5
        if kind == 0:
            raise ValueError(f"{CANARY} {claim.payload_json}")
        if kind == 1:
            raise ExceptionGroup(CANARY, [ValueError(CANARY)])
        if kind == 2:
            try:
                raise OSError(CANARY)
            except OSError as error:
                raise RuntimeError(CANARY) from error
        if kind == 3:
            return {"token": CANARY}
        return type("Delivered", (), {"reference": CANARY})()


async def test_what_an_adapter_raises_is_never_shown(new_db):
    database = new_db()
    client = register(database, max_attempts=1)
    client.enqueue_many([secret_movement(number) for number in range(20)])
    done = await run_once(database, Chatty())
    assert done.counters()["unknown"] == 20
    assert not holds(done.log.getvalue())
    assert not holds(done.telemetry.render().decode())
    assert in_tables(database) == []
    assert set(BOOMS)


@pytest.mark.case("M5")
async def test_a_claim_failure_shows_nothing(new_db):
    database = new_db()
    client = register(database)
    client.enqueue_many([secret_movement(number) for number in range(3)])
    admin = database.connect()
    admin.execute(
        "create function trex_break() returns trigger language plpgsql as"
        f" $$ begin raise exception '{PLANTED} %', new using detail = '{PLANTED}',"
        f" hint = '{PLANTED}', errcode = 'XX000'; end $$"
    )
    admin.execute(
        "create trigger break before update on trex.delivery"
        " for each row execute function trex_break()"
    )
    made = job(database, FakeSink(), drain=0.2)
    running = asyncio.create_task(made.worker.run())
    await until(lambda: "connection_lost" in made.log.getvalue())
    made.worker.stop()
    await running
    assert not holds(made.log.getvalue())
    assert PLANTED not in made.log.getvalue()
    worker = PostgresClient(database.connect("worker"), "inst")
    with pytest.raises(TrexError) as caught:
        worker.claim("w")
    shown = "".join(traceback.format_exception(caught.value))
    assert PLANTED not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


async def test_a_refused_report_shows_nothing(new_db):
    database = new_db()
    client = register(database)
    client.enqueue_many([replace(secret_movement(1), correlation_id="order-17")])
    worker = PostgresClient(database.connect("worker"), "inst")
    (claim,) = worker.claim("w")
    assert not holds(repr(claim))
    report = Report(
        claim.message_id, claim.fence, "completed", reference=f"\n{CANARY}",
        balance=Decimal("4111111111111111.123"), version=1,
    )  # fmt: skip
    with pytest.raises(TrexError) as caught:
        worker.record([report])
    assert not holds("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://user:{CANARY}@127.0.0.1:1/db",
        f"postgresql://user:{CANARY}@[bad/db",
        f"host=127.0.0.1 port=1 password={CANARY}",
        f"host=127.0.0.1 port=1 pass word={CANARY}",
        f"host=127.0.0.1 port=1 password='{CANARY}",
        f"host=127.0.0.1 port={CANARY}",
        f"service={CANARY}",
        f"host={CANARY}.invalid",
        CANARY,
    ],
)
@pytest.mark.parametrize("command", ["daemon", "backfill"])
def test_a_connection_string_is_never_shown(tmp_path, dsn, command):
    more = ["--reach", "200ms"] if command == "backfill" else []
    config = tmp_path / "a.toml"
    config.write_text('kind = "none"\n')
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*COMMAND, command, "--adapter-config", str(config), "--log-level", "debug", *more],
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": str(ROOT),
                "TREX_DSN": dsn,
                "TREX_INSTANCE": "inst",
            },
        )
    end = time.monotonic() + 60.0
    while process.poll() is None and log.read_bytes().count(b"connect_failed") < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait(60.0)
    output = log.read_text()
    assert output
    assert not holds(output)


@pytest.mark.parametrize(
    "settings",
    [
        f'kind = "{CANARY}"',
        f'kind = "http"\nurl = "https://user:{CANARY}@ledger.example/"',
        f'kind = "http"\nurl = "https://ledger.example/"\nbearer = "{CANARY}"',
        f'kind = "http"\nurl = "https://ledger.example/"\nbearer = {{ env = "{CANARY}" }}',
        f'kind = "http"\nurl = "https://ledger.example/"\n"{CANARY}-x" = 1',
        f'kind = "postgres"\ndsn = "password={CANARY}"',
        f"not toml {CANARY}",
    ],
)
def test_an_adapters_settings_are_never_shown(tmp_path, settings):
    config = tmp_path / "a.toml"
    config.write_text(settings)
    done = subprocess.run(
        [*COMMAND, "daemon", "--adapter-config", str(config), "--log-level", "debug"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TREX_INSTANCE": "inst",
             "TREX_DSN": "host=/nonexistent"},
    )  # fmt: skip
    assert done.returncode == 2
    assert not holds(done.stdout + done.stderr)


BAD_JSON = [
    f'{{"pan": "{CANARY}\\u0000x"}}',
    f'{{"pan": "{CANARY}", oops}}',
    f'{{"pan": "{CANARY}\\ud800"}}',
    f'{{"pan": "{CANARY}", "n": 1e200000}}',
    f'{{"pan": "{CANARY}',
    f"{CANARY}",
]


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_json_that_is_none_reaches_no_log_of_the_server(new_db, tmp_path, text):
    database = new_db()
    register(database)
    trex = Trex(TREX_DSN=database.dsn(), TREX_INSTANCE="inst", TREX_ACTOR="ann")
    file = tmp_path / "order.json"
    file.write_text(text)
    rows_of_csv = tmp_path / "rows.csv"
    quoted = text.replace('"', '""')
    rows_of_csv.write_text(f'topic,idempotency_key,payload\npost,k,"{quoted}"\n')
    rows_of_ndjson = tmp_path / "rows.ndjson"
    rows_of_ndjson.write_text(f'{{"topic": "post", "idempotency_key": "k", "payload": {text}}}\n')
    sender = ("--provider", "p", "--account", "a")
    step = (
        "machine",
        "transition",
        "order",
        "o1",
        "paid",
        "--version",
        "0",
        "--operation",
        "op1",
        "--role",
        "r",
        "--reason",
        "r",
    )
    done = {
        "payload": trex("enqueue", "post", "k", "--payload", text),
        "payload file": trex("enqueue", "post", "k", "--payload-file", str(file)),
        "stdin": trex("enqueue", "post", "k", "--payload-file", "-", stdin=text),
        "machine": trex("machine", "load", str(file), "--reason", "r"),
        "arguments": trex(*step, "--arguments", text),
        "record": trex("record", str(file)),
        "exchange": trex("exchange", str(file), "--worker", "w"),
        "csv": trex("import", str(rows_of_csv)),
        "ndjson": trex("import", str(rows_of_ndjson)),
        "events": trex("inbox", "backfill", str(file), *sender),
        "receive": trex("inbox", "receive", str(file), *sender, "--type", "t"),
    }
    assert "arguments" in done["arguments"].err
    for name, outcome in done.items():
        assert not holds(outcome.out + outcome.err), name
        assert "internal error" not in outcome.err, name
        assert outcome.code != 0 or name == "receive", name
    # The bytes of an event are kept as they are; nothing else is.
    assert rows(database, "select payload::text from trex.message") == [("null",)]
    embedded = database.server.embedded
    if embedded is not None:
        assert not holds(embedded.log.read_text())
        with pytest.raises(psycopg.DataError):
            database.connect().execute("select %s::jsonb", ['{"pan": "an unguarded one'])
        assert "an unguarded one" in embedded.log.read_text()


def test_the_search_would_find_it(new_db):
    database = new_db()
    client = register(database)
    assert holds(f"x {CANARY}")
    assert holds(CANARY.upper())
    assert holds(CANARY.encode().hex())
    assert not holds("order-17")
    # In a log, in a table, in an exception's text.
    stream = io.StringIO()
    stream.write(json.dumps({"event": "retried", "error": f"boom {CANARY}"}))
    assert holds(stream.getvalue())
    assert in_tables(database) == []
    client.pause(actor=f"ann {CANARY}", reason="planted")
    assert in_tables(database) == [("audit", "actor")]
    assert holds("".join(traceback.format_exception(ValueError(CANARY))))


def test_postgresql_would_print_the_row_without_our_guards(new_db):
    database = new_db()
    conn = database.connect()
    conn.execute("create table t (a text check (length(a) < 3))")
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        conn.execute("insert into t values (%s)", (PLANTED,))
    assert PLANTED in str(caught.value)


def test_a_leak_in_a_servers_log_is_found(private_server):
    server = private_server()
    with server.admin() as conn:
        conn.execute(f"do $$ begin raise warning '{CANARY}'; end $$")
    with pytest.raises(AssertionError):
        server.embedded.close()


@pytest.mark.parametrize("leak", [CANARY, CANARY.upper(), CANARY.encode().hex(), "the password"])
def test_a_leak_of_a_worker_a_daemon_or_a_command_is_found(new_db, tmp_path, monkeypatch, leak):
    monkeypatch.setattr(canaries, "passwords", {"the password"})
    made = job(new_db(), FakeSink())
    canaries.search_watched()
    made.log.write(f"text {leak}")
    canaries.watch("a worker's log", made.log.getvalue)
    with pytest.raises(AssertionError) as caught:
        canaries.search_watched()
    assert leak not in str(caught.value)
    with daemons(tmp_path, "host=/nonexistent", {"kind": "none"}) as group:
        daemon = group.start("--help")
        daemon.process.wait()
        daemon.log.write_text(leak)
    with pytest.raises(AssertionError):
        canaries.search_watched()
    with pytest.raises(AssertionError):
        canaries.check(leak, "what a command notes")
    canaries.search_watched()
