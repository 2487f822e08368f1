"""Webhook endpoints: verify the signature over the raw bytes, store the event, commit, answer 2xx.

An ASGI application (Starlette) that serves alone (`trex inbox serve`) or is mounted in one's own:

    app.mount("/webhooks", webhook_app(read_webhooks("webhooks.toml"), dsn))

    instance = "shop"                      # or TREX_INSTANCE

    [endpoints.stripe-main]
    path = "/stripe/main"
    provider = "stripe"                    # becomes the topic of the inbox message
    account = "acct_main"                  # of this endpoint; the payload's own is never believed
    scheme = "stripe"                      # t=,v1= of Stripe; or standard: Standard Webhooks
    secrets.current = { env = "STRIPE_SECRET" }
    secrets.previous = { file = "/run/secrets/stripe-old" }

    2xx  committed; {"deduplicated": true} when it was there before
    400  the body isn't UTF-8, or was cut off         401  signature, stamp or headers
    413  body over the limit                          415  not JSON by its header, or compressed
    503  not stored: nothing is acknowledged, the sender repeats

Bodies of refusals are constant. The limit of the body holds before anything is hashed. What is
signed but isn't JSON that PostgreSQL can store is kept too: its bytes, under their hash, with the
type `unreadable`, for a person to look at.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
import re
import time
import tomllib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import stripe
from prometheus_client import Counter
from standardwebhooks import Webhook
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from trex_client._calls import check_instance_key
from trex_client._events import Content, read_content
from trex_client._values import is_key
from trex_client.adapters.config import ConfigError, Settings
from trex_client.errors import (
    AccessDenied,
    CommitUnknown,
    InvalidArgument,
    NotPrimary,
    SerializationFailure,
    TrexError,
)
from trex_client.telemetry import Alert, Event, Telemetry
from trex_client.worker.link import connector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from trex_client.adapters.base import Secret
    from trex_client.model_inbox import Received
    from trex_client.worker.link import Session

SCHEMES: Final = ("stripe", "standard")
UNREADABLE: Final = "unreadable"
"""The event type of what was signed but can't be read."""

