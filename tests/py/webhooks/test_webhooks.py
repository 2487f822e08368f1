"""Signed events in, rows out: what is verified, what is stored, and what the sender is told."""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.py.webhooks.conftest import SECRETS, TABLE, config, process, sender, serving
from tests.support.rig import KEY
from trex_client.adapters.config import ConfigError
from trex_client.errors import InvalidArgument
from trex_client.webhooks import read_webhooks, webhook_app

pytestmark = pytest.mark.criterion("ac-0055")

BODY = '{"id": "evt_1", "type": "invoice.paid", "account": "acct_z", "data": {"object": {"id": "in_1"}}}'  # noqa: E501


def event(name, **more):
    return json.dumps({"id": name, "type": "invoice.paid", **more})


def test_a_signed_event_is_stored_and_acknowledged(hooks, rows):
    answer = hooks.signed(BODY)
    assert (answer.status_code, answer.json()) == (200, {"deduplicated": False})
    # The account is the endpoint's, whatever the payload says.
    assert rows() == [("evt_1", "invoice.paid", "in_1", "acct_a", BODY.encode(), "current")]
    again = hooks.signed(BODY)
    assert (again.status_code, again.json()) == (200, {"deduplicated": True})
    assert len(rows()) == 1
    assert (hooks.result("received"), hooks.result("deduplicated")) == (1, 1)


@pytest.mark.parametrize(
    "body",
    [
        '{ "id" :\t"evt_1" ,"type":"a",  "amount": 1.10}\n',
        '{"id":"evt_1","type":"a","name":"caf\\u00e9 \\ud83d\\ude00"}\r\n',
        '\ufeff{"id":"evt_1","type":"a"}',
        '{"id":"evt_0","type":"a","id":"evt_1"}',
        '{"type":"a","id":"evt_1","amount":1.100000000000000000000000000000000001,"e":1E+2}',
        '{"id":"evt_1","type":"a","name":"café"}',
    ],
)
@pytest.mark.case("K1")
def test_bytes_are_verified_and_stored_as_they_came(hooks, rows, shop, body):
    header = hooks.stripe(body)
    changed = hooks.send(body.replace("evt_1", "evt_1 ") + " ", [("Stripe-Signature", header)])
    assert changed.status_code == 401
    assert rows() == []
    assert hooks.send(body, [("Stripe-Signature", header)]).status_code == 200
    ((event_id, _, _, _, raw, _),) = rows()
    assert (event_id, raw) == ("evt_1", body.encode())
    assert shop.inbox_status(provider="stripe", account="acct_a", event_id="evt_1")


@pytest.mark.parametrize(
    ("body", "event_id"),
    [
        ("", None),
        ("not json", None),
        ("[1, 2", None),
        ('{"id": "evt_1", "type": "a", "x": NaN}', None),
        ("[" * 19_000, None),
        ('{"id": "evt_1", "type": "a", "x": "\\u0000"}', "evt_1"),
        ('{"id": "evt_1", "type": "a", "x": "\\ud800"}', "evt_1"),
        ('{"id": "evt_1", "type": "a", "x": 1e999999}', "evt_1"),
    ],
)
@pytest.mark.case("G1", "K1")
def test_signed_but_unreadable_is_kept_by_its_hash(hooks, rows, body, event_id):
    assert hooks.signed(body).status_code == 200
    digest = "sha256:" + hashlib.sha256(body.encode()).hexdigest()
    ((stored, kind, _, _, raw, _),) = rows()
    assert (stored, kind, raw) == (event_id or digest, "unreadable", body.encode())
    assert hooks.signed(body).json() == {"deduplicated": True}


