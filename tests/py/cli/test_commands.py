"""Every command on real PostgreSQL: what it prints and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.py.authority.world import ACCOUNT, order, receive
from tests.py.cli.conftest import PROGRAM, Trex, clean_environment
from tests.support.pooler import Pooler
from trex_client.cli._exit import code_of
from trex_client.errors import from_sqlstate
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

    Enqueue = Callable[..., int]

WHY = ("--reason", "because")
BIN = str(Path(sys.executable).parent)
LAST = max(path.stem for path in Path("sql/migrations").glob("*.sql"))


def claim(trex: Trex) -> tuple[str, str]:
    row = trex("claim", "--worker", "w1").row
    return str(row["message_id"]), str(row["fence"])


def test_a_message_from_enqueue_to_receipt(trex: Trex) -> None:
    money = ("--account", "a-1", "--currency", "USD", "--cash-delta", "-12.5")
    done = trex("enqueue", "post", "k1", "--payload", '{"n": 1.50}', *money)
    assert (done.code, done.row["status"]) == (0, "enqueued")
    assert trex("enqueue", "post", "k1", "--payload", '{"n": 1.50}', *money).row["status"] == (
        "duplicate"
    )
    (pending,) = trex("pending").rows
    assert pending["cash_delta"] == "-12.50"
    assert trex("cash").row["pending"] == "-12.50"
    claimed = trex("claim", "--worker", "w1", "--lease", "1m30s").row
    assert claimed["payload"] == {"n": 1.5}
    assert claimed["enqueued_at"].endswith("Z")
    ids = (str(claimed["message_id"]), str(claimed["fence"]))
    assert trex("extend", *ids, "--lease", "5m").row["status"] == "extended"
    assert trex("hold", *ids).row["status"] == "recorded"
    assert trex("mark-sent", *ids).row["status"] == "recorded"
    done = trex("complete", *ids, "--reference", "TX-1", "--balance", "87.5", "--version", "1")
    assert done.row["state"] == "delivered"
    assert trex("complete", *ids).row["status"] == "already_recorded"
    assert trex("status", "--key", "k1").row["reference"] == "TX-1"
    assert trex("status", ids[0]).row["state"] == "delivered"
    assert trex("stats").row["ready"] == 0


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (["retry", "--reason", "timeout", "--delay", "30s"], "deferred"),
        (["unknown", "--reason", "timeout", "--park"], "unknown"),
        (["conflict"], "conflict"),
        (["fail", "--absent"], "permanent"),
        (["dead-letter"], "dead_letter"),
        (["release"], "ready"),
        (["postpone", "--delay", "10m"], "deferred"),
        (["complete-duplicate"], "delivered"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_every_outcome(trex: Trex, enqueued: Enqueue, command: list[str], state: str) -> None:
    enqueued("k")
    message_id, fence = claim(trex)
    name, *options = command
    done = trex(name, message_id, fence, *options)
    assert (done.code, done.row["status"], done.row["state"]) == (0, "recorded", state)
    assert trex(name, message_id, fence, *options).row["status"] == "already_recorded"
    assert trex(name, message_id, str(int(fence) + 1), *options).code == 5
    assert trex(name, "999", fence, *options).code == 4
    other = "complete" if name != "complete-duplicate" else "retry"
    assert trex(other, message_id, fence).code == 6


def test_batches_from_ndjson(trex: Trex, enqueued: Enqueue, tmp_path: Path) -> None:
    for key in ("k1", "k2", "k3"):
        enqueued(key, "--account", "a", "--currency", "USD", "--cash-delta", "1")
    claims = trex("claim", "--worker", "w1", "-n", "3").rows
    reports: list[dict[str, Any]] = [
        {"result": "completed", "balance": "1.10", "version": 2},
        {"result": "retry", "reason": "timeout", "delay": "1m"},
        {"result": "retry", "delay": 2.5},
    ]
    for report, claimed in zip(reports, claims, strict=True):
        report |= {"message_id": claimed["message_id"], "fence": claimed["fence"]}
    file = tmp_path / "reports"
    file.write_text("\n".join(json.dumps(report) for report in reports[:2]))
    done = trex("record", str(file))
    assert [row["state"] for row in done.rows] == ["delivered", "deferred"]
    reports.append({"message_id": 999, "fence": 1, "result": "completed"})
    text = "\n".join(json.dumps(report) for report in reports[2:])
    done = trex("exchange", "-", "--worker", "w1", stdin=text)
    assert done.code == 4
    assert [row["status"] for row in done.rows] == ["recorded", "not_found"]


@pytest.mark.parametrize(
    "line",
    [
        "x", "[]", "{}", '{"message_id": 1, "fence": 1, "result": "done"}',
        '{"message_id": 1, "fence": 1, "result": "retry", "delay": "soon"}',
        '{"message_id": 1, "fence": 1, "result": "completed", "balance": "NaN?", "version": 1}',
        '{"message_id": 1, "fence": 1, "result": "completed", "more": 1}',
        '{"message_id": 1.5, "fence": 1, "result": "completed"}',
        '{"message_id": 1, "fence": 1, "result": "completed", "reference": 7}',
        '{"message_id": 1, "fence": 1, "result": "retry", "message_id": 2}',
    ],
)  # fmt: skip
def test_reports_that_are_none(nowhere: Trex, line: str) -> None:
    assert nowhere("record", "-", "-i", "shop", stdin=line).code == 2


def test_operators(trex: Trex, enqueued: Enqueue, pg_db: Database) -> None:
    parked = [str(enqueued(key)) for key in ("k1", "k2")]
    trex("fail", *claim(trex))
    trex("unknown", *claim(trex), "--park")
    assert [row["parked"] for row in trex("parked").rows] == ["permanent", "unknown"]
    done = trex("redrive", *parked, "999", *WHY)
    assert [row["status"] for row in done.rows] == ["redriven", "needs_resolve", "not_found"]
    assert done.code == 8
    assert trex("resolve", parked[0], "resend", "--evidence", "e", *WHY).code == 8
    done = trex("resolve", parked[1], "delivered", "--evidence", "statement", *WHY)
    assert (done.code, done.row["state"]) == (0, "delivered")
    trex("postpone", *claim(trex), "--delay", "1h")
    assert trex("expedite", parked[0], *WHY).row["status"] == "expedited"
    done = trex("purge", "--older-than", "0s", "--dry-run", *WHY)
    assert done.row == {"examined": 1, "purged": 1, "last_message_id": int(parked[1])}
    assert trex("bump-epoch", *WHY).row["epoch"] >= 2
    assert trex("currency", "SHELL", "4", *WHY).row == {"changed": True}
    assert trex("currency", "SHELL", "5", *WHY).code == 7
    assert trex("report-stale", parked[0], "5", "completed").code in (0, 5)
    actors = pg_db.connect().execute("select distinct actor from trex.audit").fetchall()
    assert ("ann",) in actors


def test_instances(trex: Trex) -> None:
    new = ("-i", "new")
    assert trex("stats", *new).code == 3
    done = trex("instance", "register", *new, "--max-attempts", "3", "--lease-default", "1m", *WHY)
    assert done.row == {"result": "registered"}
    user = trex("instance", "show").row["bound_roles"][0]
    assert trex("instance", "bind", user, *new, *WHY).row == {"changed": True}
    assert "no role" not in trex("instance", "bind", user, *new, *WHY).err
    done = trex("instance", "bind", user.upper() + "_to_come", *new, *WHY)
    assert (done.row, "no role" in done.err) == ({"changed": True}, True)
    shown = trex("instance", "show", *new).row
    assert (shown["max_attempts"], shown["lease_default"]) == (3, 60.0)
    assert trex("instance", "pause", *new, *WHY).row == {"changed": True}
    assert trex("instance", "show", *new).row["paused"] is True
    assert trex("instance", "resume", *new, *WHY).row == {"changed": True}
    assert trex("listen", "--worker", "w1", "--duration", "1s").row["channel"].startswith("trex_")
    assert trex("unlisten", "--worker", "w1").code == 0
    assert trex("instance", "unbind", user, *new, *WHY).row == {"changed": True}
    assert trex("stats", *new).code == 3


def test_adopt_brings_a_quarantined_row_in_once(trex: Trex, pg_db: Database) -> None:
    row = (
        pg_db.connect()
        .execute(
            "insert into trex.quarantine (source, source_key, topic, idempotency_key, payload)"
            " values ('old', '1', 'post', 'old-1', '{}') returning quarantine_id"
        )
        .fetchone()
    )
    assert row is not None
    done = trex("adopt", str(row[0]), "--evidence", "ticket", *WHY)
    assert (done.code, done.row["status"]) == (0, "enqueued")
    status = trex("status", "--key", "old-1").row
    assert (status["uncertain"], status["state"]) == (True, "ready")
    assert trex("adopt", str(row[0]), "--evidence", "ticket", *WHY).code != 1
    assert trex("adopt", "999", "--evidence", "ticket", *WHY).code == 4


# How commands end


@pytest.mark.parametrize("key", ["", " ", "Shop", "-", "a" * 64, "shop\n"])
@pytest.mark.parametrize(
    "command", [["pending"], ["import", "-"], ["instance", "show"], ["claim", "--worker", "w"]]
)
def test_an_instance_is_required_before_anything_connects(
    nowhere: Trex, command: list[str], key: str
) -> None:
    done = nowhere(*command, TREX_INSTANCE=key)
    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["claim"], ["claim", "--worker", "w", "--lease", "soon"],
        ["claim", "--worker", "w", "-n", "many"], ["enqueue", "post", "k"],
        ["enqueue", "post", "k", "--payload", "{}", "--payload-file", "x"],
        ["enqueue", "post", "k", "--payload-file", "/nonexistent"], ["complete", "1"], ["nonsense"],
        ["enqueue", "post", "k", "--payload", "{}", "--cash-delta", "NaN"],
        ["pending", "--dsn-file", "/nonexistent"], ["pending", "--dsn-file", "x", "--service", "y"],
        ["redrive", "1"], ["resolve", "1", "maybe", "--evidence", "e", "--reason", "r"],
        ["claim", "--worker", "w", "-n", "3000000000"], ["migrate", "--check", "--dry-run"],
        ["import", "-", "--batch", "0"], ["import", "/nonexistent"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage(nowhere: Trex, arguments: list[str]) -> None:
    done = nowhere(*arguments, TREX_INSTANCE="shop")
    assert (done.code, done.out) == (2, "")


def test_invalid_arguments_are_named(trex: Trex) -> None:
    done = trex("claim", "--worker", " w")
    assert (done.code, done.out) == (2, "")
    assert "worker" in done.err
    assert trex("claim", "--worker", "w", "-n", "0").code == 2
    for text in ("{", '{"a": "b\\u0000c"}', '"\\ud800"', "NaN", "1e200000", ""):
        for source in (("--payload", text), ("--payload-file", "-")):
            done = trex("enqueue", "post", "k", *source, stdin=text)
            assert done.code == 2
            assert done.err.startswith("trex: invalid argument: payload: JSON text, at most 256")
    assert trex("pending").rows == []


def test_a_refusal_says_what_is_allowed(trex: Trex) -> None:
    done = trex("enqueue", "post", "k", "--payload", "1", "--account", "a", "--currency", "XYZ",
                "--cash-delta", "1")  # fmt: skip
    assert done.code == 2
    assert "currency: registered" in done.err


def test_a_viewer_is_told_that_the_read_is_not_theirs(trex: Trex) -> None:
    asked = ("viewer", "counters", "--account", "acct_1", "--tenant", "acct_1", "--as")
    done = trex(*asked, "buyer")
    assert (done.code, "buyers" in done.err, "bind" in done.err) == (3, True, False)
    unbound = trex(*asked, "admin", TREX_INSTANCE="other")
    assert (unbound.code, "buyers" in unbound.err, "bind" in unbound.err) == (3, False, True)


def test_why_a_licence_cannot_be_used(trex: Trex, pg_db: Database) -> None:
    conn = pg_db.connect()
    shop = PostgresClient(conn, "shop")
    shop.register_currency("USD", 2, actor="test", reason="test")
    order(shop, uses_max=1, devices_max=1)
    received = receive(shop, "evt_1")
    (held,) = shop.claim("w", box="inbox")
    with conn.transaction():
        shop.hold(held.message_id, held.fence)
        shop.finalize_paid(
            held.message_id, held.fence, account=ACCOUNT, invoice_id="in_1", order_id="ord_1",
            status="paid",
        )  # fmt: skip
    licence = shop.status(received.message_id).reference
    assert licence is not None
    for name in ("c1", "c2"):
        shop.issue_capability(name, licence, "buy_1")

    def use(capability: str, *more: str) -> tuple[int, str]:
        done = trex("authority", "execute-licence", capability, f"use-{capability}",
                    "--subject", "buy_1", *more)  # fmt: skip
        return done.code, done.err

    code, why = use("c1", "--thumbprint", "t")
    assert (code, "device" in why) == (8, True)
    shop.bind_device(licence, "t")
    assert use("c1", "--thumbprint", "t") == (0, "")
    code, why = use("c2", "--thumbprint", "t")
    assert (code, "exhausted" in why) == (8, True)


def test_a_machine_that_is_wrong_is_told_how(trex: Trex, tmp_path: Path) -> None:
    file = tmp_path / "order.json"

    def load(text: str) -> tuple[int, str]:
        file.write_text(text, encoding="utf-8")
        done = trex("machine", "load", str(file), *WHY)
        return done.code, done.err

    for text, word in (
        ("[1]", "an object"),
        ('{"states": {}, "transitions": []}', "states"),
        ("{", "definition"),
        ('{"states": {"new": {}, "new": {"final": true}}, "transitions": []}', "twice"),
        ('{"states": {}, "states": {}}', "twice"),
    ):
        code, why = load(text)
        assert (code, word in why) == (2, True), (text, why)
    assert trex("machine", "show", "order").code == 4
    good = Path(__file__).resolve().parents[3] / "examples/machines/order.json"
    assert load(good.read_text(encoding="utf-8")) == (0, "")
    done = trex("machine", "transition", "order", "o1", "place", "--version", "0", "--operation",
                "p", "--role", "buyer", "--amount", "1", "--arguments", "[1]", *WHY)  # fmt: skip
    assert (done.code, "arguments: an object" in done.err) == (2, True), done.err


def test_an_unknown_run_has_no_findings_to_show(trex: Trex) -> None:
    done = trex("reconcile", "show", "99")
    assert (done.code, done.out) == (4, "")
    assert trex("reconcile", "show").code == 0


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_the_encoding_is_ours_whatever_the_environment_says(
    trex: Trex, pg_db: Database, encoding: str
) -> None:
    dsn = f"{pg_db.dsn('app')} client_encoding={encoding}"
    assert trex("enqueue", "post", "é", "--payload", '"é"', TREX_DSN=dsn).code == 0
    (row,) = trex("pending", PGCLIENTENCODING=encoding).rows
    assert row["idempotency_key"] == "é"
    assert trex("migrate", "--dry-run", TREX_DSN=pg_db.dsn(), PGCLIENTENCODING=encoding).code == 0


def test_other_exit_codes(trex: Trex, pg_db: Database, enqueued: Enqueue, nowhere: Trex) -> None:
    enqueued("k")
    done = trex("enqueue", "post", "k", "--payload", "1")
    assert (done.code, done.row["status"]) == (7, "conflict")
    assert trex("stats", "-i", "other").code == 3
    assert trex("enqueue", "post", "x", "--payload", "1", TREX_DSN=pg_db.dsn("reader")).code == 3
    assert nowhere("stats", "-i", "shop").code == 9
    assert nowhere("migrate").code == 9
    read_only = f"{pg_db.dsn()} options='-c default_transaction_read_only=on'"
    assert trex("enqueue", "post", "x", "--payload", "1", TREX_DSN=read_only).code == 10


def test_what_is_in_the_way_is_worth_another_try(trex: Trex, pg_db: Database) -> None:
    holder = pg_db.connect()
    with holder.transaction():
        holder.execute("lock table trex.message in access exclusive mode")
        for setting in ("lock_timeout=50", "statement_timeout=50"):
            dsn = f"{pg_db.dsn()} options='-c {setting}'"
            done = trex("enqueue", "post", "k", "--payload", "1", TREX_DSN=dsn)
            assert (done.code, done.out) == (9, "")
            assert "run the same again" in done.err


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014", "53300", "57P01", "08006"])
def test_sqlstates_that_are_worth_another_try(code: str) -> None:
    assert code_of(from_sqlstate(code)) == 9


def test_the_isolation_level_is_ours_whatever_the_default_is(
    trex: Trex, enqueued: Enqueue, pg_db: Database
) -> None:
    for number in range(4):
        enqueued(f"k{number}", "--correlation", f"c{number}")
    serializable = "-c default_transaction_isolation=serializable"
    other = Trex(**trex.environment, PGOPTIONS=serializable)
    assert other("claim", "--worker", "w").code == 0
    assert other("exchange", "-", "--worker", "w", stdin="\n").code == 0
    for command in (["process", "--correlation", "c3"], ["backfill"]):
        done = other.process(*command)
        assert (done.code, done.row["claimed"] > 0) == (12, True), done.err
    daemon = other.start("daemon", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(2)
    daemon.terminate()
    _, err = daemon.communicate(timeout=60)
    assert (daemon.returncode, b"TX501" in err) == (0, False)
    assert findings(trex("doctor"))["isolation"] == "ok"
    assert findings(other("doctor"))["isolation"] == "warn"
    pg_db.connect().execute(
        f"alter database {pg_db.dbname} set default_transaction_isolation = 'repeatable read'"
    )
    assert trex("claim", "--worker", "w").code == 0
    with Pooler(pg_db.dsn()) as pooler:
        pooled = Trex(**trex.environment | {"TREX_DSN": pooler.dsn})
        for command in (["claim", "--worker", "w"], ["backfill"]):
            done = pooled.process(*command)
            assert done.code == 2
            assert "default_transaction_isolation" in done.err.splitlines()[-1]


def test_why_there_is_no_connection(trex: Trex, pg_db: Database, tmp_path: Path) -> None:
    nothing = tmp_path / "pg_service.conf"
    nothing.touch()
    sentences = set()
    for code, more in (
        (9, {"TREX_DSN": f"{pg_db.dsn()} dbname=s3cr3t_db"}),
        (9, {"PGOPTIONS": "-c s3cr3t=1"}),
        (9, {"TREX_DSN": f"{pg_db.dsn()} port=1"}),
        (9, {"TREX_DSN": "host=s3cr3t.invalid"}),
        (2, {"TREX_DSN": "service=s3cr3t", "PGSERVICEFILE": str(nothing)}),
    ):
        done = trex("stats", **more)
        assert (done.code, done.out) == (code, "")
        assert "s3cr3t" not in done.err
        sentences.add(done.err)
    assert len(sentences) == 3
    assert "PGOPTIONS" in trex("stats", PGOPTIONS="-c nope=1").err


def test_a_database_without_the_schema(empty_db: Database) -> None:
    empty = Trex(TREX_DSN=empty_db.dsn(), TREX_INSTANCE="shop")
    done = empty("stats")
    assert done.code == 11
    assert "older" not in done.err
    assert "trex migrate" in done.err
    assert empty("doctor").code == 12


def test_secrets_stay_where_they_are(nowhere: Trex, tmp_path: Path) -> None:
    secret = "s3cr3t"
    file = tmp_path / "dsn"
    for dsn in (
        f"host=/nonexistent password={secret}",
        f"postgresql://u:{secret}@127.0.0.1:1/db",
        f"password={secret} nonsense",
        f"postgresql://u:{secret}@[broken",
    ):
        file.write_text(dsn)
        for done in (
            nowhere("pending", "-i", "shop", TREX_DSN=dsn),
            nowhere("pending", "-i", "shop", "--dsn-file", str(file)),
            nowhere("migrate", TREX_DSN=dsn),
            nowhere("doctor", TREX_DSN=dsn),
        ):
            assert done.code in (2, 9)
            assert secret not in done.out + done.err
            assert done.err.startswith("trex: ")


def test_unexpected_errors_show_neither_text_nor_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trex_client import cli

    def fail() -> None:
        secret = "s3cr3t"
        raise ValueError(secret)

    monkeypatch.setattr(cli, "make_app", fail)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    printed = "".join(capsys.readouterr())
    assert "ValueError" in printed
    assert "s3cr3t" not in printed
    assert "Traceback" not in printed


# Output


def test_print_sql_is_the_exact_call_and_connects_to_nothing(
    nowhere: Trex, trex: Trex, pg_db: Database
) -> None:
    awkward = 'it\'s; \\ "x" :name %s é'
    done = nowhere(
        "enqueue", "post", awkward, "--payload", json.dumps({"a": awkward}), "--print-sql",
        "-i", "shop",
    )  # fmt: skip
    assert done.code == 0
    conn = pg_db.connect()
    for setting in ("on", "off"):
        conn.execute("select set_config('standard_conforming_strings', %s, false)", (setting,))
        row = psycopg.ClientCursor(conn).execute(done.out.encode()).fetchone()
        assert row is not None
    assert trex("status", "--key", awkward).row["state"] == "ready"
    assert trex("claim", "--worker", "w").row["payload"] == {"a": awkward}


def test_print_sql_of_every_command(nowhere: Trex) -> None:
    for arguments in (
        ["claim", "--worker", "w"],
        ["complete", "1", "2"],
        ["pending"],
        ["redrive", "1", "2", *WHY],
        ["bump-epoch", *WHY],
        ["instance", "register", *WHY],
        ["reconcile", "run", *WHY],
        ["machine", "history", "order", "o1"],
        ["viewer", "usage", "--account", "a"],
    ):
        done = nowhere(*arguments, "--print-sql", TREX_INSTANCE="shop")
        assert done.code == 0
        assert done.out.startswith("select ")
        assert done.out.endswith(";\n")


def in_terminal(*arguments: str, **environment: str) -> str:
    """What a person sees."""
    leader, follower = pty.openpty()
    env = {**clean_environment(**environment), "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdin=follower, stdout=follower, stderr=follower, env=env
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
        process.wait(60)
    os.close(leader)
    return shown.decode()


def test_tables_for_eyes_and_ndjson_for_pipes(trex: Trex, enqueued: Enqueue) -> None:
    enqueued("k[bold]1", "--account", "a", "--currency", "BTC", "--cash-delta", "0.00000001")
    shown = in_terminal("pending", **trex.environment)
    assert "k[bold]1" in shown
    assert "0.00000001" in shown
    assert "{" not in shown
    assert "0.00000001" in in_terminal("cash", **trex.environment)
    assert "ready" in in_terminal("status", "--key", "k[bold]1", **trex.environment)
    assert "payload" not in in_terminal("claim", "--worker", "w", **trex.environment)
    assert "nothing" in in_terminal("pending", **trex.environment)
    assert json.loads(in_terminal("stats", "--json", **trex.environment))["leased"] == 1
    piped = trex.process("stats")
    assert (piped.code, piped.row["leased"]) == (0, 1)


def test_what_was_given_up_in_doubt_is_not_forgotten(trex: Trex, enqueued: Enqueue) -> None:
    enqueued("k")
    message_id, fence = claim(trex)
    assert trex("unknown", message_id, fence, "--park").code == 0
    hint = "trex resolve ID delivered or absent"
    assert hint not in in_terminal("stats", **trex.environment)
    assert trex("resolve", message_id, "abandon", "--evidence", "e", *WHY).code == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", in_terminal("stats", **trex.environment))
    assert re.search(r"abandoned\W+1\b", shown)
    assert hint in shown
    assert "uncertain" in in_terminal("parked", **trex.environment)
    piped = trex.process("stats")
    assert (piped.row["abandoned"], piped.err) == (1, "")
    assert trex("resolve", message_id, "absent", "--evidence", "e", *WHY).code == 0
    assert not trex("parked").row["uncertain"]


def test_a_reader_that_goes_away_is_no_error(trex: Trex) -> None:
    process = trex.start("stats", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_a_reader_of_help_that_goes_away_is_no_error(nowhere: Trex) -> None:
    for arguments in (["--help"], ["claim", "--help"]):
        process = nowhere.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")


_INTERRUPTED_AT = """
import os, signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == WHERE:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)

