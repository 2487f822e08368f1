"""Commands of the inbox, of machines, of reconciliation, and of viewers."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import stripe

from tests.py.cli.test_commands import in_terminal

if TYPE_CHECKING:
    from tests.py.cli.conftest import Trex
    from tests.support.databases import Database

ROOT = Path(__file__).resolve().parents[3]
SECRET = "whsec_canary"
BODY = '{"id": "evt_1",  "type": "invoice.paid", "data": {"object": {"id": "in_1"}}}\r\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    file = tmp_path / "webhooks.toml"
    file.write_text(
        '[endpoints.stripe]\nprovider = "stripe"\naccount = "acct_a"\nscheme = "stripe"\n'
        f'secrets.current = {{ file = "{tmp_path}/secret" }}\n'
    )
    return file


class Served:
    """`trex inbox serve` as a process of its own."""

    def __init__(self, trex: Trex, config: Path) -> None:
        self.process = trex.start(
            "inbox", "serve", "--config", str(config), "--listen", "127.0.0.1:0",
            "--http", "127.0.0.1:0", stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stderr is not None
        ports: list[int] = []
        self.log: list[str] = []
        while len(ports) < 2:
            line = self.process.stderr.readline()
            assert line, self.log
            self.log.append(line.decode())
            said = json.loads(line)
            if said["event"] == "serving":
                ports.append(said["port"])
        self.health, self.url = (f"http://127.0.0.1:{port}" for port in ports)
        end = time.monotonic() + 30
        while self.ask("/readyz") != 200:
            assert time.monotonic() < end
            time.sleep(0.05)

    def ask(self, path: str) -> int:
        return httpx.get(self.health + path, trust_env=False).status_code

    def send(self, secret: str = SECRET) -> httpx.Response:
        header = stripe.WebhookSignature.generate_signature_header(BODY, secret)
        headers = {"Stripe-Signature": header, "Content-Type": "application/json"}
        return httpx.post(
            f"{self.url}/stripe", content=BODY.encode(), headers=headers, trust_env=False
        )

    def reload(self) -> dict[str, object]:
        """SIGHUP, and what the log says of it."""
        self.process.send_signal(signal.SIGHUP)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.decode())
            said: dict[str, object] = json.loads(line)
            if said["event"] == "reloaded":
                return said
        raise AssertionError(self.log)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=40)
        self.log += err.decode().splitlines()
        return self.process.returncode


@pytest.mark.criterion("ac-0055")
def test_served_killed_and_served_again(trex: Trex, config: Path) -> None:
    first = Served(trex, config)
    assert first.send().json() == {"deduplicated": False}
    assert httpx.get(f"{first.url}/metrics", trust_env=False).status_code == 404
    metrics = httpx.get(f"{first.health}/metrics", trust_env=False).text
    assert 'trex_webhooks_total{result="received",trex_instance="shop"} 1.0' in metrics
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = Served(trex, config)
    assert second.send().json() == {"deduplicated": True}
    assert second.end(signal.SIGTERM) == 0
    logs = "".join([*first.log, *second.log])
    for secret in (SECRET, "acct_a", "evt_1", "in_1", "127.0.0.1"):
        assert secret not in logs
    status = trex(
        "inbox", "status", "--provider", "stripe", "--account", "acct_a", "--event-id", "evt_1"
    ).row
    assert (status["status"], status["state"]) == ("received", "ready")
    event = trex("inbox", "event", str(status["message_id"])).row
    assert (event["event_type"], event["object_id"]) == ("invoice.paid", "in_1")
    assert event["key_id"] == "current"
    assert base64.b64decode(event["raw"]) == BODY.encode()


@pytest.mark.criterion("ac-0055")
def test_secrets_are_rotated_without_a_restart(trex: Trex, config: Path, tmp_path: Path) -> None:
    other = SECRET + "_next"
    served = Served(trex, config)
    assert (served.send().status_code, served.send(other).status_code) == (200, 401)
    # Both for a while.
    (tmp_path / "next").write_text(other)
    both = config.read_text() + f'secrets.next = {{ file = "{tmp_path}/next" }}\n'
    config.write_text(both)
    assert served.send(other).status_code == 401
    assert (served.reload()["result"], served.send(other).status_code) == ("ok", 200)
    assert served.send().status_code == 200
    # What can't be read changes nothing, whatever it is.
    for wrong in ("[", both.replace('scheme = "stripe"', 'scheme = "none"')):
        config.write_text(wrong)
        assert served.reload()["result"] == "failed"
        assert (served.send().status_code, served.send(other).status_code) == (200, 200)
    (tmp_path / "next").unlink()
    config.write_text(both)
    assert served.reload()["result"] == "failed"
    assert served.send(other).status_code == 200
    # The old one goes, by its file alone.
    (tmp_path / "next").write_text(other)
    (tmp_path / "secret").write_text(other + "_2")
    assert served.reload()["result"] == "ok"
    assert (served.send().status_code, served.send(other).status_code) == (401, 200)
    assert served.end(signal.SIGTERM) == 0
    assert SECRET not in "".join(served.log)


def test_serve_refuses_what_is_wrong(nowhere: Trex, config: Path, tmp_path: Path) -> None:
    assert nowhere("inbox", "serve", "--config", str(config)).code == 2  # no instance
    serve = ("inbox", "serve", "-i", "shop", "--config")
    assert nowhere(*serve, str(tmp_path / "missing")).code == 2
    assert nowhere(*serve, str(config), "--listen", "8080").code == 2
    assert nowhere(*serve, str(config), "--listen", "192.0.2.1:1").code == 2
    config.write_text(config.read_text() + 'secret = "whsec_in_the_file"\n')
    done = nowhere(*serve, str(config))
    assert done.code == 2
    assert "whsec" not in done.err


def test_an_event_by_hand(trex: Trex, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b'\xff{"a": 1}')
    arguments = ("inbox", "receive", str(body), "--provider", "p", "--account", "a", "--type", "t")
    received = trex(*arguments).row
    assert (received["status"], received["differs"]) == ("received", False)
    assert trex(*arguments).row["status"] == "deduplicated"
    status = trex("inbox", "status", "--id", str(received["message_id"])).row
    assert status["event_id"].startswith("sha256:")
    assert trex("inbox", "status").code == 2
    assert trex("inbox", "event", "999999").code == 4
    body.write_bytes(b'{"a": "\\u0000"}')
    assert trex(*arguments, "--event-id", "nul").row["status"] == "received"
    missing = trex("inbox", "receive", "/nonexistent", *arguments[3:])
    assert missing.code == 2


@pytest.mark.case("K16")
def test_missed_events_from_a_file(trex: Trex, tmp_path: Path, pg_db: Database) -> None:
    def event(name: str, **more: object) -> str:
        return json.dumps(
            {"id": name, "type": "t", "data": {"object": {"id": f"in_{name}"}}, **more}
        )

    page = tmp_path / "events.ndjson"
    command = ("inbox", "backfill", str(page), "--provider", "stripe", "--account", "acct_a")
    page.write_text("\n".join(event(f"e{n}") for n in (3, 1, 2)))
    done = trex(*command)
    assert (done.code, done.row["received"], done.row["events"]) == (0, 3, 3)
    assert trex(*command, "--batch", "2").row["deduplicated"] == 3
    # Of five, three are known and one comes twice; two lines are none.
    page.write_bytes(
        "\r\n".join([event("e1"), event("e4"), "{", event("e2", more=1), event("e4"), event("e3")])
        .encode() + b"\n\n\xff\n" + event("e5", text="\0").encode()
    )  # fmt: skip
    each = trex(*command, "--each")
    assert each.code == 12
    answers = {row["line"]: row["status"] for row in each.rows}
    assert answers == {
        1: "deduplicated", 2: "received", 3: "invalid", 4: "deduplicated", 5: "deduplicated",
        6: "deduplicated", 8: "invalid", 9: "invalid",
    }  # fmt: skip
    assert [row["line"] for row in each.rows if row.get("differs")] == [4]
    stored = pg_db.connect().execute(
        "select event_id::text, object_id::text, account::text from trex.inbox_event order by 1"
    ).fetchall()  # fmt: skip
    assert stored == [(f"e{n}", f"in_e{n}", "acct_a") for n in (1, 2, 3, 4)]
    page.write_text(event("e1"))
    assert "trex.receive(" in trex(*command, "--print-sql").out
    assert trex("inbox", "backfill", "/nonexistent", *command[3:]).code == 2


def test_handlers_by_the_daemon(
    trex: Trex, pg_db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_events.py").write_text(
        "async def note(incoming):\n"
        "    await incoming.conn.execute('insert into public.done values (%s)',"
        " [incoming.event.event_id])\n"
        "HANDLERS = {'t': note}\n"
    )
    pg_db.connect().execute("create table public.done (event_id text)")
    body = tmp_path / "body"
    body.write_text("{}")
    trex("inbox", "receive", str(body), "--provider", "p", "--account", "a", "--type", "t",
         "--event-id", "evt_1")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command = ("--box", "inbox", "--handlers", "cli_events:HANDLERS")
    done = trex.process("backfill", *command, "--no-listen")
    assert (done.code, done.row["delivered"]) == (0, 1), done.err
    assert pg_db.connect().execute("select event_id from public.done").fetchall() == [("evt_1",)]
    for wrong in (("--handlers", "cli_events:HANDLERS"), ("--box", "inbox", "--handlers", "x:y")):
        assert trex.process("backfill", *wrong).code == 2


LONG_HANDLERS = """
import asyncio
from pathlib import Path