@pytest.mark.parametrize(
    "body",
    ['{"id": 7.5, "type": "a"}', '{"id": "", "type": "a"}', '{"id": " x", "type": "a"}', "[]"],
)
def test_an_event_without_a_usable_id_goes_by_its_hash(hooks, rows, body):
    assert hooks.signed(body).json() == {"deduplicated": False}
    assert hooks.signed(body).json() == {"deduplicated": True}
    ((stored, *_),) = rows()
    assert stored == "sha256:" + hashlib.sha256(body.encode()).hexdigest()


@pytest.mark.case("K1")
def test_what_is_no_body_for_us(hooks, rows):
    header = [("Stripe-Signature", hooks.stripe(BODY))]
    bad_utf8 = hooks.send(b'{"id": "\xff"}', header)
    assert (bad_utf8.status_code, bad_utf8.content) == (400, b'{"error": "malformed body"}')
    packed = hooks.send(gzip.compress(BODY.encode()), [*header, ("Content-Encoding", "gzip")])
    assert packed.status_code == 415
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        assert hooks.send(BODY, header, kind=kind).status_code == 415
    large = event("evt_2", text="x" * 20_000)
    refused = hooks.signed(large)
    assert (refused.status_code, refused.content) == (413, b'{"error": "body too large"}')
    assert rows() == []


