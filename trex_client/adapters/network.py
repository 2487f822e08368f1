"""Where an HTTP adapter may connect to: public addresses, and private ones only when the
configuration names them.

The name is resolved here, every address is judged, and the connection goes to the judged address,
so a name that answers differently the second time gains nothing. Certificates are still checked
against the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

from trex_client.adapters.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    Resolve = Callable[[str, int], Awaitable[list[str]]]

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# All that is assigned of IPv6. What stands for IPv4 in other ways (compatible, translated, NAT64 of
# one's own) lies outside, and so does site-local.
_GLOBAL = ipaddress.IPv6Network("2000::/3")
# Not public, whatever the library of this version says: protocol assignments, relays of 6to4, the
# host below an Azure machine, documentation.
_INSIDE = tuple(
    ipaddress.ip_network(name)
    for name in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20")
)
_LABEL = rb"[a-z0-9_-]{1,63}"
_HOST = re.compile(
    rb"(?!.{254})" + _LABEL + rb"(?:\." + _LABEL + rb")*\.?|[0-9a-f:.]*:[0-9a-f:.]*", re.ASCII
)
"""A name as DNS takes it, or an IPv6 address."""
_MOST_ADDRESSES = 4


class HostNotAllowed(httpcore.ConnectError):
    """The host, or every address of it, is off limits. Nothing was sent."""


def is_loopback_host(host: str) -> bool:
    """Whether a host is written as this machine itself: `localhost` or a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_networks(names: Iterable[str], setting: str) -> tuple[IPNetwork, ...]:
    """Read networks such as `10.0.0.0/8`.

    Raises:
        ConfigError: one isn't a network.
    """
    try:
        return tuple(ipaddress.ip_network(name) for name in names)
    except ValueError:
        raise ConfigError(setting) from None


def parse_url(text: str, setting: str, allow_hosts: tuple[str, ...] = ()) -> httpx.URL:
    """Return the URL of a sink: https (http only to this machine), no user or password, an
    allowed host.

    Raises:
        ConfigError: it isn't like that. The URL itself isn't shown.
    """
    try:
        url = httpx.URL(text)
        host = url.host  # decodes an international name
        port_ok = url.port is None or 0 < url.port < 65536
    except (httpx.InvalidURL, ValueError):
        raise ConfigError(setting) from None
    if url.scheme not in {"http", "https"} or not _HOST.fullmatch(url.raw_host) or not port_ok:
        raise ConfigError(setting)
    if url.userinfo:
        raise ConfigError(f"{setting} holds a user or password")
    if url.scheme == "http" and not is_loopback_host(host):
        raise ConfigError(f"{setting} needs https")
    if allow_hosts and host not in {one.lower() for one in allow_hosts}:
        raise ConfigError(f"{setting} names a host that isn't in allow_hosts")
    return url.copy_with(fragment=None)


def _embedded(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Which addresses a host may have."""

    allow_networks: tuple[IPNetwork, ...] = ()

    def allows(self, host: str, address: str) -> bool:
        """Judge one address of a host."""
        try:
            ip = _embedded(ipaddress.ip_address(address.partition("%")[0]))
        except ValueError:
            return False
        if is_loopback_host(host):
            return ip.is_loopback
        if any(ip.version == network.version and ip in network for network in self.allow_networks):
            return True
        if not ip.is_global or ip.is_multicast or (ip.version == 6 and ip not in _GLOBAL):
            return False
        return not any(ip.version == network.version and ip in network for network in _INSIDE)


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves, judges, then connects to the judged address."""

    def __init__(self, rule: AddressRule, resolve: Resolve = _resolve) -> None:
        self._rule = rule
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's signature)
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first allowed address that answers, within `timeout` seconds in all."""
        try:
            async with asyncio.timeout(timeout):
                try:
                    found = await self._resolve(host, port)
                except (OSError, UnicodeError):
                    raise httpcore.ConnectError from None
                allowed = [address for address in found if self._rule.allows(host, address)]
                if not allowed:
                    raise HostNotAllowed
                for address in allowed[: _MOST_ADDRESSES - 1]:
                    if address != allowed[-1]:
                        try:
                            return await self._inner.connect_tcp(
                                address, port, timeout, local_address, socket_options
                            )
                        except httpcore.ConnectError:
                            continue
                return await self._inner.connect_tcp(
                    allowed[-1], port, timeout, local_address, socket_options
                )
        except TimeoutError:
            raise httpcore.ConnectTimeout from None

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: a sink is never a local socket."""
        raise HostNotAllowed

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
