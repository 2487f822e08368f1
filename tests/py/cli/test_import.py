"""`trex import`: exact counts, refused rows by line and reason, safe to run twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from trex_client.model import Movement
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from pathlib import Path

    from tests.py.cli.conftest import Trex
    from tests.support.databases import Database

CSV = (
    "idempotency_key,account,currency,cash_delta,note\n"
    'k1,a,USD,1.25,"two\nlines, ""quoted"""\n'
    "k2,a,USD,1.255,too many decimals\n"
    "\n"
    "k1,a,USD,1.25,other note\n"
    "k3,a,USD,abc,no number\n"
    "k4,a,NOPE,1,no currency\n"
    "k5,,,,without money\n"
    "k6,a,USD\n"
    " k7,a,USD,1,blank\n"
    "k8,a,BTC,0.00000001,é\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "movements.csv"
    path.write_text(CSV, encoding="utf-8-sig")
    return path


@pytest.mark.case("O1")
def test_counts_are_exact_and_refused_rows_are_named(
    trex: Trex, file: Path, tmp_path: Path
) -> None:
    reject = tmp_path / "refused.ndjson"
    done = trex("import", str(file), "--topic", "post", "--reject", str(reject))
    assert done.code == 12
    assert done.row == {"rows": 9, "enqueued": 3, "duplicate": 0, "conflict": 1, "invalid": 5}
    refused = [json.loads(line) for line in reject.read_text().splitlines()]
    assert {(row["line"], row["reason"], row["argument"]) for row in refused} >= {
        (4, "invalid", "cash_delta"),
        (6, "conflict", "idempotency_key"),
        (7, "invalid", "cash_delta"),
        (10, "invalid", "columns"),
        (11, "invalid", "idempotency_key"),
    }
    assert "line 7: invalid: cash_delta" in done.err
    claims = {row["idempotency_key"]: row for row in trex("claim", "--worker", "w", "-n", "9").rows}
    assert claims["k1"]["payload"] == {"note": 'two\nlines, "quoted"'}
    assert claims["k8"]["cash_delta"] == "0.00000001"
    assert claims["k5"]["account"] is None
    again = trex("import", str(file), "--topic", "post")
    assert again.row == {"rows": 9, "enqueued": 0, "duplicate": 3, "conflict": 1, "invalid": 5}


@pytest.mark.parametrize("batch", ["1", "2", "500"])
def test_counts_do_not_depend_on_the_batch(trex: Trex, file: Path, batch: str) -> None:
    done = trex("import", str(file), "--topic", "post", "--batch", batch)
    assert done.row == {"rows": 9, "enqueued": 3, "duplicate": 0, "conflict": 1, "invalid": 5}


def test_ndjson_keeps_every_digit(trex: Trex, tmp_path: Path) -> None:
    path = tmp_path / "m.ndjson"
    rows = [
        '{"topic":"post","idempotency_key":"k1","payload":{"n":1.10,"e":1e2,"big":12345678901234567890}}',
        '{"idempotency_key":"k2","account":"a","currency":"ETH","cash_delta":1.0e-18}',
        '{"idempotency_key":"k3","payload":null,"delay":"1h","ordering_key":"o","correlation_id":"c"}',
        '{"idempotency_key":"k4","payload":1,"more":2}', "[1]", "{", '{"payload":1}',
        '{"idempotency_key":"k5","payload":NaN}', '{"idempotency_key":"k6","payload":"\\ud800"}',
        '{"idempotency_key":"k7","payload":1,"cash_delta":true}',
        '{"idempotency_key":7,"payload":1}',
        '{"idempotency_key":"k8","payload":1,"effect_policy":"none"}', "",
        '{"idempotency_key":"k9","payload":1,"delay":5}', '{"idempotency_key":"k10","topic":null}',
    ]  # fmt: skip
    path.write_text("\n".join(rows) + "\n")
    done = trex("import", str(path), "--topic", "other")
    assert done.row == {"rows": 14, "enqueued": 3, "duplicate": 0, "conflict": 0, "invalid": 11}
    lines = trex("claim", "--worker", "w", "-n", "9").out
    assert '"payload":{"e": 100, "n": 1.10, "big": 12345678901234567890}' in lines
    assert '"cash_delta":"0.000000000000000001"' in lines
    assert '"payload":{}' in lines
    assert trex("status", "--key", "k3").row["state"] == "deferred"


