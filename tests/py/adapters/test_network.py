"""Where the adapter `http` connects to, and where it never does."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpcore
import pytest

from tests.support.http_sink import http_sink, ok
from trex_client.adapters import ConfigError, Delivered, Retryable
from trex_client.adapters.base import context_for
from trex_client.adapters.config import Settings
from trex_client.adapters.http import HttpAdapter, HttpConfig
from trex_client.adapters.network import (
    AddressRule,
    GuardedBackend,
    HostNotAllowed,
    parse_networks,
    parse_url,
)
from trex_client.telemetry import webhook_poster
from trex_client.testing import make_claim

pytestmark = pytest.mark.criterion("ac-0048")

SECOND = timedelta(seconds=1)

PRIVATE = [
    "10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3",
    "169.254.169.254", "169.254.170.2", "168.63.129.16", "100.64.0.1", "100.100.100.200",
    "192.0.0.1", "192.0.0.8", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::1", "::", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254",
    "ff02::1", "ff0e::1", "100::1", "200::1", "4000::1", "5f00::1", "2001:db8::1", "3fff::1",
    # IPv4 in other clothes: mapped, compatible, translated, NAT64, 6to4, Teredo.
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "::a00:1",
    "::ffff:0:127.0.0.1", "::ffff:0:a00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1",
    "64:ff9b:1::10.0.0.1", "64:ff9b:1:fffe::a00:1", "2002:a00:1::", "2002:a9fe:a9fe::1",
    "2001:0:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    # No address at all: a resolver gives none of these, and nothing reads them as one.
    "not an address", "", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.0.0.1",
    "127.0.0.1.", "127。0。0。1", "①②⑦.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_off_limits(address):
    assert not AddressRule().allows("ledger.example", address)


@pytest.mark.parametrize("address", [
    "8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1",
])  # fmt: skip
def test_public_addresses_are_allowed(address):
    assert AddressRule().allows("ledger.example", address)


def test_a_named_network_is_allowed_and_nothing_beside_it():
    rule = AddressRule(parse_networks(["10.1.0.0/16", "fd00:1::/32"], "allow_networks"))
    assert rule.allows("ledger.internal", "10.1.2.3")
    assert rule.allows("ledger.internal", "fd00:1::5")
    assert not rule.allows("ledger.internal", "10.2.0.1")
    assert not rule.allows("ledger.internal", "127.0.0.1")


def test_this_machine_is_only_what_is_written_so():
    assert AddressRule().allows("localhost", "127.0.0.1")
    assert AddressRule().allows("127.0.0.1", "127.0.0.1")
    assert not AddressRule().allows("localhost", "8.8.8.8")
    assert not AddressRule().allows("localhost.evil.example", "127.0.0.1")


def adapter_for(url, resolve, **settings):
    table = {"kind": "http", "url": url, **settings}
    return HttpAdapter("inst", HttpConfig.read(Settings.of(table, {})), resolve=resolve)


async def test_a_name_that_leads_inside_is_never_connected():
    async with http_sink() as sink:

        async def rebinding(host, port):
            return ["127.0.0.1", "169.254.169.254"]

        adapter = adapter_for(f"https://ledger.example:{sink.port}/", rebinding)
        claim = make_claim()
        context = context_for("inst", claim)
        assert await adapter.deliver(claim, context) == Retryable("host_not_allowed")
        assert not context.sent
        assert sink.connections == 0


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f.1", "0x7f000001", "127.1", "127.0.0.1.", "localhost.",
             "localhost。", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "0.0.0.0",
             "[::]"],
)  # fmt: skip
async def test_this_machine_in_other_words(host):
    """As the system's own resolver reads them: nothing is connected, whatever that is."""
    async with http_sink() as sink:
        adapter = adapter_for(f"https://{host}:{sink.port}/", None)
        claim = make_claim()
        answer = await adapter.deliver(claim, context_for("inst", claim))
        assert answer in (Retryable("host_not_allowed"), Retryable("connect_failed"))
        assert sink.connections == 0
        await adapter.close()


async def test_the_second_answer_of_a_name_is_judged_too():
    """A connection that ended is made again, and the name answers otherwise then."""
    answers = [["127.0.0.1"], ["169.254.169.254", "10.0.0.1"]]
    closing = b"HTTP/1.1 200 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def rebinding(host, port):
        return answers.pop(0)

    async with http_sink(closing) as sink:
        adapter = adapter_for(f"http://localhost:{sink.port}/", rebinding)
        claim = make_claim()
        assert await adapter.deliver(claim, context_for("inst", claim)) == Delivered()
        refused = Retryable("host_not_allowed")
        assert await adapter.deliver(claim, context_for("inst", claim)) == refused
        assert sink.connections == 1
        await adapter.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_leads_anywhere(status):
    async with http_sink() as inside:
        headers = (f"Location: {inside.url}/latest/meta-data", f"Refresh: 0; url={inside.url}")
        async with http_sink(ok(b"", *headers, status=status)) as sink:
            adapter = adapter_for(f"http://localhost:{sink.port}/", None)
            claim = make_claim()
            answer = await adapter.deliver(claim, context_for("inst", claim))
            assert answer.reason == "redirected"
            await adapter.close()
        assert inside.connections == 0


async def test_no_proxy_of_the_environment_is_used(monkeypatch):
    async with http_sink() as proxy, http_sink() as sink:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        adapter = adapter_for(f"http://127.0.0.1:{sink.port}/", None)
        claim = make_claim()
        assert await adapter.deliver(claim, context_for("inst", claim)) == Delivered()
        await adapter.close()
        assert await webhook_poster(sink.url, SECOND)(b"{}")
        assert (proxy.connections, sink.connections) == (0, 2)