from trex_client.worker import Steps


async def hold(incoming):
    await incoming.conn.execute("select from public.gate for update")


async def ask(incoming):
    Path(f"asked-{incoming.claim.attempt}").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.02)


async def nothing(incoming):
    pass


HANDLERS = {"held": hold, "asked": Steps(ask=ask, apply=nothing)}
"""


@pytest.mark.criterion("ac-0055")
def test_leases_are_extended_while_a_handler_holds_its_event(
    trex: Trex, pg_db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event's transaction lasts for many leases; another's provider takes as long to answer.
    Neither is lost to a second daemon."""
    (tmp_path / "long_handlers.py").write_text(LONG_HANDLERS)
    monkeypatch.chdir(tmp_path)
    conn, gate = pg_db.connect(), pg_db.connect()
    conn.execute("create table public.gate as select 1 as n")
    gate.execute("begin")
    gate.execute("select from public.gate for update")
    daemons = []

    def daemon() -> None:
        command = ("daemon", "--box", "inbox", "--handlers", "long_handlers:HANDLERS",
                   "--lease", "1s", "--poll", "100ms", "-c", "4")  # fmt: skip
        process = trex.start(*command, stderr=subprocess.PIPE)
        daemons.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "connected":
                return

    def until(condition: str, *values: object) -> None:
        end = time.monotonic() + 60
        while conn.execute(f"select {condition}", values).fetchone() != (True,):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    body = tmp_path / "body"
    body.write_text("{}")
    ids = []
    for kind in ("held", "asked"):
        done = trex("inbox", "receive", str(body), "--provider", "p", "--account", "a", "--type",
                    kind, "--event-id", kind)  # fmt: skip
        ids.append(done.row["message_id"])
    held, asked = ids
    try:
        daemon()
        until("exists (select from pg_stat_activity where wait_event_type = 'Lock')")
        until("exists (select from trex.delivery where message_id = %s and fence > 0)", asked)
        daemon()
        # Its lease ended, and nobody can take it.
        until(
            "exists (select from trex.delivery where message_id = %s"
            " and lease_until < clock_timestamp() - interval '3 seconds')",
            held,
        )
        until(
            "exists (select from trex.delivery where message_id = %s"
            " and lease_until > clock_timestamp())",
            asked,
        )
        assert not (tmp_path / "asked-2").exists()
        gate.execute("rollback")
        (tmp_path / "go").touch()
        until("count(*) = 2 and bool_and(attempt = 1) from trex.receipt")
        assert (tmp_path / "asked-1").exists()
    finally:
        for process in daemons:
            process.terminate()
        codes = [(process.communicate(timeout=60), process.returncode)[1] for process in daemons]
    assert codes == [0, 0]
    ends = conn.execute("select count(*) from trex.outcome").fetchone()
    assert ends == (0,)