_HEADERS: Final = {
    "stripe": ("stripe-signature",),
    "standard": ("webhook-id", "webhook-timestamp", "webhook-signature"),
}
_RESULTS: Final = (
    "received", "deduplicated", "revived", "unauthorized", "malformed", "too_large",
    "unsupported", "not_stored",
)  # fmt: skip
_MOST_SIGNATURES: Final = 16
_MOST_SECRETS: Final = 8
_STAMP: Final = re.compile(r"[1-9][0-9]{0,10}", re.ASCII).fullmatch
_HEX: Final = re.compile(r"[0-9a-f]{64}", re.ASCII).fullmatch
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{43}=", re.ASCII).fullmatch
_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}").fullmatch
_JSON_TYPE: Final = re.compile(r"application/([a-z0-9.+-]+\+)?json[ \t]*(;.*)?", re.I).fullmatch
_PATH: Final = re.compile(r"/[A-Za-z0-9._~/-]*").fullmatch


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address that one account of one provider sends to.

    Args:
        name: of its table in the configuration.
        secrets: all that are accepted now, by name; the name is stored with the event.
        tolerance: seconds that the stamp may differ from our clock, either way.
        body_max: most bytes of a body.
        object_id: path of the object's id in the payload.
    """

    name: str
    path: str
    provider: str
    account: str = field(repr=False)
    scheme: str
    secrets: Mapping[str, Secret] = field(repr=False)
    tolerance: int = 300
    body_max: int = 262_144
    object_id: str = "data.object.id"

    @classmethod
    def read(cls, name: str, settings: Settings) -> Endpoint:
        """Read one table.

        Raises:
            ConfigError: names the setting.
        """
        scheme = settings.choice("scheme", "", SCHEMES)
        made = cls(
            name=name,
            path=settings.text("path", f"/{name}"),
            provider=settings.text("provider"),
            account=settings.text("account"),
            scheme=scheme,
            secrets=settings.secrets("secrets"),
            tolerance=settings.integer("tolerance", 300, least=1, most=3600),
            body_max=settings.integer("body_max", 262_144, least=1, most=16 * 1024 * 1024),
            object_id=settings.text(
                "object_id", "data.object.id" if scheme == "stripe" else "data.id"
            ),
        )
        settings.done()
        for setting, fine in {
            "path": _PATH(made.path) and made.path != "/healthz",
            "provider": _SLUG(made.provider),
            "account": is_key(made.account),
            "secrets": 1 <= len(made.secrets) <= _MOST_SECRETS
            and all(is_key(key) for key in made.secrets)
            and all(_usable(scheme, secret) for secret in made.secrets.values()),
        }.items():
            if not fine:
                raise ConfigError(settings.prefix + setting)
        return made


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """The endpoints of one instance."""

    instance_key: str
    endpoints: tuple[Endpoint, ...]

    @classmethod
    def of(
        cls,
        table: Mapping[str, Any],
        *,
        instance_key: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> WebhookConfig:
        """Read a whole configuration; `instance_key` goes before the file's own.

        Raises:
            InvalidArgument: no well-formed instance key.
            ConfigError: names the setting; two endpoints have one path; there is none.
        """
        settings = Settings.of(table, environ)
        named = settings.optional_text("instance") or settings.environ.get("TREX_INSTANCE", "")
        key = check_instance_key(instance_key or named)
        group = settings.section("endpoints")
        endpoints = tuple(Endpoint.read(name, group.section(name)) for name in group.table)
        settings.done()
        paths = {endpoint.path for endpoint in endpoints}
        if not endpoints or len(paths) != len(endpoints):
            raise ConfigError("endpoints")
        return cls(key, endpoints)


def read_webhooks(
    path: str | Path | None = None,
    *,
    instance_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> WebhookConfig:
    """Read a TOML file: `path`, else the file that `TREX_WEBHOOKS_CONFIG` names.

    Raises:
        InvalidArgument: no well-formed instance key.
        ConfigError: the file can't be read or isn't TOML, or names the setting; never its value.
    """
    env = os.environ if environ is None else environ
    chosen = path or env.get("TREX_WEBHOOKS_CONFIG")
    if not chosen:
        raise ConfigError("no file: give its path, or set TREX_WEBHOOKS_CONFIG")
    try:
        table = tomllib.loads(Path(chosen).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError("the file can't be read or isn't TOML") from None
    return WebhookConfig.of(table, instance_key=instance_key, environ=env)


def _usable(scheme: str, secret: Secret) -> bool:
    if scheme == "stripe":
        return bool(secret.reveal().strip())
    try:
        Webhook(secret.reveal())
    except Exception:  # noqa: BLE001 - its text could hold the secret
        return False
    return True


class Refused(Exception):  # noqa: N818
    """An answer that isn't 2xx; `result` is one of the counted words."""

    def __init__(self, status: int, result: str) -> None:
        super().__init__(result)
        self.status = status
        self.result = result


# Signatures


class Signed(NamedTuple):
    """What the signature headers say: the stamp, the event id if they carry it, signatures."""

    stamp: int
    event_id: str | None
    signatures: tuple[str, ...]


