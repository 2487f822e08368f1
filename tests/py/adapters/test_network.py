"""Where the adapter `http` connects to, and where it never does."""

from __future__ import annotations

import httpcore
import pytest

from tests.support.http_sink import http_sink
from trex_client.adapters import ConfigError, Delivered, Retryable
from trex_client.adapters.base import context_for
from trex_client.adapters.config import Settings
from trex_client.adapters.http import HttpAdapter, HttpConfig
from trex_client.adapters.network import AddressRule, GuardedBackend, parse_networks, parse_url
from trex_client.testing import make_claim

pytestmark = pytest.mark.criterion("ac-0048")

PRIVATE = [
    "10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "0.0.0.0", "169.254.169.254",
    "100.64.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1",
    "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "64:ff9b::a9fe:a9fe", "2002:a00:1::", "not an address", "",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_off_limits(address):
    assert not AddressRule().allows("ledger.example", address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8"])
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


async def test_a_name_that_leads_inside_is_never_connected():
    async with http_sink() as sink:

        async def rebinding(host, port):
            return ["127.0.0.1", "169.254.169.254"]

        settings = {"kind": "http", "url": f"https://ledger.example:{sink.port}/"}
        adapter = HttpAdapter("inst", HttpConfig.read(Settings.of(settings, {})), resolve=rebinding)
        claim = make_claim()
        context = context_for("inst", claim)
        assert await adapter.deliver(claim, context) == Retryable("host_not_allowed")
        assert not context.sent
        assert sink.connections == 0


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
    ],
)
def test_urls(url, fine):
    if fine:
        assert parse_url(url, "url").fragment == ""
    else:
        with pytest.raises(ConfigError):
            parse_url(url, "url")