def test_machines(trex: Trex) -> None:
    file = str(ROOT / "examples" / "machines" / "order.json")
    load = ("machine", "load", file, "--reason", "test")
    assert trex(*load).row == {"result": "loaded"}
    assert trex(*load).row == {"result": "unchanged"}
    cells = trex("machine", "show", "order").rows
    assert {"placed", "shipped"} <= {cell["state"] for cell in cells}
    assert any(cell["to_state"] is None for cell in cells)
    allowed = sum(cell["to_state"] is not None for cell in cells)
    shown = in_terminal("machine", "show", "order", **trex.environment)
    assert shown.count("return_requested") >= 3
    assert f"the other {len(cells) - allowed} of {len(cells)}" in shown
    assert "2d" in shown
    assert trex("machine", "show", "nothing").code == 4
    assert trex("machine", "status", "order", "1").code == 4
    assert trex("machine", "history", "order", "1").rows == []
    assert trex("machine", "operation", "op-1").code == 4
    assert trex("machine", "overdue").rows == []
    assert trex("machine", "effects", "--effect", "unknown").rows == []


def test_steps_and_corrections(trex: Trex) -> None:
    file = str(ROOT / "examples" / "machines" / "order.json")
    trex("machine", "load", file, "--reason", "test")
    move = ("machine", "transition", "order", "o1")
    place = (*move, "place", "--version", "0", "--operation", "buy-1", "--role", "buyer",
             "--amount", "100", "--reason", "checkout", "--arguments", '{"n": 1.10}')  # fmt: skip
    done = trex(*place)
    assert (done.code, done.row["status"], done.row["version"]) == (0, "applied", 1)
    assert (again := trex(*place)).row["status"] == "replayed", again.err
    cancel = (*move, "cancel", "--role", "buyer", "--reason", "r")
    late = (*cancel, "--version", "0", "--operation", "cancel-1")
    assert (trex(*late).code, trex(*late).out) == (8, "")
    refused = trex(*late, "--report")
    assert (refused.code, refused.row["status"]) == (8, "version_conflict")
    assert trex(*cancel, "--version", "1", "--operation", "buy-1").code == 7
    forbidden = trex(*cancel[:-4], "--role", "clerk", "--reason", "r", "--version", "1",
                     "--operation", "cancel-2", "--report")  # fmt: skip
    assert (forbidden.code, forbidden.row["status"]) == (8, "forbidden")
    assert trex(*place[:-1], "{").code == 2
    correct = ("machine", "correct", "buy-1", "refund-1", "refund", "--amount", "-30", "--version",
               "0", "--role", "support", "--evidence", "photo", "--reason", "damaged")  # fmt: skip
    done = trex(*correct, "--balance", "100")
    assert (done.code, done.row["status"], done.row["balance"]) == (0, "applied", "70")
    assert trex(*correct).row["status"] == "replayed"
    history = trex("machine", "operation", "buy-1").rows
    assert [line["balance"] for line in history] == ["100", "70"]
    assert trex("machine", "status", "order", "o1").row["state"] == "placed"
    assert [step["event"] for step in trex("machine", "history", "order", "o1").rows] == ["place"]