def read_headers(
    endpoint: Endpoint, values: Callable[[str], list[str]], now: float
) -> Signed | None:
    """Read the headers of a scheme: exactly one of each, one stamp within the tolerance, 1 to 16
    signatures of the known version. None: anything else.
    """
    found = [values(name) for name in _HEADERS[endpoint.scheme]]
    if any(len(several) != 1 for several in found):
        return None
    if endpoint.scheme == "stripe":
        pairs = [item.strip(" ").partition("=") for item in found[0][0].split(",")]
        stamps = [value for name, _, value in pairs if name == "t"]
        signatures = [value for name, _, value in pairs if name == "v1"]
        event_id = None
    else:
        event_id = found[0][0]
        stamps = [found[1][0]]
        pairs = [item.partition(",") for item in found[2][0].split(" ")]
        signatures = [value for name, _, value in pairs if name == "v1"]
    if len(stamps) != 1 or not _STAMP(stamps[0]) or not 1 <= len(signatures) <= _MOST_SIGNATURES:
        return None
    if event_id is not None and not is_key(event_id):
        return None
    stamp = int(stamps[0])
    if abs(now - stamp) > endpoint.tolerance:
        return None
    form = _HEX if endpoint.scheme == "stripe" else _BASE64
    return Signed(stamp, event_id, tuple(value for value in signatures if form(value)))


def verify(endpoint: Endpoint, signed: Signed, text: str) -> str | None:
    """Return the name of the secret that signed, or None. Every secret is tried, whichever fits.

    The scheme's own library makes the signature; ours are the bounds and the clock.
    """
    key_id = None
    for name, secret in endpoint.secrets.items():
        check = _is_stripes if endpoint.scheme == "stripe" else _is_standard
        if check(secret, signed, text):
            key_id = key_id or name
    return key_id


def _is_stripes(secret: Secret, signed: Signed, text: str) -> bool:
    header = ",".join([f"t={signed.stamp}", *(f"v1={value}" for value in signed.signatures)])
    try:
        # Without a tolerance: the library looks into the past only.
        return bool(stripe.WebhookSignature.verify_header(text, header, secret.reveal(), None))
    except stripe.SignatureVerificationError:
        return False


def _is_standard(secret: Secret, signed: Signed, text: str) -> bool:
    # `Webhook.verify` has a clock and a tolerance of its own and stumbles over malformed entries.
    stamp = datetime.fromtimestamp(signed.stamp, tz=UTC)
    made = Webhook(secret.reveal()).sign(signed.event_id or "", stamp, text)
    expected = base64.b64decode(made.partition(",")[2])
    return any(hmac.compare_digest(expected, _decoded(value)) for value in signed.signatures)


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return b""


# What the bytes say


def read_event(endpoint: Endpoint, signed: Signed, text: str) -> Content:
    """Event id, type and object id; what isn't JSON is kept as `unreadable`."""
    content = read_content(text, endpoint.object_id)
    if content is None:
        return Content(signed.event_id, UNREADABLE, None, "null")
    if endpoint.scheme == "standard":
        return content._replace(event_id=signed.event_id)
    return content


# Storing


class Store:
    """Some connections, each made when it is needed; every call is its own transaction.

    Args:
        dsn: libpq connection string; '' is libpq's variables.
        size: most connections.
        timeout: seconds for one event, waiting for a connection included.
    """

    def __init__(
        self, dsn: str, instance_key: str, *, size: int = 8, timeout: float = 10.0
    ) -> None:
        self._connect = connector(dsn, instance_key)
        self._timeout = timeout
        self._free = asyncio.Semaphore(size)
        self._idle: list[Session] = []

    async def receive(
        self, endpoint: Endpoint, content: Content, raw: bytes, key_id: str
    ) -> Received:
        """Store one event and commit. A connection that was lost is made again once: `receive` may
        be repeated.

        Raises:
            TrexError, psycopg.Error, OSError, TimeoutError: it isn't known to be stored.
        """
        async with asyncio.timeout(self._timeout), self._free:
            try:
                return await self._once(endpoint, content, raw, key_id)
            except (CommitUnknown, SerializationFailure, NotPrimary):
                self._drop_idle()
            return await self._once(endpoint, content, raw, key_id)

    async def _once(
        self, endpoint: Endpoint, content: Content, raw: bytes, key_id: str
    ) -> Received:
        session = self._idle.pop() if self._idle else await self._connect()
        keep = False
        try:
            received = await session.kernel.receive(
                endpoint.provider,
                endpoint.account,
                content.event_id,
                content.event_type,
                content.object_id,
                raw,
                payload_json=content.payload_json,
                key_id=key_id,
            )
            keep = True
        except InvalidArgument:
            keep = True
            raise
        finally:
            if keep:
                self._idle.append(session)
            else:
                session.drop()
        return received

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().drop()

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            await self._idle.pop().conn.close()