def test_what_is_not_utf8_is_refused_row_by_row(trex: Trex, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(b"topic,idempotency_key,payload\npost,k1,1\npost,k\xff2,1\npost,k3,\x00\n")
    done = trex("import", str(path))
    assert done.row == {"rows": 3, "enqueued": 1, "duplicate": 0, "conflict": 0, "invalid": 2}


@pytest.mark.parametrize(
    "header",
    ["", "topic,payload\n", "idempotency_key,idempotency_key\n", "idempotency_key,payload,more\n"],
)
def test_a_header_that_does_not_fit(trex: Trex, tmp_path: Path, header: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(header)
    assert trex("import", str(path)).code == 2


def test_from_stdin_and_as_sql(trex: Trex, nowhere: Trex, pg_db: Database) -> None:
    text = '{"idempotency_key":"k\'1","payload":{"a":"it\'s"}}\n'
    done = nowhere("import", "-", "--topic", "post", "--print-sql", "-i", "shop", stdin=text)
    assert done.code == 0
    pg_db.connect().execute(done.out.encode())
    piped = trex.process("import", "-", "--topic", "post", stdin=text.encode())
    assert (piped.code, piped.row["duplicate"]) == (0, 1)


@pytest.mark.case("O1")
def test_an_interrupted_import_is_run_again(trex: Trex, pg_db: Database) -> None:
    rows = [json.dumps({"idempotency_key": f"k{i}", "payload": i}) + "\n" for i in range(6)]
    process = trex.start(
        "import", "-", "--topic", "post", "--batch", "2",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    # More than Python's read-ahead, so that whole batches arrive before the pipe is closed.
    filler = "\n" * 9000
    process.stdin.write(("".join(rows[:4]) + filler).encode())
    process.stdin.flush()
    client = PostgresClient(pg_db.connect(), "shop")
    deadline = time.monotonic() + 30
    while len(client.list_pending()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    # 2 if it was interrupted between the second batch's commit and its answer.
    assert re.match(rb"stopped after [24] rows", err)
    assert b"Traceback" not in err
    done = trex("import", "-", "--topic", "post", stdin="".join(rows))
    assert done.row == {"rows": 6, "enqueued": 2, "duplicate": 4, "conflict": 0, "invalid": 0}


def test_the_keys_of_others_are_seen(trex: Trex, pg_db: Database) -> None:
    PostgresClient(pg_db.connect(), "shop").enqueue_many([Movement("post", "k1", 1)])
    text = '{"idempotency_key":"k1","payload":1}\n{"idempotency_key":"k1","payload":2}\n'
    done = trex("import", "-", "--topic", "post", stdin=text)
    assert (done.row["duplicate"], done.row["conflict"]) == (1, 1)


@pytest.mark.parametrize("link", ["same", "hard", "soft", "stdin"])
def test_the_file_that_is_read_is_never_written(trex: Trex, tmp_path: Path, link: str) -> None:
    path = tmp_path / "m.ndjson"
    path.write_text(text := '{"line": 1, "idempotency_key": "k1"}\n')
    other = tmp_path / "other"
    if link == "hard":
        other.hardlink_to(path)
    elif link == "soft":
        other.symlink_to(path)
    else:
        other = path
    if link == "stdin":
        with path.open() as stdin:
            arguments = ("import", "-", "--topic", "post", "--reject", str(other))
            process = trex.start(*arguments, stdin=stdin, stderr=subprocess.PIPE)
            process.communicate(timeout=60)
            code = process.returncode
    else:
        code = trex("import", str(path), "--topic", "post", "--reject", str(other)).code
    assert (code, path.read_text()) == (2, text)


def test_only_a_file_of_refused_rows_is_written_over(
    trex: Trex, file: Path, tmp_path: Path
) -> None:
    valuable = tmp_path / "valuable"
    valuable.write_text("years of work\n")
    arguments = ("import", str(file), "--topic", "post", "--reject")
    for place in (valuable, tmp_path, tmp_path / "missing" / "x", "/proc/version"):
        done = trex(*arguments, str(place))
        assert (done.code, done.out) == (2, "")
        assert "--reject" in done.err
    assert valuable.read_text() == "years of work\n"
    refused = tmp_path / "refused"
    refused.touch()
    assert trex(*arguments, str(refused)).code == 12
    before = refused.read_text()
    with refused.open("a") as stream:
        stream.write("longer than the next time\n")
    assert trex(*arguments, str(refused)).code == 12
    assert refused.read_text() == before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('topic,idempotency_key,payload\npost,k1,1\n\npost,"k2,2\npost,k3,3\n', 4),
        ('topic,idempotency_key,payload\npost,"a\nb",1\npost,"k2"x,2\npost,k3,3\n', 4),
        ('topic,"idempotency_key\npost,k1\n', 1),
    ],
)
def test_a_broken_quote_ends_the_import_at_its_line(
    trex: Trex, tmp_path: Path, text: str, line: int
) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    done = trex("import", str(path), "--batch", "1")
    assert (done.code, done.out) == (2, "")
    assert f"line {line}: a quote" in done.err
    assert [row["idempotency_key"] for row in trex("pending").rows] in ([], ["k1"])
    assert "run the same again" not in done.err


def test_a_header_that_does_not_fit_is_not_run_again(trex: Trex, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("topic,payload\n")
    assert "again" not in trex("import", str(path)).err


def test_a_row_that_names_a_field_twice_is_refused(trex: Trex, tmp_path: Path) -> None:
    rows = (
        '{"idempotency_key":"k1","idempotency_key":"k2","payload":1}',
        '{"idempotency_key":"k3","payload":1,"payload":{"a":1}}',
        '{"idempotency_key":"k4","note":1,"note":2}',
        '{"idempotency_key":"k5","payload":{"a":1,"a":2}}',
        '{"idempotency_key":"k6","note":[{"a":1,"\\u0061":2}]}',
    )
    reject = tmp_path / "refused"
    options = ("--topic", "post", "--reject", str(reject))
    done = trex("import", "-", *options, stdin="\n".join(rows))
    assert (done.row["enqueued"], done.row["invalid"]) == (0, 5)
    assert done.err.count("payload: an object has a key twice") == 2
    arguments = [json.loads(line)["argument"] for line in reject.read_text().splitlines()]
    assert arguments == [*["a field is there twice"] * 3, "payload", "payload"]
    table = 'idempotency_key,payload\nk,"{""a"":1,""a"":2}"\n'
    done = trex("import", "-", "--format", "csv", *options, stdin=table)
    assert (done.row["enqueued"], done.row["invalid"]) == (0, 1)
    assert "line 2: invalid: payload: an object has a key twice" in done.err
    assert json.loads(reject.read_text())["argument"] == "payload"
    assert trex("pending").rows == []


def test_json_with_a_key_twice_is_refused_before_anything_connects(nowhere: Trex) -> None:
    twice = '{"a": [{"b": 1, "b": ' + "9" * 5000 + "}]}"
    enqueue = ("enqueue", "post", "k", "-i", "shop")
    who = ("--role", "r", "--reason", "r")
    for name, arguments in (
        ("payload", (*enqueue, "--payload", twice)),
        ("payload", (*enqueue, "--payload-file", "-")),
        ("arguments", ("machine", "transition", "m", "e", "go", "--version", "0", "--operation",
                       "o", "--arguments", twice, "-i", "shop", *who)),
    ):  # fmt: skip
        done = nowhere(*arguments, stdin=twice)
        refusal = f"trex: invalid argument: {name}: an object has a key twice\n"
        assert (done.code, done.out, done.err) == (2, "", refusal)


AMOUNTS = [
    "1_0",
    "1_000",
    "\u0661\u0662",
    " 1",
    "1 ",
    "NaN",
    "Infinity",
    "0x1",
    "1,5",
    "--1",
    "",
    ".",
]


@pytest.mark.parametrize("amount", AMOUNTS)
def test_an_amount_is_ascii_digits(trex: Trex, nowhere: Trex, amount: str) -> None:
    cash = {"account": "a", "currency": "USD", "cash_delta": amount}
    text = json.dumps({"idempotency_key": "k", "payload": 1, **cash})
    done = trex("import", "-", "--topic", "post", stdin=text)
    assert (done.row["enqueued"], done.row["invalid"]) == (0, 1)
    table = f'idempotency_key,account,currency,cash_delta\nk,a,USD,"{amount}"\n'
    done = trex("import", "-", "--format", "csv", "--topic", "post", stdin=table)
    assert (done.row["enqueued"], done.row["invalid"]) == (0, 1)
    money = ("--account", "a", "--currency", "USD", "--cash-delta", amount)
    assert trex("enqueue", "post", "k", "--payload", "1", *money).code == 2
    assert trex("complete", "1", "2", "--balance", amount, "--version", "1").code == 2
    report = {"message_id": 1, "fence": 2, "result": "completed", "balance": amount, "version": 1}
    assert nowhere("record", "-", "-i", "shop", stdin=json.dumps(report)).code == 2


def test_a_number_beyond_any_decimal_is_no_json(trex: Trex) -> None:
    text = '{"idempotency_key":"k","payload":1e99999999999999999999}'
    assert trex("import", "-", "--topic", "post", stdin=text).row["invalid"] == 1