def test_from_an_order_to_its_use_and_its_end(trex: Trex, tmp_path: Path) -> None:
    def event(name: str) -> tuple[str, str]:
        body = tmp_path / name
        body.write_text("{}")
        trex("inbox", "receive", str(body), "--provider", "stripe", "--account", "a", "--type", "t",
             "--event-id", name)  # fmt: skip
        row = trex("claim", "--worker", "w", "--box", "inbox").row
        return str(row["message_id"]), str(row["fence"])

    invoice = ("--account", "a", "--invoice", "in_1")
    order = ("authority", "register-order", "in_1", "ord_1", "--account", "a", "--seller", "s1",
             "--buyer", "b1", "--item", "plan", "--amount", "50", "--currency", "USD")  # fmt: skip
    limits = ("--uses-max", "1", "--devices-max", "1", "--valid-for", "30d")
    assert trex(*order, *limits).row == {"result": "registered"}
    assert trex(*order, *limits).row == {"result": "duplicate"}
    assert trex(*order).code == 7
    payment = ("authority", "record-payment", *invoice, "--status")
    assert trex(*payment, "open").row == {"changed": True}
    paid = ("authority", "finalize-paid", *event("evt_1"), *invoice, "--order", "ord_1", "--status")
    waiting = trex(*paid, "open")
    assert (waiting.code, waiting.row["status"]) == (8, "not_paid")
    granted = trex(*paid, "paid")
    assert (granted.code, granted.row["status"]) == (0, "granted")
    licence = granted.row["licence_id"]
    assert trex("authority", "bind-device", licence, "thumb").row == {"result": "bound"}
    for number in ("1", "2"):
        issued = trex("authority", "issue-capability", f"cap_{number}", licence, "--subject", "b1")
        assert issued.row["status"] == "issued"
    use = ("authority", "execute-licence", "cap_1", "use_1", "--subject", "b1", "--thumbprint")
    refused = trex(*use, "other", "--report")
    assert (refused.code, refused.row["status"]) == (8, "device_unknown")
    assert trex(*use, "thumb").row["status"] == "executed"
    assert trex(*use, "thumb").row["status"] == "replayed"
    again = ("authority", "execute-licence", "cap_2", "use_2", "--subject", "b1", "--thumbprint")
    assert trex(*again, "thumb").code == 8
    admin = ("--account", "a", "--as", "admin", "--tenant", "a")
    assert [row["uses"] for row in trex("viewer", "counters", *admin).rows] == [1, 1]
    renewed = trex("authority", "update-subscription", "sub_1", *invoice, "--status", "active",
                   "--period-end", "2199-01-31", "--asked-at", "2026-01-01T00:00:00Z")  # fmt: skip
    assert renewed.row == {"result": "created"}
    back = trex("authority", "apply-refund", *event("evt_2"), *invoice, "--refund", "re_1",
                "--amount", "20", "--currency", "USD", "--evidence", "evt_2")  # fmt: skip
    assert (back.code, back.row["status"]) == (0, "refunded"), back.err
    end = trex("authority", "apply-provider-cancel", *event("evt_3"), *invoice, "--cause",
               "cancelled", "--evidence", "evt_3")  # fmt: skip
    assert (end.code, end.row["entitlement_state"]) == (0, "cancelled")
    assert trex("authority", "expire-entitlements", "--reason", "r").row == {"ended": 0}