# The application


class _Hook:
    """Handles the requests of one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        store: Store,
        telemetry: Telemetry,
        count: Callable[[str], None],
        clock: Callable[[], float],
        read_timeout: float,
    ) -> None:
        self._endpoint = endpoint
        self._store = store
        self._telemetry = telemetry
        self._count = count
        self._clock = clock
        self._read_timeout = read_timeout

    async def __call__(self, request: Request) -> Response:
        try:
            received = await self._receive(request)
        except Refused as refusal:
            self._count(refusal.result)
            return _refusal(refusal.status)
        except Exception:  # noqa: BLE001 - never a 500, and nobody sees its text
            self._telemetry.unhandled()
            self._count("not_stored")
            return _refusal(503)
        self._count(received.status)
        known = b"true" if received.status != "received" else b"false"
        return Response(b'{"deduplicated": ' + known + b"}", 200, media_type="application/json")

    async def _receive(self, request: Request) -> Received:
        endpoint = self._endpoint
        signed = read_headers(endpoint, request.headers.getlist, self._clock())
        if signed is None:
            raise Refused(401, "unauthorized")
        raw = await self._body(request)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(400, "malformed") from None
        key_id = verify(endpoint, signed, text)
        if key_id is None:
            raise Refused(401, "unauthorized")
        content = read_event(endpoint, signed, text)
        try:
            return await self._store_readable(content, signed, raw, key_id)
        except (TrexError, psycopg.Error, OSError, TimeoutError) as error:
            self._not_stored(error)
        raise Refused(503, "not_stored")

    async def _store_readable(
        self, content: Content, signed: Signed, raw: bytes, key_id: str
    ) -> Received:
        try:
            return await self._store.receive(self._endpoint, content, raw, key_id)
        except InvalidArgument:
            pass
        # JSON that jsonb can't hold, such as \u0000; or longer than the instance allows.
        content = content._replace(event_type=UNREADABLE, object_id=None, payload_json="null")
        try:
            return await self._store.receive(self._endpoint, content, raw, key_id)
        except InvalidArgument:
            raise Refused(413, "too_large") from None

    async def _body(self, request: Request) -> bytes:
        """Read the body, never more than the limit."""
        headers = request.headers
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise Refused(400, "malformed")
        if len(length) > 10 or int(length) > self._endpoint.body_max:
            raise Refused(413, "too_large")
        kinds, codings = headers.getlist("content-type"), headers.getlist("content-encoding")
        if len(kinds) != 1 or not _JSON_TYPE(kinds[0]) or codings not in ([], ["identity"]):
            raise Refused(415, "unsupported")
        raw = bytearray()
        try:
            async with asyncio.timeout(self._read_timeout):
                async for chunk in request.stream():
                    if len(raw) + len(chunk) > self._endpoint.body_max:
                        raise Refused(413, "too_large")
                    raw += chunk
        except (ClientDisconnect, TimeoutError):
            raise Refused(400, "malformed") from None
        return bytes(raw)

    def _not_stored(self, error: Exception) -> None:
        result = "database_error"
        if isinstance(error, CommitUnknown):
            result = "commit_unknown"
        elif isinstance(error, TrexError) and error.sqlstate:
            result = error.sqlstate
        self._telemetry.event(Event.CALL_FAILED, "error", result=result)
        if isinstance(error, AccessDenied):
            self._telemetry.alert(Alert.ACCESS_DENIED)
        elif isinstance(error, NotPrimary):
            self._telemetry.alert(Alert.NOT_PRIMARY)
        else:
            self._telemetry.alert(Alert.DATABASE_UNREACHABLE)


_BODIES: Final = {
    400: b'{"error": "malformed body"}',
    401: b'{"error": "unauthorized"}',
    404: b'{"error": "not found"}',
    405: b'{"error": "method not allowed"}',
    413: b'{"error": "body too large"}',
    415: b'{"error": "unsupported media type"}',
    503: b'{"error": "not stored, send again"}',
}


def _refusal(status: int) -> Response:
    # What is left of a refused body isn't read: the connection can't be used again.
    headers = {"Retry-After": "5"} if status == 503 else {"Connection": "close"}
    return Response(_BODIES[status], status, headers=headers, media_type="application/json")


async def _no_endpoint(_: Request, error: Exception) -> Response:
    """Another path or method than those that are served."""
    assert isinstance(error, HTTPException)  # noqa: S101 - narrows a type
    response = _refusal(error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _healthz(_: Request) -> Response:
    return Response(b"ok\n", media_type="text/plain")


class WebhookApp(Starlette):
    """The ASGI application; see `webhook_app`."""

    def __init__(
        self, config: WebhookConfig, store: Store, hook: Callable[[Endpoint], _Hook]
    ) -> None:
        @asynccontextmanager
        async def lifespan(_: ASGIApp) -> AsyncIterator[None]:
            yield
            await store.close()

        super().__init__(
            lifespan=lifespan, exception_handlers={404: _no_endpoint, 405: _no_endpoint}
        )
        # A redirected POST may lose its body, and a provider that doesn't follow it its event.
        self.router.redirect_slashes = False
        self._instance_key = config.instance_key
        self._hook = hook
        self.reload(config)

    def reload(self, config: WebhookConfig) -> None:
        """Serve these endpoints, with these secrets, from the next request on: a rotation needs no
        restart.

        Raises:
            InvalidArgument: it is another instance's; nothing changes.
        """
        if config.instance_key != self._instance_key:
            raise InvalidArgument("instance_key")
        self.router.routes = [
            Route("/healthz", _healthz),
            *(self._route(endpoint) for endpoint in config.endpoints),
        ]

    def _route(self, endpoint: Endpoint) -> Route:
        handle = self._hook(endpoint)

        async def answer(request: Request) -> Response:
            return await handle(request)

        return Route(endpoint.path, answer, methods=["POST"], name=endpoint.name)


def webhook_app(
    config: WebhookConfig,
    dsn: str = "",
    *,
    telemetry: Telemetry | None = None,
    connections: int = 8,
    store_timeout: float = 10.0,
    read_timeout: float = 20.0,
    clock: Callable[[], float] = time.time,
) -> WebhookApp:
    """Return the ASGI application; it connects when the first event comes. Its `reload` takes
    another configuration.

    Args:
        config: see `read_webhooks`.
        dsn: libpq connection string of a login role that has trex_app; '' is libpq's variables.
        telemetry: the door to logs and metrics; one on stderr unless given.
        connections: most connections to the database.
        store_timeout: seconds in which an event must be stored; else 503.
        read_timeout: seconds in which a body must have come; else 400.
        clock: seconds since 1970.

    Raises:
        InvalidArgument: the connection string can't be read.
    """
    door = telemetry or Telemetry(config.instance_key)
    store = Store(dsn, config.instance_key, size=connections, timeout=store_timeout)
    counter = Counter(
        "trex_webhooks",
        "Requests to webhook endpoints by what became of them.",
        ["trex_instance", "result"],
        registry=door.registry,
    )
    counts = {result: counter.labels(door.instance_key, result) for result in _RESULTS}

    def count(result: str) -> None:
        counts[result].inc()

    def hook(endpoint: Endpoint) -> _Hook:
        return _Hook(endpoint, store, door, count, clock, read_timeout)

    return WebhookApp(config, store, hook)