def test_the_limit_holds_while_the_body_streams(hooks, rows):
    """Chunked, without a length: refused long before the sender has ended."""
    host, port = hooks.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as conn:
        conn.sendall(
            f"POST /stripe/main HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Stripe-Signature: {hooks.stripe(BODY)}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        conn.sendall((b"2000\r\n" + b"x" * 0x2000 + b"\r\n") * 3)
        assert conn.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert rows() == []


@pytest.mark.case("K2", "K3")
def test_stamps(hooks, rows):
    now = int(time.time())
    hooks.frozen[0] = now
    good = [now - 300, now - 299, now + 5, now + 299, now + 300]
    bad = [now - 301, now + 301, now + 3600, 0, -1, now * 1000, 10_000_000_000]
    for at in bad:
        assert hooks.signed(BODY, at=at).status_code == 401
    for text in ("NaN", "1e10", "", "+1", " ", "0x1"):
        answer = hooks.send(BODY, [("Stripe-Signature", f"t={text},v1={'0' * 64}")])
        assert answer.status_code == 401
    header = hooks.stripe(BODY)
    assert hooks.send(BODY, [("Stripe-Signature", f"{header},t={now}")]).status_code == 401
    assert rows() == []  # and nothing is in the way of the real one
    answers = [hooks.signed(BODY, at=at) for at in good]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len(rows()) == 1


@pytest.mark.case("K2", "K3")
def test_a_captured_request_is_worth_nothing(hooks, rows):
    """Inside the window it is a duplicate, outside it is refused; from the future too."""
    for ahead in (0, 300):
        now = hooks.frozen[0] = int(time.time())
        body = event(f"evt_{ahead}")
        header = [("Stripe-Signature", hooks.stripe(body, at=now + ahead))]
        assert hooks.send(body, header).json() == {"deduplicated": False}
        hooks.frozen[0] = now + 300 + ahead
        assert hooks.send(body, header).json() == {"deduplicated": True}
        hooks.frozen[0] = now + 310 + ahead
        assert hooks.send(body, header).status_code == 401
    assert len(rows()) == 2


@pytest.mark.case("K4")
def test_rotation(hooks, rows):
    stamp, good = hooks.stripe(BODY).split(",")
    old = hooks.stripe(BODY, "OLD", at=int(stamp[2:])).split(",")[1]
    bad = "v1=" + "0" * 64
    for number, signatures in enumerate(
        [[good], [old], [bad, good], [good, bad], [bad] * 15 + [old], ["v0=x", old], ["v1=", good]]
    ):
        header = ",".join([stamp, *signatures])
        answer = hooks.send(BODY, [("Stripe-Signature", header)])
        assert answer.status_code == 200, number
    assert [row[5] for row in rows()] == ["current"]
    refused = {
        "only v0": f"{stamp},{good.replace('v1', 'v0')}",
        "upper case": f"{stamp},v1={good[3:].upper()}",
        "500 values": ",".join([stamp, *[bad] * 500, good]),
        "no stamp": good,
        "no signature": stamp,
        "cut": f"{stamp},{good[:-1]}",
        "empty": "",
    }
    for name, header in refused.items():
        answer = hooks.send(BODY, [("Stripe-Signature", header)])
        assert (answer.status_code, answer.content) == (401, b'{"error": "unauthorized"}'), name
    twice = [("Stripe-Signature", f"{stamp},{good}")] * 2
    assert hooks.send(BODY, twice).status_code == 401
    assert hooks.send(BODY, []).status_code == 401
    # `previous` isn't a secret of the second endpoint.
    assert hooks.signed(BODY, "/stripe/second", secret="OLD").status_code == 401


def test_standard_webhooks(hooks, rows):
    hooks.frozen[0] = int(time.time())
    body = '{"type": "user.created", "data": {"id": "user_1"}}'
    answer = hooks.send(body, hooks.standard(body), "/standard")
    assert (answer.status_code, answer.json()) == (200, {"deduplicated": False})
    assert rows() == [("msg_1", "user.created", "user_1", "acct_s", body.encode(), "current")]
    old = hooks.standard(body, "msg_2", secret="STD_OLD")
    assert hooks.send(body, old, "/standard").json() == {"deduplicated": False}
    assert rows()[1][5] == "previous"
    good = hooks.standard(body)[2][1]
    for value in (f"v1,x {good}", f"garbage {good} v2,x", f"{good} v1,{'A' * 43}="):
        headers = [*hooks.standard(body)[:2], ("webhook-signature", value)]
        assert hooks.send(body, headers, "/standard").json() == {"deduplicated": True}


def test_standard_webhooks_refused(hooks, rows):
    now = hooks.frozen[0] = int(time.time())
    body = '{"type": "user.created"}'
    fine = hooks.standard(body)
    refused = [
        fine[1:], fine[:2], [fine[0], fine[2]], [*fine, fine[0]], [*fine, fine[2]],
        [("webhook-id", "msg_2"), *fine[1:]],
        [*fine[:2], ("webhook-signature", "v1,")],
        [*fine[:2], ("webhook-signature", "v1a," + fine[2][1][3:])],
        [fine[0], ("webhook-timestamp", fine[1][1] + ".0"), fine[2]],
        hooks.standard(body, at=now - 301), hooks.standard(body, at=now + 301),
        hooks.standard(body + " "),
    ]  # fmt: skip
    for headers in refused:
        assert hooks.send(body, headers, "/standard").status_code == 401
    assert rows() == []


@pytest.mark.case("K13")
def test_one_id_of_two_accounts_is_two_events(hooks, rows):
    for path in ("/stripe/main", "/stripe/second"):
        assert hooks.signed(BODY, path).json() == {"deduplicated": False}
        assert hooks.signed(BODY, path).json() == {"deduplicated": True}
    assert [row[3] for row in rows()] == ["acct_a", "acct_b"]


@pytest.mark.case("K9")
def test_the_database_decides_between_processes(pg_db, shop, rows, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with process(pg_db, one) as first, process(pg_db, two) as second:
        with ThreadPoolExecutor(8) as pool:
            jobs = [
                pool.submit((first, second)[number % 2].signed, event(f"evt_{number // 8}"))
                for number in range(40)
            ]
            answers = [job.result() for job in jobs]
        assert {answer.status_code for answer in answers} == {200}
        fresh = [answer for answer in answers if not answer.json()["deduplicated"]]
        assert len(fresh) == len(rows()) == 5
    with process(pg_db, one) as third:  # a restart
        assert third.signed(event("evt_0")).json() == {"deduplicated": True}


@pytest.mark.case("K7")
def test_nothing_is_acknowledged_that_is_not_stored(pg_db, shop, rows):
    admin = pg_db.connect()
    with sender(pg_db, connections=1) as hooks:
        for setting in ("default_transaction_read_only = on", "statement_timeout = '200ms'"):
            name = setting.split(" ", 1)[0]
            blocker = pg_db.connect(autocommit=False)
            blocker.execute("lock table trex.inbox_event in access exclusive mode")
            admin.execute(f"alter role trex_test_app set {setting}")
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where usename = 'trex_test_app'"
            )
            answer = hooks.signed(BODY)
            admin.execute(f"alter role trex_test_app reset {name}")
            blocker.rollback()
            assert answer.status_code == 503, setting
            assert answer.content == b'{"error": "not stored, send again"}'
            assert rows() == []
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'trex_test_app'"
        )
        shop.unbind("trex_test_app", actor="test", reason="test")
        assert hooks.signed(BODY).status_code == 503
        shop.bind("trex_test_app", actor="test", reason="test")
        assert hooks.result("not_stored") == 3
        assert hooks.signed(BODY).json() == {"deduplicated": False}


