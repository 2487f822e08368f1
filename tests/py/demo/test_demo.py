"""`trex demo`: it keeps its promises, notices a broken one, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

from tests.conftest import VERSIONS
from trex_client.demo import books, faults, play, source
from trex_client.demo.place import given_dsn, use_server

pytestmark = pytest.mark.criterion("ac-0041")

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "movements.csv"
_VARIABLES = ("TREX_DSN", "PGHOST", "PGHOSTADDR", "PGSERVICE")


def trex(*arguments, dsn=None, **options):
    environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    if dsn is not None:
        environment["TREX_DSN"] = dsn
    code = "import sys; from trex_client.cli import main; sys.argv[0] = 'trex'; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "demo", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process):
    out, err = process.communicate(timeout=180)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def rows(lines, table):
    return [line for line in lines if line["table"] == table]


def small_file(folder, count=60):
    lines = ["idempotency_key,account,currency,cash_delta,memo"]
    lines += [
        f"k-{n},acc-{n % 7},{('KRW', 'BTC')[n % 2]},{(-1) ** n * (n + 1)},m" for n in range(count)
    ]
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


class Quiet:
    def say(self, text):
        pass

    def progress(self, written, delivered, parked):
        pass


@pytest.fixture
def admin(pg_server):
    return pg_server.dsn(pg_server.maintenance_dbname, tcp=True)


@pytest.fixture
def everything(pg_server):
    """Databases, roles and memberships: the same afterwards. On a server that other tests use as
    well only what has the demo's names.
    """
    mine = "" if pg_server.embedded else "trex_demo"

    def look():
        with pg_server.admin() as conn:
            return conn.execute(
                "select (select array_agg(datname::text order by 1) from pg_database"
                " where datname ~ 'trex_demo'),"
                " (select array_agg(rolname::text order by 1) from pg_roles where rolname ~ %(m)s),"
                " (select count(*) from pg_auth_members where member::regrole::text ~ %(m)s)",
                {"m": mine},
            ).fetchone()

    return look


# the file


def test_the_example_is_what_its_generator_writes():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "make_movements.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == EXAMPLE.read_text()
    entries = source.read(EXAMPLE)
    assert len(entries) >= 1000
    assert {entry.account[1] for entry in entries} == {"KRW", "JPY", "USD", "BTC"}
    assert len({entry.account[0] for entry in entries}) >= 50
    assert len({entry.instance for entry in entries}) == 2
    assert any(entry.amount.as_tuple().exponent == -8 for entry in entries)


def test_csv_and_ndjson_say_the_same(tmp_path):
    csv = tmp_path / "m.csv"
    csv.write_text(
        "idempotency_key,account,currency,cash_delta,memo\na,x,USD,1.50,hi\nb,y,JPY,-3,\n"
    )
    ndjson = tmp_path / "m.ndjson"
    ndjson.write_text(
        '{"idempotency_key":"a","account":"x","currency":"USD","cash_delta":"1.50","memo":"hi"}\n'
        '{"idempotency_key":"b","account":"y","currency":"JPY","cash_delta":-3}\n'
    )
    first, second = source.read(csv), source.read(ndjson)
    assert [(e.instance, e.movement.payload_json, e.amount) for e in first] == [
        (e.instance, e.movement.payload_json, e.amount) for e in second
    ]
    assert json.loads(first[0].movement.payload_json or "") == {
        "account": "x", "currency": "USD", "amount": "1.50", "memo": "hi",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", ""),
        ("m.csv", "idempotency_key,account,currency,cash_delta\n"),
        ("m.csv", "idempotency_key,account,currency,cash_delta\na,x,USD,1,2\n"),
        ("m.csv", "idempotency_key,account,currency,cash_delta\na,x,USD,one\n"),
        ("m.csv", "idempotency_key,account,currency\na,x,USD\n"),
        ("m.csv", "idempotency_key,instance,account,currency,cash_delta\na,NO,x,USD,1\n"),
        ("m.ndjson", "{\n"),
        ("m.ndjson", '{"idempotency_key":"a","account":"x","currency":"USD","cash_delta":NaN}\n'),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(source.BadFile):
        source.read(path)


def test_a_bad_file_ends_it_before_anything_starts(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("idempotency_key,account,currency,cash_delta\na,x,USD,one\n")
    code, lines, err = finish(trex("--file", str(path)))
    assert (code, lines) == (2, [])
    assert "mine.csv: line 2: cash_delta" in err


def test_the_same_seed_deals_the_same_faults():
    entries = source.read(EXAMPLE)
    first, again, other = (faults.deal(entries, seed) for seed in (1, 1, 2))
    assert first.cards == again.cards
    assert first.cards != other.cards
    assert {card.name for card in first.cards.values()} == {card.name for card in faults.DECK}
    assert not first.left_out
    per_instance = {
        instance: sum(e.wire_key in first.cards for e in entries if e.instance == instance)
        for instance in ("seoul", "berlin")
    }
    assert abs(per_instance["seoul"] - per_instance["berlin"]) <= 1


def test_a_small_file_gets_fewer_faults_and_says_so(tmp_path):
    plan = faults.deal(source.read(small_file(tmp_path, 6)), 1)
    assert len(plan.cards) == 3
    assert set(plan.promised) | set(plan.left_out) == {card.name for card in faults.DECK}


def test_which_server(monkeypatch):
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert given_dsn(None) is None
    monkeypatch.setenv("PGHOST", "h")
    assert given_dsn(None) == ""
    monkeypatch.setenv("TREX_DSN", "service=x")
    assert given_dsn(None) == "service=x"
    assert given_dsn("host=y") == "host=y"


# whole runs


@pytest.mark.timeout(240)
def test_the_example_on_a_server_of_its_own():
    if os.environ.get("TREX_DSN") or os.environ.get("PGHOST"):
        pytest.skip("the tests were given a server")
    code, lines, err = finish(trex("--json"))
    assert code == 0, (err, [check for check in rows(lines, "checks") if not check["passed"]])
    assert rows(lines, "result")[0]["movements"] == 1200
    assert {row["instance"] for row in rows(lines, "outcomes")} == {"seoul", "berlin"}
    totals = rows(lines, "totals")
    assert {row["currency"] for row in totals} == {"KRW", "JPY", "USD", "BTC"}
    for row in totals:
        assert Decimal(row["input"]) - Decimal(row["parked"]) == Decimal(row["ledger"])
        assert Decimal(row["difference"]) == 0
        assert row["accounts"] == row["equal"]
    happened = {row["fault"]: row["happened"] for row in rows(lines, "faults")}
    assert len(happened) == len(faults.DECK) + 2
    assert all(happened.values())
    assert len(rows(lines, "unknown")) >= 4
    assert rows(lines, "lost_claims")
    assert {row["parked"] for row in rows(lines, "parked")} == {"conflict", "permanent"}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("options", ["", "-c default_transaction_isolation=serializable"])
def test_on_a_given_server_nothing_stays_behind(
    pg_server, admin, everything, tmp_path, monkeypatch, options
):
    monkeypatch.setenv("PGOPTIONS", options)
    before = everything()
    mine = ("--file", str(small_file(tmp_path)), "--seed", str(pg_server.version))
    code, lines, err = finish(trex(*mine, dsn=admin))
    assert code == 0, (err, [check for check in rows(lines, "checks") if not check["passed"]])
    assert everything() == before


@pytest.mark.timeout(240)
def test_interrupted_nothing_stays_behind(pg_server, admin, everything):
    newest = pg_server.version == VERSIONS[0]
    before = everything()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if newest else (signal.SIGINT,):
        process = trex(dsn=admin)
        assert process.stderr is not None
        for line in process.stderr:
            if "SIGSTOP" in line or "SIGKILL" in line:
                break
        process.send_signal(number)
        code, lines, _ = finish(process)
        assert (code, lines) == (130, [])
        assert everything() == before
        assert not _children_of(process.pid)
        with pg_server.admin() as conn:
            left = conn.execute(
                "select count(*) from pg_stat_activity where datname ~ '^trex_demo_'"
            ).fetchone()
        assert left == (0,)


def test_when_it_is_killed_its_processes_and_its_server_go_too(tmp_path):
    process = trex("--json")
    assert process.stderr is not None
    for line in process.stderr:
        if "SIGSTOP" in line:
            break
    children = _children_of(process.pid)
    assert any("demo.server" in line for line in children.values())
    assert any("demo.worker_process" in line for line in children.values())
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while any(_command(pid) == line for pid, line in children.items()):
        assert time.monotonic() < end, children
        time.sleep(0.1)


def test_keep_leaves_it_and_says_how_to_look_and_to_remove(tmp_path):
    code, _, err = finish(trex("--json", "--keep", "--file", str(small_file(tmp_path, 10))))
    assert code == 0, err
    ends = re.search(r"^  kill ([0-9]+)$", err, re.MULTILINE)
    assert ends is not None
    pid = int(ends[1])
    try:
        given = re.findall(r"^  export (.*)$", err, re.MULTILINE)
        look = re.search(r"^  (\S*psql .*receipt.*)$", err, re.MULTILINE)
        assert look is not None
        shown = subprocess.run(
            ["bash", "-c", f"export {given[0]}; export {given[1]}; {look[1]}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "delivered_at" in shown.stdout
        code = "import sys; from trex_client.cli import main; sys.argv[1:] = ['cash']; main()"
        cash = subprocess.run(
            ["bash", "-c", f'export {given[0]}; export {given[1]}; exec "$0" -c "$1"',
             sys.executable, code],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        assert cash.returncode == 0, cash.stderr
    finally:
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 30
    while _command(pid):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.timeout(240)
def test_a_broken_promise_is_noticed(admin, tmp_path):
    """The books are good, and each change that a bug could make turns them bad."""
    entries = source.read(small_file(tmp_path))
    plan = faults.deal(entries, 1)
    place = use_server(admin)
    try:
        place.set_up()
        outcome = play.Play(place, entries, plan, Quiet()).perform()

        def failed():
            found = books.audit(place, outcome, plan)
            return {what for what, passed, _ in found.checks if not passed}

        assert failed() == set()
        touched = "update ledger.entry set amount = -amount where key = %s"
        changes = {
            touched: {"what others had posted under our keys is as it was"},
            "update ledger.entry set amount = amount + 0.00000001 where key = %s": {
                "ledger totals per account and currency equal the input",
                "each movement posted once",
            },
            "update ledger.entry set account = 'other' where key = %s and side = 'account'": {
                "ledger totals per account and currency equal the input",
                "each movement posted once",
            },
            "delete from ledger.entry where key = %s": {
                "ledger totals per account and currency equal the input",
                "each movement posted once",
            },
        }
        with place.connect("ledger", ledger=True) as ledger:
            assert len(outcome.foreign) == 2
            foreign = list(outcome.foreign)
            key = ledger.execute(
                "select key from ledger.entry where key <> all (%s) limit 1", (foreign,)
            ).fetchone()
            for change, noticed in changes.items():
                with ledger.transaction():
                    ledger.execute("create temp table saved as table ledger.entry")
                ledger.execute(change, foreign[:1] if change == touched else key)
                assert failed() == noticed, change
                with ledger.transaction():
                    ledger.execute("delete from ledger.entry")
                    ledger.execute("insert into ledger.entry table saved")
                    ledger.execute("drop table saved")
        assert failed() == set()

        dealt = next(iter(plan.cards))
        outcome.ledger_calls[dealt] = 0
        assert failed() == {f"fault: {plan.cards[dealt].name}"}
        outcome.ledger_calls[dealt] = 99
        outcome.invalid.append((1, "currency"))
        assert failed() == {"every movement of the file was accepted"}
        outcome.invalid.clear()
        with place.connect("app") as app:
            app.execute("delete from shop.movement where movement_key = 'k-1'")
        assert failed() == {"a business row, a message and one end for each movement"}
    finally:
        place.close()


def _children_of(pid):
    """Command lines of all processes below one."""
    found, todo = {}, [pid]
    while todo:
        parent = todo.pop()
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                child = int(entry.parent.name)
                found[child] = _command(child)
                todo.append(child)
    return found


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