def test_reconciliation(trex: Trex, pg_db: Database) -> None:
    run = ("reconcile", "run", "--reason", "test", "--rows", "1")
    clean = trex(*run)
    assert (clean.code, clean.row["state"]) == (0, "clean"), clean.err
    done = trex("enqueue", "post", "k1", "--payload", "{}")
    trex("claim", "--worker", "w")
    (claim,) = pg_db.connect().execute(
        "select fence from trex.delivery where message_id = %s", (done.row["message_id"],)
    ).fetchall()  # fmt: skip
    trex("fail", str(done.row["message_id"]), str(claim[0]))
    found = trex(*run)
    assert (found.code, found.row["state"]) == (12, "findings")
    number = str(found.row["run_id"])
    findings = trex("reconcile", "show", number).rows
    assert [one["type"] for one in findings] == ["failed_or_stuck_outbox"]
    assert trex("reconcile", "show", "--state", "repaired").rows == []
    assert [one["state"] for one in trex("reconcile", "reports").rows] == ["findings", "clean"]
    assert trex(*run, "--print-sql").out.startswith("select ")
    again = trex(*run, "--run", number)
    assert (again.code, again.row["run_id"]) == (12, found.row["run_id"])


@pytest.mark.parametrize("what", ["entitlements", "usage", "counters", "devices", "security"])
def test_viewers(trex: Trex, what: str) -> None:
    read = ("viewer", what, "--account", "acct_a")
    assert trex(*read, "--as", "admin", "--tenant", "acct_a").rows == []
    seller = ("--as", "seller", "--tenant", "acct_a", "--viewer-seller", "s1")
    assert trex(*read, *seller).code == 0
    assert trex(*read, *seller, "--seller", "s2").code == 4
    assert trex(*read, "--as", "admin", "--tenant", "acct_b").code == 4
    assert trex(*read, "--as", "buyer", "--tenant", "acct_a").code == 3
    assert trex(*read).code == 3
