"""The adapter `http` on real sockets: what leaves, and what each answer means."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.support.http_sink import CUT, HANG, http_sink, ok
from trex_client.adapters import (
    Absent,
    ConfigError,
    Conflict,
    Delivered,
    Duplicate,
    Found,
    NotSure,
    Permanent,
    Retryable,
    Unknown,
    build_adapter,
)
from trex_client.adapters.base import context_for, payload_digest, wire_key
from trex_client.adapters.config import Settings
from trex_client.adapters.http import HttpAdapter, HttpConfig
from trex_client.errors import InvalidArgument
from trex_client.testing import make_claim

pytestmark = pytest.mark.criterion("ac-0048")

ANSWER = {
    "reference": "id",
    "balance": "account.balance",
    "version": "account.version",
    "result": "status",
    "delivered": ["posted"],
    "duplicate": ["DUPLICATE_OK", "exists_same"],
    "conflict": ["exists_different_amount"],
    "permanent": ["id_already_failed"],
    "in_progress": ["pending"],
    "retry": ["pending_expired"],
}


def adapter_for(url: str, **settings):
    table = {"kind": "http", "url": url, **settings}
    return build_adapter("inst", table, environ={"TOKEN": "secret-token"})


async def deliver(adapter, claim=None):
    claim = claim or make_claim()
    context = context_for("inst", claim)
    result = await adapter.deliver(claim, context)
    return result, context


async def test_key_and_body_are_the_same_on_every_attempt_and_the_fence_travels_in_headers():
    async with http_sink() as sink:
        adapter = adapter_for(sink.url, bearer={"env": "TOKEN"})
        payload = '{"b": 1.10, "a": "\u00e9"}'
        for attempt, fence in ((1, 7), (2, 9)):
            claim = make_claim(payload_json=payload, attempt=attempt, fence=fence)
            assert (await deliver(adapter, claim))[0] == Delivered()
        await adapter.close()
    first, second = sink.requests
    assert first.body == second.body == payload.encode()
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.headers["idempotency-key"] == wire_key("inst", "outbox", "key-1")
    assert (first.headers["trex-attempt"], first.headers["trex-fence"]) == ("1", "7")
    assert (second.headers["trex-attempt"], second.headers["trex-fence"]) == ("2", "9")
    assert first.headers["authorization"] == "Bearer secret-token"
    assert first.headers["trex-topic"] == "contract.test"
    assert sink.connections == 1


async def test_the_wire_key_differs_between_instances_and_boxes():
    keys = {
        wire_key(instance, box, key)
        for instance in ("a", "b")
        for box in ("outbox", "inbox")
        for key in ("k", "k2", '","', "\u00e9")
    }
    assert len(keys) == 16
    # sha256 of the bytes ["a","outbox","k"]
    known = "6e26d66af7f67a00771e1e83a47118830f214ea06abebae2a15768045a56c85e"
    assert wire_key("a", "outbox", "k") == known


async def test_an_envelope_holds_the_payload_byte_for_byte():
    async with http_sink() as sink:
        adapter = adapter_for(sink.url, mode="envelope")
        await deliver(adapter, make_claim(payload_json='{"n": 1.10}', attempt=3))
        await adapter.close()
        bare = adapter_for(sink.url, mode="envelope", envelope_attempts=False)
        for attempt in (1, 2):
            await deliver(bare, make_claim(payload_json='{"n": 1.10}', attempt=attempt))
        await bare.close()
    body = json.loads(sink.requests[0].body, parse_float=Decimal)
    assert body == {
        "id": wire_key("inst", "outbox", "key-1"),
        "topic": "contract.test",
        "payload": {"n": Decimal("1.10")},
        "attempts": 3,
    }
    assert b'"payload": {"n": 1.10}' in sink.requests[0].body
    assert sink.requests[1].body == sink.requests[2].body


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ok(), Delivered()),
        (ok(status=201), Delivered()),
        (ok(status=204), Delivered()),
        (ok(b"not json"), Delivered()),
        (ok('{"result": "é"}'.encode("latin-1")), Delivered()),
        (ok("réfus".encode("latin-1"), status=500), Unknown("server_error")),
        (ok(b'{"a": "\\u0000\\ud800"}', status=422), Conflict()),
        (ok(b"", "Idempotent-Replayed: true"), Duplicate()),
        (ok(status=409), Retryable("in_progress")),
        (ok(status=422), Conflict()),
        (ok(status=429), Retryable("rate_limited")),
        (ok(b"", "Retry-After: 7", status=429), Retryable("rate_limited", timedelta(seconds=7))),
        (ok(b"", "Retry-After: 0", status=503), Retryable("unavailable", timedelta(0))),
        (
            ok(b"", "Retry-After: 999999999", status=503),
            Retryable("unavailable", timedelta(seconds=3600)),
        ),
        (ok(b"", "Retry-After: -5", status=503), Retryable("unavailable")),
        (ok(b"", "Retry-After: soon", status=503), Retryable("unavailable")),
        (
            ok(b"", "Retry-After: Thu, 01 Jan 1970 00:16:45 GMT", status=503),
            Retryable("unavailable", timedelta(seconds=5)),
        ),
        (
            ok(b"", "Retry-After: Thu, 01 Jan 1970 00:00:00 GMT", status=503),
            Retryable("unavailable", timedelta(0)),
        ),
        (ok(status=408), Unknown("timeout")),
        (ok(status=500), Unknown("server_error")),
        (ok(status=502), Unknown("server_error")),
        (ok(status=504), Unknown("timeout")),
        (ok(status=599), Unknown("server_error")),
        (ok(b"", "Location: http://127.0.0.1:1/", status=302), Unknown("redirected")),
        (ok(b"", "Location: http://127.0.0.1:1/", status=307), Retryable("redirected")),
        (ok(status=400), Permanent("invalid_request")),
        (ok(status=401), Permanent("unauthorized")),
        (ok(status=403), Permanent("unauthorized")),
        (ok(status=404), Permanent("not_found")),
        (ok(status=410), Permanent("rejected")),
        (CUT, Unknown("connection_lost")),
        (b"garbage\r\n\r\n", Unknown("connection_lost")),
        (b"HTTP/1.1 20", Unknown("connection_lost")),
        (HANG, Unknown("timeout")),
        # The status is there: a body that is cut, too large or too slow loses only the body.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx", Delivered()),
        (ok(b"x" * 5000), Delivered()),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", Delivered()),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.case("H9")
async def test_what_an_answer_means(answer, expected):
    async with http_sink(answer) as sink:
        config = HttpConfig.read(
            Settings.of(
                {"kind": "http", "url": sink.url, "read_timeout": 0.3, "max_body": 1000}, {}
            )
        )
        adapter = HttpAdapter("inst", config, now=lambda: 1000.0)
        result, context = await deliver(adapter)
        await adapter.close()
    assert result == expected
    assert context.sent
    assert len(sink.requests) == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            ok(b'{"status": "posted", "id": 17, "account": {"balance": "-1.50", "version": 4}}'),
            ("Delivered", "17", "-1.50", 4),
        ),
        (
            ok(b'{"status": "DUPLICATE_OK", "account": {"balance": 1.10, "version": 5}}'),
            ("Duplicate", None, "1.10", 5),
        ),
        (ok(b'{"status": "exists_same"}', status=409), ("Duplicate", None, None, None)),
        (ok(b'{"status": "exists_different_amount"}', status=200), Conflict()),
        (ok(b'{"status": "id_already_failed"}', status=200), Permanent()),
        (ok(b'{"status": "pending"}', status=409), Retryable("in_progress")),
        (ok(b'{"status": "pending_expired"}', status=400), Retryable("unavailable")),
        (ok(b'{"status": "what"}'), Unknown("response_invalid")),
        (ok(b"<html>"), Unknown("response_invalid")),
        (ok(b"{" * 5000), Unknown("response_too_large")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx", Unknown("connection_lost")),
        (
            ok(b'{"status": "posted", "account": {"balance": "NaN", "version": 4}}'),
            ("Delivered", None, None, None),
        ),
        (
            ok(b'{"status": "posted", "account": {"balance": NaN, "version": 4}}'),
            Unknown("response_invalid"),
        ),
        (
            ok(b'{"status": "posted", "account": {"balance": true, "version": 4}}'),
            ("Delivered", None, None, None),
        ),
        (
            ok(b'{"status": "posted", "account": {"balance": "1", "version": -1}}'),
            ("Delivered", None, None, None),
        ),
        (ok(b'{"status": "posted", "id": {"a": 1}}'), ("Delivered", None, None, None)),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_a_field_of_the_answer_can_overrule_the_status(answer, expected):
    async with http_sink(answer) as sink:
        adapter = adapter_for(sink.url, answer=ANSWER, max_body=1000)
        result, _ = await deliver(adapter)
        await adapter.close()
    if isinstance(expected, tuple):
        snapshot = result.snapshot
        assert (
            type(result).__name__,
            result.reference,
            snapshot and str(snapshot.balance),
            snapshot and snapshot.version,
        ) == expected
    else:
        assert result == expected


async def test_nothing_was_sent_when_no_connection_could_be_made():
    async with http_sink() as sink:
        url = sink.url
    adapter = adapter_for(url)
    result, context = await deliver(adapter)
    assert (result, context.sent) == (Retryable("connect_failed"), False)
    await adapter.close()


async def test_a_host_without_an_address_is_retried():
    async def nowhere(host, port):
        raise OSError

    config = HttpConfig.read(Settings.of({"url": "https://ledger.example/x", "kind": "http"}, {}))
    adapter = HttpAdapter("inst", config, resolve=nowhere)
    assert await deliver_only(adapter) == (Retryable("connect_failed"), False)


async def deliver_only(adapter):
    result, context = await deliver(adapter)
    await adapter.close()
    return result, context.sent


async def test_a_connection_of_ours_that_is_not_free_in_time_costs_no_try():
    async with http_sink(HANG) as sink:
        lookup = {"url": f"{sink.url}/{{key}}"}
        adapter = adapter_for(
            sink.url, connections=1, pool_timeout=0.1, read_timeout=1.0, lookup=lookup
        )
        assert adapter.concurrency == 1
        first = asyncio.create_task(deliver(adapter))
        while not sink.requests:
            await asyncio.sleep(0.01)
        result, context = await deliver(adapter, make_claim("other"))
        assert (result, context.sent) == (Retryable("not_started"), False)
        assert await adapter.lookup("ab" * 32) == NotSure("not_started")
        assert (await first)[0] == Unknown("timeout")
        # The connection that failed is not used again, and its place is free.
        sink.says(ok())
        assert (await deliver(adapter, make_claim("third")))[0] == Delivered()
        assert sink.connections == 2
        await adapter.close()


async def test_connections_are_bounded_and_used_again():
    async with http_sink() as sink:
        adapter = adapter_for(sink.url, connections=4)
        for _ in range(3):
            results = await asyncio.gather(
                *(deliver(adapter, make_claim(f"k{number}")) for number in range(40))
            )
            assert {type(result) for result, _ in results} == {Delivered}
        assert sink.connections == 4
        await adapter.close()


async def test_an_answer_that_never_comes_ends_with_the_total_timeout():
    async with http_sink(HANG) as sink:
        adapter = adapter_for(sink.url, total_timeout=0.2)
        assert (await deliver(adapter))[0] == Unknown("timeout")
        await adapter.close()


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (201, {}, Delivered()),
        (201, {"reference": "id"}, Delivered()),
        (201, ANSWER, Unknown("timeout")),
        (500, {}, Unknown("server_error")),
    ],
    ids=["201", "201 with a reference", "201 that the body may overrule", "500"],
)
async def test_a_body_that_drips_only_loses_the_body(status, answer, expected):
    async def drip(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 100000\r\n\r\n{{".encode())
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        except OSError:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        adapter = adapter_for(f"http://127.0.0.1:{port}/", total_timeout=0.3, answer=answer)
        assert (await deliver(adapter))[0] == expected
        await adapter.close()


async def test_a_certificate_that_cannot_be_checked_is_retried(tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    try:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-keyout", key, "-out", cert, "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=DNS:localhost"),
            ],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    seen = []

    async def serve(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        unchecked = adapter_for(f"https://localhost:{port}/")
        assert await deliver_only(unchecked) == (Retryable("tls_failed"), False)
        assert seen == []
        checked = adapter_for(f"https://localhost:{port}/", ca_file=str(cert))
        assert await deliver_only(checked) == (Delivered(), True)
        other_name = adapter_for(f"https://127.0.0.1:{port}/", ca_file=str(cert))
        assert await deliver_only(other_name) == (Retryable("tls_failed"), False)


LOOKUP_CASES = [
    (ok(b"{}"), Found()),
    (ok(status=404), Absent()),
    (ok(status=500), NotSure("lookup_failed")),
    (ok(status=302), NotSure("lookup_failed")),
    (CUT, NotSure("connection_lost")),
]


@pytest.mark.parametrize(("answer", "expected"), LOOKUP_CASES, ids=lambda v: repr(v)[:30])
async def test_look_up(answer, expected):
    async with http_sink(answer) as sink:
        lookup = {"url": f"{sink.url}/{{key}}", "in_flight": 5}
        adapter = adapter_for(sink.url, lookup=lookup)
        assert await adapter.lookup("ab" * 32) == expected
        assert adapter.in_flight == timedelta(seconds=5)
        await adapter.close()
    assert sink.requests[0].path == "/post/" + "ab" * 32
    assert sink.requests[0].method == "GET"


CONTENT = {"account": "p.account", "currency": "p.currency", "amount": "p.amount"}
PLAIN: dict[str, Any] = {"account": "a", "currency": "USD", "cash_delta": Decimal("10.10")}
CONTENT_CASES = [
    (b'{"p": {"account": "a", "currency": "USD", "amount": "10.10"}}', Found(**PLAIN)),
    (b'{"p": {"account": "a", "currency": "USD", "amount": 10.10}}', Found(**PLAIN)),
    (
        b'{"p": {"account": "a", "currency": "USD", "amount": 0.1000000000000000055}}',
        Found(**{**PLAIN, "cash_delta": Decimal("0.1000000000000000055")}),
    ),
    (
        b'{"p": {"account": "a", "currency": "USD", "amount": -9007199254740993}}',
        Found(**{**PLAIN, "cash_delta": Decimal(-9007199254740993)}),
    ),
    (
        b'{"p": {"account": null, "currency": null, "amount": null}}',
        Found(account=None, currency=None, cash_delta=None),
    ),
    (b'{"p": {"account": "a", "currency": "USD"}}', NotSure("response_invalid")),
    (b'{"p": {"account": 7, "currency": "USD", "amount": "1"}}', NotSure("response_invalid")),
    (b'{"p": {"account": "a", "currency": "USD", "amount": true}}', NotSure("response_invalid")),
    (b'{"p": {"account": "a", "currency": "USD", "amount": "1_0"}}', NotSure("response_invalid")),
    (b'{"p": {"account": "a", "currency": "USD", "amount": "NaN"}}', NotSure("response_invalid")),
    (b'{"p": {"account": "a", "currency": "USD", "amount": NaN}}', NotSure("response_invalid")),
    (b"{}", NotSure("response_invalid")),
    (b"<html>", NotSure("response_invalid")),
]


@pytest.mark.criterion("ac-0033")
@pytest.mark.parametrize(("body", "expected"), CONTENT_CASES, ids=range(len(CONTENT_CASES)))
async def test_a_look_up_states_what_is_booked(body, expected):
    async with http_sink(ok(body)) as sink:
        lookup = {"url": f"{sink.url}/{{key}}", "in_flight": 5, **CONTENT}
        adapter = adapter_for(sink.url, lookup=lookup)
        assert await adapter.lookup("ab" * 32) == expected
        await adapter.close()


@pytest.mark.criterion("ac-0033")
def test_what_is_stated_is_compared_with_the_claim():
    claim = make_claim(account="a", currency="USD", cash_delta=Decimal("10.1"))
    assert Found().is_of(claim)
    assert Found(**PLAIN).is_of(claim)
    assert Found(digest=payload_digest(claim)).is_of(claim)
    for change in (
        {"account": "b"}, {"account": None}, {"currency": "usd"}, {"cash_delta": Decimal("10.11")},
        {"cash_delta": None}, {"digest": "0" * 64},
    ):  # fmt: skip
        assert not Found(**{**PLAIN, **change}).is_of(claim), change
    assert Found(account=None, currency=None, cash_delta=None).is_of(make_claim())
    assert not Found(**PLAIN).is_of(make_claim())
    wrongs: tuple[dict[str, Any], ...] = (
        {"cash_delta": 10.1}, {"cash_delta": Decimal("NaN")}, {"account": b"a"},
    )  # fmt: skip
    for wrong in wrongs:
        assert not Found(**{**PLAIN, **wrong}).well_formed


async def test_absent_is_not_certain_when_the_sink_states_no_window():
    async with http_sink(ok(status=404)) as sink:
        adapter = adapter_for(sink.url, lookup={"url": f"{sink.url}/{{key}}"})
        assert await adapter.lookup("ab" * 32) == NotSure("lookup_absent")
        await adapter.close()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"url": ""},
        {"url": "ftp://ledger.example/"},
        {"url": "http://ledger.example/"},
        {"url": "https://user:canary@ledger.example/"},
        {"url": "https://"},
        {"url": "not a url"},
        {"url": "https://ledger.example/", "allow_hosts": ["other.example"]},
        {"url": "https://ledger.example/", "mode": "sometimes"},
        {"url": "https://ledger.example/", "policy": "exactly_once"},
        {"url": "https://ledger.example/", "policy": "lookup"},
        {"url": "https://ledger.example/", "read_timeout": 0},
        {"url": "https://ledger.example/", "read_timeout": True},
        {"url": "https://ledger.example/", "follow_redirects": True},
        {"url": "https://ledger.example/", "bearer": "canary"},
        {"url": "https://ledger.example/", "bearer": {"env": "MISSING"}},
        {"url": "https://ledger.example/", "headers": {"Host": {"env": "TOKEN"}}},
        {"url": "https://ledger.example/", "headers": {"a\r\nb": {"env": "TOKEN"}}},
        *(
            {"url": "https://ledger.example/", "headers": {name: {"env": "TOKEN"}}}
            for name in ("Trex-Fence", "TREX-ATTEMPT", "trex-topic", "Idempotency-Key",
                         "IDEMPOTENCY-KEY", "content-type", "Accept-Encoding", "Connection")
        ),
        {"url": "https://ledger.example/", "headers": {"X-A": {"env": "TOKEN"},
                                                       "x-a": {"env": "TOKEN"}}},
        {"url": "https://ledger.example/", "bearer": {"env": "TOKEN"},
         "headers": {"authorization": {"env": "TOKEN"}}},
        {"url": "https://ledger.example/", "ca_file": "/nonexistent/canary.pem"},
        {"url": "https://ledger.example/", "ca_file": __file__},
        {"url": "https://ledger.example/",
         "answer": {"result": "r", "delivered": ["done", "ok"], "retry": ["ok"]}},
        {"url": "https://ledger.example/", "lookup": {"url": "https://ledger.example/"}},
        {"url": "https://ledger.example/", "answer": {"delivered": ["x"]}},
        {"url": "https://ledger.example/", "answer": {"balance": "b"}},
        {"url": "https://ledger.example/", "allow_networks": ["ten"]},
    ],
    ids=lambda value: repr(value)[:110],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(settings):
    with pytest.raises(ConfigError) as caught:
        build_adapter("inst", {"kind": "http", **settings}, environ={"TOKEN": "t"})
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("key", ["", None, " ", "Inst", "a" * 64, "a\n", 7])
def test_no_adapter_without_an_instance_key(key):
    for kind in ("http", "postgres", "none"):
        with pytest.raises(InvalidArgument) as caught:
            build_adapter(key, {"kind": kind})
        assert not isinstance(caught.value, ConfigError)