async def test_the_alert_webhook_keeps_the_same_rule():
    calls = []

    async def inside(host, port):
        calls.append(host)
        return ["10.0.0.1", "127.0.0.1"]

    async with http_sink() as sink:
        url = f"https://alerts.example:{sink.port}/hook"
        with pytest.raises(HostNotAllowed):
            await webhook_poster(url, SECOND, resolve=inside)(b"{}")
        assert (calls, sink.connections) == (["alerts.example"], 0)
        # With its network named it is connected, and TLS asked for, which this sink doesn't speak.
        post = webhook_poster(url, 60 * SECOND, ["127.0.0.0/8"], resolve=inside)
        posting = asyncio.ensure_future(post(b"{}"))
        while not sink.connections and not posting.done():
            await asyncio.sleep(0.01)
        assert sink.connections == 1
        posting.cancel()
        with pytest.raises(ConfigError):
            webhook_poster(url, SECOND, ["10.0.0.1/8"])


async def test_the_connection_goes_to_the_address_that_was_judged():
    calls = []

    async def resolve(host, port):
        calls.append(host)
        return ["10.0.0.1", "127.0.0.1"]

    async with http_sink() as sink:
        rule = AddressRule(parse_networks(["127.0.0.0/8"], "x"))
        backend = GuardedBackend(rule, resolve)
        stream = await backend.connect_tcp("ledger.example", sink.port, timeout=2.0)
        await stream.aclose()
    assert calls == ["ledger.example"]


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "a" * 300])
async def test_a_name_that_nobody_knows_or_that_is_none_is_no_connection(host):
    with pytest.raises(httpcore.ConnectError):
        await GuardedBackend(AddressRule()).connect_tcp(host, 443, timeout=30.0)


async def test_no_local_sockets():
    with pytest.raises(httpcore.ConnectError):
        await GuardedBackend(AddressRule()).connect_unix_socket("/run/docker.sock")


async def test_an_address_that_refuses_does_not_hide_the_next():
    async def resolve(host, port):
        return ["127.0.0.2", "127.0.0.1"]

    async with http_sink() as sink:
        settings = {"kind": "http", "url": f"http://localhost:{sink.port}/"}
        adapter = HttpAdapter("inst", HttpConfig.read(Settings.of(settings, {})), resolve=resolve)
        claim = make_claim()
        assert await adapter.deliver(claim, context_for("inst", claim)) == Delivered()
        await adapter.close()


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("https://ledger.example/a?b=c#d", True),
        ("http://127.0.0.1:8080/", True),
        ("http://[::1]:8080/", True),
        ("http://localhost/", True),
        ("http://localhost.example/", False),
        ("http://10.0.0.1/", False),
        ("https://a:b@ledger.example/", False),
        ("file:///etc/passwd", False),
        ("//ledger.example/", False),
        ("https:ledger.example/", False),
        ("https:///ledger.example/", False),
        ("https://user@ledger.example/", False),
        ("https://ledger.example\\@evil.example/", False),
        ("https://ledger.example%2f@evil.example/", False),
        ("https://ledger.example%00.evil.example/", False),
        ("https://ledger.example;evil.example/", False),
        ("https://ledger.example\t.evil.example/", False),
        ("https://ledger.example\r\nHost: evil.example/", False),
        ("https://[::1%25eth0]/", False),
        ("https://ledger.example:0/", False),
        ("https://ledger.example:65536/", False),
        ("https://ledger.example:443:80/", False),
        ("http://2130706433/", False),
        ("http://127.1/", False),
        ("http://localhost./", False),
        ("http://[::ffff:127.0.0.1]/", False),
        ("http://127.0.0.1.nip.io/", False),
        ("gopher://ledger.example/", False),
        ("https://xn--a/", False),
        ("http://xn--a/", False),
        ("https://xn--bcher-kva.example/", True),
        ("https://a..b/", False),
        ("https://.ledger.example/", False),
        ("https://./", False),
        (f"https://{'a' * 63}.example/", True),
        (f"https://{'a' * 64}.example/", False),
        (f"https://{'a.' * 126}a/", True),
        (f"https://{'a.' * 126}aa/", False),
        ("https://[2001:db8::1]/", True),
        ("https://LEDGER.example/", True),
        ("https://ledger.example.:8443/", True),
    ],
)
def test_urls(url, fine):
    if fine:
        assert parse_url(url, "url").fragment == ""
    else:
        with pytest.raises(ConfigError):
            parse_url(url, "url")


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("ledger.example", True), ("LEDGER.EXAMPLE", True), ("ledger.example.", False),
        ("ledger.example.evil.example", False), ("evil-ledger.example", False),
        ("l\u0435dger.example", False), ("ledger\u3002example", True), ("127.0.0.1", False),
    ],
)  # fmt: skip
def test_an_allowed_host_is_that_host(host, fine):
    if fine:
        assert parse_url(f"https://{host}/", "url", ("ledger.example",)).host == "ledger.example"
    else:
        with pytest.raises(ConfigError):
            parse_url(f"https://{host}/", "url", ("ledger.example",))


@pytest.mark.parametrize("host", ["ledger.example", "LEDGER.example"])
def test_an_allowed_host_is_that_host_in_any_case(host):
    assert parse_url(f"https://{host}/", "url", ("Ledger.Example",)).host == "ledger.example"