def test_too_slow_is_not_stored(pg_db, shop, rows):
    blocker = pg_db.connect(autocommit=False)
    blocker.execute("lock table trex.inbox_event in access exclusive mode")
    with sender(pg_db, store_timeout=0.5) as hooks:
        assert hooks.signed(BODY).status_code == 503
    blocker.rollback()
    assert rows() == []
    with sender(pg_db) as hooks:
        assert hooks.signed(BODY).json() == {"deduplicated": False}


@pytest.mark.case("K7")
def test_killed_between_insert_and_commit(pg_db, shop, rows):
    """The backend dies before its commit: 503, and no row; then all is well."""
    admin, blocker = pg_db.connect(), pg_db.connect(autocommit=False)
    with sender(pg_db, store_timeout=20) as hooks:
        hooks.signed(event("evt_0"))
        # The message is written already; its event waits here, in the same statement.
        blocker.execute("lock table trex.inbox_event in access exclusive mode")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(hooks.signed(BODY)))
        thread.start()
        killed = 0
        while killed < 2:  # the connection is made again once
            killed += len(
                admin.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where usename = 'trex_test_app' and wait_event_type = 'Lock'"
                ).fetchall()
            )
            time.sleep(0.05)
        thread.join(20)
        blocker.rollback()
        assert answers[0].status_code == 503
        assert [row[0] for row in rows()] == ["evt_0"]
        assert hooks.signed(BODY).json() == {"deduplicated": False}


@pytest.mark.case("K7")
def test_a_sender_that_never_sees_the_answer_repeats(hooks, rows):
    """Committed, and the reply lost: the repetition is a duplicate."""
    host, port = hooks.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as conn:
        conn.sendall(
            f"POST /stripe/main HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Stripe-Signature: {hooks.stripe(BODY)}\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
            "".encode()
        )
    end = time.monotonic() + 10
    while not rows() and time.monotonic() < end:
        time.sleep(0.02)
    assert hooks.signed(BODY).json() == {"deduplicated": True}
    assert len(rows()) == 1


def test_a_lost_connection_costs_no_event(pg_db, hooks, rows):
    assert hooks.signed(event("evt_0")).status_code == 200
    pg_db.connect().execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'trex_test_app'"
    )
    assert hooks.signed(BODY).json() == {"deduplicated": False}
    assert len(rows()) == 2