WHERE, sys.argv[1] = sys.argv[1], "--help"
sys.meta_path.insert(0, Finder)
from trex_client.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["trex_client.cli", "psycopg", "trex_client.cli.simulate"])
def test_interrupted_before_it_has_begun(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AT, module], capture_output=True, timeout=60,
        env=clean_environment(), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr == b"trex: interrupted\n"


@pytest.mark.parametrize("command", [["-m", "trex_client"], [shutil.which("trex", path=BIN)]])
def test_as_a_program(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command, "--help"], capture_output=True, timeout=60,
        env=clean_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert b"Exit codes" in done.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_no_error(trex: Trex, closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *PROGRAM, "stats"]
    done = subprocess.run(
        command, capture_output=True, env=clean_environment(**trex.environment), timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_what_a_worker_cannot_start_with_is_said_by_name(
    nowhere: Trex, trex: Trex, empty_db: Database, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", "nobody.invalid:1", "192.0.2.1:1"):
            done = nowhere.process("daemon", "-i", "shop", "--http", address)
            assert (done.code, done.out) == (2, "")
            assert done.err.startswith("trex: invalid argument: http: ")
    for correlation in ("", " x", "x" * 256, "a\tb"):
        done = nowhere("process", "-i", "shop", "--correlation", correlation)
        assert done.code == 2
        assert "correlation" in done.err
    config = tmp_path / "a.toml"
    config.write_text('kind = "htpp"')
    done = nowhere("backfill", "-i", "shop", "--adapter-config", str(config))
    assert done.code == 2
    assert "kind is none of http, none, postgres" in done.err
    done = trex.process("daemon", "--lease", "2h")
    assert done.code == 2
    assert "lease_max" in done.err.splitlines()[-1]
    done = Trex(TREX_DSN=empty_db.dsn(), TREX_INSTANCE="shop").process("daemon")
    assert done.code == 11
    assert "trex migrate" in done.err.splitlines()[-1]


def test_a_schema_of_another_release_is_named_alike_by_all_commands(
    trex: Trex, pg_db: Database
) -> None:
    conn = pg_db.connect()
    daemons = (["daemon"], ["backfill"], ["process", "--correlation", "c"])

    def said(*arguments: str) -> tuple[str, str]:
        done = trex.process(*arguments)
        assert (done.code, done.out) == (11, "")
        *log, last = done.err.splitlines()
        results = {json.loads(line).get("result") for line in log} - {None}
        return last, results.pop() if results else ""

    conn.execute("insert into trex.schema_migration (name) values ('0999.future')")
    expected = "trex: the schema is newer than this release: 0999.future (upgrade trex)"
    assert said("claim", "--worker", "w") == (expected, "")
    assert {said(*command) for command in daemons} == {(expected, "schema_newer")}
    gone = (["0999.future", LAST],)
    conn.execute("delete from trex.schema_migration where name = any(%s)", gone)
    expected = f"trex: the schema is older than this release: {LAST} (run trex migrate)"
    assert said("claim", "--worker", "w") == (expected, "")
    assert {said(*command) for command in daemons} == {(expected, "schema_outdated")}


def test_connections_from_file_service_and_libpq(
    trex: Trex, pg_db: Database, tmp_path: Path
) -> None:
    file = tmp_path / "dsn"
    file.write_text(pg_db.dsn() + "\n")
    bare = Trex(TREX_INSTANCE="shop")
    assert bare("stats", "--dsn-file", str(file)).code == 0
    options = psycopg.conninfo.conninfo_to_dict(pg_db.dsn())
    service = tmp_path / "services"
    service.write_text("[s1]\n" + "".join(f"{k}={v}\n" for k, v in options.items()))
    assert bare("stats", "--service", "s1", PGSERVICEFILE=str(service)).code == 0
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE",
             "password": "PGPASSWORD"}  # fmt: skip
    variables = {names[k]: str(v) for k, v in options.items() if k in names}
    assert bare("stats", **variables).code == 0


# The schema


def test_migrate(empty_db: Database) -> None:
    empty_db.server.create_roles(empty_db.dbname)
    trex = Trex(TREX_DSN=empty_db.dsn())
    assert trex("migrate", "--check").code == 12
    assert trex("migrate", "--dry-run").row["pending"][0].startswith("0001.")
    done = trex("migrate")
    assert done.code == 0
    assert done.row["applied"][0].startswith("0001.")
    assert trex("migrate").row["applied"] == []
    assert "create table trex.message" in trex("migrate", "--print-sql", TREX_DSN="").out


def findings(done: Any) -> dict[str, str]:
    return {row["check"]: row["status"] for row in done.rows}


def test_doctor_finds_what_is_wrong(trex: Trex, pg_db: Database) -> None:
    found = findings(trex("doctor"))
    fine = {name for name, status in found.items() if status == "ok"}
    assert {"version", "encoding", "schema", "roles", "owners", "public", "tables"} <= fine
    assert {"search_path", "guards", "instance", "listeners", "vacuum"} <= fine
    conn = pg_db.connect()
    for statement, check in (
        ("alter table trex.receipt enable trigger guard_change", "guards"),
        ("grant execute on function trex.stats to public", "public"),
        ("grant select on trex.message to trex_reader", "tables"),
        ("alter function trex.stats reset search_path", "search_path"),
        ("alter function trex.stats owner to current_user", "owners"),
        ("create function trex.more() returns int language sql return 1", "schema"),
    ):
        conn.execute(statement)
        done = trex("doctor")
        assert done.code == 12
        assert findings(done)[check] == "fail", check


def test_doctor_skips_what_a_role_may_not_see(trex: Trex, pg_db: Database) -> None:
    found = findings(trex("doctor", TREX_DSN=pg_db.dsn("reader"), TREX_INSTANCE=""))
    assert found["bindings"] == "skip"
    assert found["schema"] == "ok"
