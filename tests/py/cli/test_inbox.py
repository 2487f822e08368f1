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

    def send(self) -> httpx.Response:
        header = stripe.WebhookSignature.generate_signature_header(BODY, SECRET)
        headers = {"Stripe-Signature": header, "Content-Type": "application/json"}
        return httpx.post(
            f"{self.url}/stripe", content=BODY.encode(), headers=headers, trust_env=False
        )

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
    assert 'trex_webhooks_total{instance="shop",result="received"} 1.0' in metrics
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
    missing = trex("inbox", "receive", "/nonexistent", *arguments[3:])
    assert missing.code == 2


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


def test_machines(trex: Trex) -> None:
    file = str(ROOT / "examples" / "machines" / "order.json")
    load = ("machine", "load", file, "--reason", "test")
    assert trex(*load).row == {"result": "loaded"}
    assert trex(*load).row == {"result": "unchanged"}
    cells = trex("machine", "show", "order").rows
    assert {"placed", "shipped"} <= {cell["state"] for cell in cells}
    assert any(cell["to_state"] is None for cell in cells)
    assert trex("machine", "show", "nothing").code == 4
    assert trex("machine", "status", "order", "1").code == 4
    assert trex("machine", "history", "order", "1").rows == []
    assert trex("machine", "operation", "op-1").code == 4
    assert trex("machine", "overdue").rows == []
    assert trex("machine", "effects", "--effect", "unknown").rows == []


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