@pytest.mark.case("K17")
def test_verified_once_and_never_again(pg_db, hooks, shop, rows):
    """Processing an hour later, or a redrive after the secret is gone, looks at no stamp."""
    hooks.signed(BODY, secret="OLD")
    (_, _, _, _, _, key_id) = rows()[0]
    assert key_id == "previous"
    pg_db.clock.advance(3600)
    (claimed,) = shop.claim("w", box="inbox")
    shop.fail(claimed.message_id, claimed.fence)
    shop.redrive([claimed.message_id], actor="test", reason="test")
    (claimed,) = shop.claim("w", box="inbox")
    assert shop.complete(claimed.message_id, claimed.fence).state == "delivered"
    table = {**TABLE, "endpoints": {"main": {**TABLE["endpoints"]["main"]}}}
    table["endpoints"]["main"]["secrets"] = {"current": {"env": "NEW"}}
    with sender(pg_db, config=config(**table)) as rotated:
        assert rotated.signed(BODY, secret="OLD").status_code == 401
        assert rotated.signed(BODY).json() == {"deduplicated": True}


def test_mounted_in_an_app_of_ones_own(pg_db, shop, rows):
    inner = webhook_app(config(), pg_db.dsn("app"))
    with serving(Starlette(routes=[Mount("/hooks", inner)])) as url, sender(pg_db) as other:
        other.url = url
        assert other.signed(BODY, "/hooks/stripe/main").status_code == 200
        assert other.signed(BODY, "/stripe/main").status_code == 404
    assert len(rows()) == 1


def test_health_and_methods(hooks):
    import httpx

    assert httpx.get(hooks.url + "/healthz", trust_env=False).content == b"ok\n"
    other = httpx.get(hooks.url + "/stripe/main", trust_env=False)
    assert (other.status_code, other.json()) == (405, {"error": "method not allowed"})
    assert other.headers["allow"] == "POST"
    for path in ("/nothing", "/stripe/main/", "/healthz/", "/"):
        none = httpx.post(hooks.url + path, trust_env=False)
        assert (none.status_code, none.json()) == (404, {"error": "not found"})


@pytest.mark.parametrize(
    "change",
    [
        {"account": ""}, {"account": " x"}, {"provider": "Stripe"}, {"scheme": "none"},
        {"secrets": {}}, {"secrets": {"a": "whsec_in_the_file"}}, {"path": "main"},
        {"path": "/healthz"}, {"path": "/stripe/second"}, {"tolerance": 0}, {"body_max": 0},
        {"unknown": 1}, {"secrets": {"a": {"env": "MISSING"}}},
    ],
)  # fmt: skip
def test_refused_configuration(change):
    main = {**TABLE["endpoints"]["main"], **change}
    with pytest.raises(ConfigError) as caught:
        config(endpoints={**TABLE["endpoints"], "main": main})
    assert "whsec" not in str(caught.value)


def test_configuration_from_a_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRETS["NEW"] + "\n")
    file = tmp_path / "webhooks.toml"
    file.write_text(
        f'[endpoints.main]\nprovider = "stripe"\naccount = "a"\nscheme = "stripe"\n'
        f'secrets.current = {{ file = "{secret}" }}\n'
    )
    made = read_webhooks(file, instance_key=KEY, environ={})
    assert (made.instance_key, made.endpoints[0].path) == (KEY, "/main")
    assert made.endpoints[0].secrets["current"].reveal() == SECRETS["NEW"]
    assert SECRETS["NEW"] not in repr(made)
    with pytest.raises(InvalidArgument):
        read_webhooks(file, environ={})
    found = read_webhooks(environ={"TREX_WEBHOOKS_CONFIG": str(file), "TREX_INSTANCE": KEY})
    assert found == made


def test_other_endpoints_without_a_restart(hooks, rows):
    body = '{"id": "evt_1", "type": "t"}'
    one = {"main": {**TABLE["endpoints"]["main"], "secrets": {"current": {"env": "OLD"}}}}
    hooks.app.reload(config(endpoints=one))
    assert hooks.signed(body).status_code == 401
    assert hooks.signed(body, secret="OLD").status_code == 200
    assert hooks.signed(body, "/stripe/second").status_code == 404
    with pytest.raises(InvalidArgument):
        hooks.app.reload(config(instance="other"))
    assert hooks.signed(body, secret="OLD").json() == {"deduplicated": True}
    assert len(rows()) == 1
