"""Posts messages to an HTTP sink.

`keyed`: the body is the payload, byte-identical on every attempt, and `Idempotency-Key` is the
wire key (draft-ietf-httpapi-idempotency-key-header). `envelope`: the body is `{"id", "topic",
"payload", "attempts"}` for sinks that deduplicate by `id`; `id` is the wire key. `Trex-Topic`,
`Trex-Attempt` and `Trex-Fence` travel in headers.

    2xx            Delivered; Duplicate with the replay header or a duplicate answer in the body
    409            same key in progress: Retryable (`status_409 = "conflict"`: Conflict)
    422            same key, other content: Conflict (in envelope mode: Permanent)
    425, 429, 503  Retryable, not before Retry-After (seconds or date, clamped)
    408, 5xx       Unknown
    301, 302, 303  Unknown: some sinks answer a success like this; never followed
    307, 308       Retryable; never followed
    other 4xx      Permanent
    no connection, DNS, TLS: Retryable, nothing was sent
    no free connection of our own in time: given back, costs no try
    a timeout or a cut after the first byte may have left: Unknown

Only the status is kept, and what `[answer]` names: reference, balance, version, and one field
that can overrule the status; of a look-up's answer also account, currency and amount, to compare
them with ours. httpcore, the engine of httpx, is used directly: its trace says when
the first byte leaves, and its network backend lets us judge the address.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from decimal import Decimal, InvalidOperation
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

import httpcore

from trex_client._values import exact
from trex_client.adapters.base import (
    UNSTATED,
    Absent,
    Conflict,
    Delivered,
    DeliveryContext,
    DeliveryResult,
    Duplicate,
    Found,
    LookupResult,
    NotSent,
    NotSure,
    Permanent,
    Retryable,
    Secret,
    Snapshot,
    Unknown,
    Unstated,
    require_instance_key,
)
from trex_client.adapters.config import ConfigError, Settings
from trex_client.adapters.network import (
    AddressRule,
    GuardedBackend,
    HostNotAllowed,
    IPNetwork,
    parse_networks,
    parse_url,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import httpx

    from trex_client.adapters.network import Resolve
    from trex_client.model import Claim, EffectPolicy

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ANSWERS = ("delivered", "duplicate", "retry", "in_progress", "conflict", "permanent", "unknown")
_SENDING = ("http11.send_request_headers.started", "http2.send_request_headers.started")
_KEEPALIVE = 15.0


@dataclass(frozen=True, slots=True)
class AnswerFields:
    """What is read from a JSON answer: dotted paths, and words that overrule the status."""

    reference: str | None = None
    balance: str | None = None
    version: str | None = None
    result: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def decides(self) -> bool:
        """Whether a 2xx can mean something else than delivered."""
        return any(kind not in {"delivered", "duplicate"} for kind in self.words.values())

    @classmethod
    def read(cls, settings: Settings) -> AnswerFields:
        """Read the section `[answer]`: `reference`, `balance`, `version`, `result`, and lists of
        words for it.
        """
        words: dict[str, str] = {}
        for kind in _ANSWERS:
            for word in settings.texts(kind):
                if words.setdefault(word, kind) != kind:
                    raise ConfigError(f"answer.{kind} has a word that means something else too")
        fields = cls(
            reference=settings.optional_text("reference"),
            balance=settings.optional_text("balance"),
            version=settings.optional_text("version"),
            result=settings.optional_text("result"),
            words=words,
        )
        settings.done()
        if bool(words) != bool(fields.result) or bool(fields.balance) != bool(fields.version):
            raise ConfigError("answer")
        return fields


@dataclass(frozen=True, slots=True)
class LookupConfig:
    """How to ask for a key: GET `url` with `{key}` in it.

    `in_flight`: seconds after which a request that isn't visible will never take effect; the sink
    must promise it.
    None: not stated, and a missing key is never certain.
    `account`, `currency`, `amount`: dotted paths to what is booked under the key. The answer must
    have those that are named, null where no cash moves. Another content than ours is a conflict.
    With none named, a key that is found counts as ours, whatever is booked under it.
    """

    url: str = field(repr=False)
    in_flight: float | None = None
    absent_statuses: tuple[int, ...] = (404,)
    account: str | None = None
    currency: str | None = None
    amount: str | None = None


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Settings of the adapter; times in seconds, sizes in bytes. See `read` for the TOML names."""

    url: str = field(repr=False)
    mode: str = "keyed"
    policy: EffectPolicy = "idempotent"
    envelope_attempts: bool = True
    allow_hosts: tuple[str, ...] = ()
    allow_networks: tuple[IPNetwork, ...] = ()
    ca_file: str | None = None
    bearer: Secret | None = None
    headers: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    connect_timeout: float = 5.0
    pool_timeout: float = 5.0
    write_timeout: float = 10.0
    read_timeout: float = 20.0
    total_timeout: float = 30.0
    max_body: int = 65536
    connections: int = 256
    retry_after_max: float = 3600.0
    replay_header: str = "idempotent-replayed"
    status_409: str = "in_progress"
    status_422: str = "conflict"
    answer: AnswerFields = field(default_factory=AnswerFields)
    lookup: LookupConfig | None = None

    @classmethod
    def read(cls, settings: Settings) -> HttpConfig:
        """Read and check the settings.

        Raises:
            ConfigError: names the setting.
        """
        mode = settings.choice("mode", "keyed", ("keyed", "envelope"))
        policy = settings.policy("policy", "idempotent")
        lookup = None
        if settings.table.get("lookup") is not None:
            section = settings.section("lookup")
            stated = section.table.get("in_flight") is not None
            lookup = LookupConfig(
                url=_url_text(section, "url"),
                in_flight=section.seconds("in_flight", 0.0) if stated else None,
                absent_statuses=section.integers("absent_statuses", (404,)),
                account=section.optional_text("account"),
                currency=section.optional_text("currency"),
                amount=section.optional_text("amount"),
            )
            section.done()
        return cls(
            url=_url_text(settings, "url"),
            mode=mode,
            policy=policy,
            envelope_attempts=settings.flag("envelope_attempts", default=True),
            allow_hosts=settings.texts("allow_hosts"),
            allow_networks=parse_networks(settings.texts("allow_networks"), "allow_networks"),
            ca_file=settings.optional_text("ca_file"),
            bearer=settings.secret("bearer"),
            headers=settings.secrets("headers"),
            connect_timeout=settings.seconds("connect_timeout", 5.0, least=0.001),
            pool_timeout=settings.seconds("pool_timeout", 5.0, least=0.001),
            write_timeout=settings.seconds("write_timeout", 10.0, least=0.001),
            read_timeout=settings.seconds("read_timeout", 20.0, least=0.001),
            total_timeout=settings.seconds("total_timeout", 30.0, least=0.001),
            max_body=settings.integer("max_body", 65536, least=0, most=16 * 1024 * 1024),
            connections=settings.integer("connections", 256, least=1, most=10_000),
            retry_after_max=settings.seconds("retry_after_max", 3600.0, most=30 * 86400.0),
            replay_header=settings.text("replay_header", "idempotent-replayed").lower(),
            status_409=settings.choice("status_409", "in_progress", ("in_progress", "conflict")),
            status_422=settings.choice(
                "status_422",
                "conflict" if mode == "keyed" else "permanent",
                ("conflict", "permanent"),
            ),
            answer=AnswerFields.read(settings.section("answer")),
            lookup=lookup,
        )


def _url_text(settings: Settings, name: str) -> str:
    """A URL: text, or `{ env = NAME }` where it holds a token."""
    if isinstance(settings.table.get(name), dict):
        secret = settings.secret(name)
        if secret is not None:
            return secret.reveal()
    return settings.text(name)


@dataclass(slots=True)
class _Answer:
    """A response: status, the few headers that matter, and the body if it could be read whole."""

    status: int
    headers: dict[str, str]
    body: bytes | None = field(repr=False)
    problem: str = ""


class HttpAdapter:
    """Delivers over HTTP as the module describes. Makes connections at the first delivery.

    Args:
        instance_key: whose messages it carries.
        config: checked settings.
        resolve: name to addresses; for tests.
        now: wall clock in seconds since 1970, for Retry-After dates.

    Raises:
        InvalidArgument: no instance key.
        ConfigError: a URL, header or credential that isn't allowed, or an unreadable `ca_file`.
    """

    announces_sending = True

    def __init__(
        self,
        instance_key: str,
        config: HttpConfig,
        *,
        resolve: Resolve | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.instance_key = require_instance_key(instance_key)
        self.policy: EffectPolicy = config.policy
        self.can_lookup = config.lookup is not None
        stated = config.lookup.in_flight if config.lookup else None
        self.in_flight = timedelta(seconds=stated or 0.0)
        if config.policy == "lookup" and stated is None:
            raise ConfigError("lookup.in_flight")
        self._absent_counts = stated is not None
        self._config = config
        self._now = now
        self._url = parse_url(config.url, "url", config.allow_hosts)
        if config.lookup is not None:
            if "{key}" not in config.lookup.url:
                raise ConfigError("lookup.url")
            parse_url(
                config.lookup.url.replace("{key}", "0" * 64), "lookup.url", config.allow_hosts
            )
        self._headers = _fixed_headers(config)
        rule = AddressRule(config.allow_networks)
        self._backend = GuardedBackend(rule, resolve) if resolve else GuardedBackend(rule)
        try:
            self._tls = ssl.create_default_context(cafile=config.ca_file)
        except OSError:
            raise ConfigError("ca_file can't be read") from None
        self.concurrency = config.connections
        self._slots = asyncio.Semaphore(config.connections)
        self._idle: deque[tuple[httpcore.AsyncConnectionPool, float]] = deque()
        self._timeouts = {
            "connect": config.connect_timeout,
            "read": config.read_timeout,
            "write": config.write_timeout,
        }

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Send one message; see the table at the top."""
        headers = [
            *self._headers,
            (b"Content-Type", b"application/json"),
            (b"Idempotency-Key", context.wire_key.encode()),
            (b"Trex-Topic", claim.topic.encode()),
            (b"Trex-Attempt", str(context.attempt).encode()),
            (b"Trex-Fence", str(context.fence).encode()),
        ]
        try:
            answer = await self._call(
                "POST", self._url, headers, self._body(claim, context), context
            )
        except NotSent as error:
            return Retryable(error.reason)
        except Exception as error:  # noqa: BLE001
            reason = _failure(error, sent=context.sent)
            return Unknown(reason) if context.sent else Retryable(reason)
        return self._judge(answer)

    async def lookup(self, wire_key: str) -> LookupResult:
        """Ask for a key with GET."""
        lookup = self._config.lookup
        if lookup is None:
            return NotSure("lookup_unsupported")
        try:
            url = parse_url(lookup.url.replace("{key}", wire_key), "lookup.url")
            answer = await self._call("GET", url, self._headers, b"", None)
        except Exception as error:  # noqa: BLE001
            return NotSure(_failure(error, sent=True))
        if answer.status in lookup.absent_statuses:
            return Absent() if self._absent_counts else NotSure("lookup_absent")
        if not 200 <= answer.status < 300:
            return NotSure("lookup_failed")
        data = _json(answer.body)
        word = self._word(data)
        if word is None and self._config.answer.decides:
            return NotSure("response_invalid")
        if word in {None, "delivered", "duplicate"}:
            return self._found(lookup, data)
        return NotSure("in_progress" if word == "in_progress" else "lookup_failed")

    def _found(self, lookup: LookupConfig, data: object) -> LookupResult:
        """Read what is booked under the key; NotSure when it can't be read."""
        try:
            account = _booked_text(data, lookup.account)
            currency = _booked_text(data, lookup.currency)
            amount = _booked_amount(data, lookup.amount)
        except ValueError:
            return NotSure("response_invalid")
        return Found(
            _reference(self._config.answer, data),
            _snapshot(self._config.answer, data),
            account=account,
            currency=currency,
            cash_delta=amount,
        )

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            await self._idle.pop()[0].aclose()

    def _body(self, claim: Claim, context: DeliveryContext) -> bytes:
        if self._config.mode == "keyed":
            return claim.payload_json.encode()
        attempts = f', "attempts": {context.attempt}' if self._config.envelope_attempts else ""
        return (
            f'{{"id": "{context.wire_key}", "topic": {json.dumps(claim.topic)}, '
            f'"payload": {claim.payload_json}{attempts}}}'
        ).encode()

    async def _call(
        self,
        method: str,
        url: httpx.URL,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        context: DeliveryContext | None,
    ) -> _Answer:

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            if context is not None and event in _SENDING:
                await context.sending()

        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        request_headers = [(b"Host", url.netloc), *headers]
        if method == "POST":
            request_headers.append((b"Content-Length", str(len(body)).encode()))
        async with self._connection() as connection:
            end = asyncio.get_running_loop().time() + self._config.total_timeout
            async with (
                asyncio.timeout_at(end) as limit,
                connection.stream(
                    method,
                    target,
                    headers=request_headers,
                    content=body or None,
                    extensions={"timeout": self._timeouts, "trace": trace},
                ) as response,
            ):
                limit.reschedule(None)
                return await self._read(response, end)

    async def _read(self, response: httpcore.Response, end: float) -> _Answer:
        """Read the answer. Once there is a status, an unreadable body only loses the body."""
        names = {b"retry-after", self._config.replay_header.encode(), b"content-encoding"}
        headers = {
            name.lower().decode("latin-1"): value.decode("latin-1")
            for name, value in response.headers
            if name.lower() in names
        }
        answer = _Answer(response.status, headers, b"")
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout_at(end):
                async for chunk in response.aiter_stream():
                    size += len(chunk)
                    if size > self._config.max_body:
                        answer.body, answer.problem = None, "response_too_large"
                        return answer
                    chunks.append(chunk)
        except (httpcore.TimeoutException, TimeoutError):
            answer.body, answer.problem = None, "timeout"
        except (httpcore.NetworkError, httpcore.ProtocolError):
            answer.body, answer.problem = None, "connection_lost"
        else:
            answer.body = b"".join(chunks)
            if headers.get("content-encoding", "identity").lower() != "identity":
                answer.body, answer.problem = None, "response_invalid"
        return answer

    def _judge(self, answer: _Answer) -> DeliveryResult:
        status, fields = answer.status, self._config.answer
        data = _json(answer.body)
        word = self._word(data)
        if word is not None:
            return self._by_word(word, answer, data)
        if 200 <= status < 300:
            if fields.decides:
                return Unknown(answer.problem or "response_invalid")
            reference, snapshot = _reference(fields, data), _snapshot(fields, data)
            if answer.headers.get(self._config.replay_header, "").lower() in {"true", "1", "yes"}:
                return Duplicate(reference, snapshot)
            return Delivered(reference, snapshot)
        if status == 409:
            if self._config.status_409 == "conflict":
                return Conflict()
            return Retryable("in_progress", self._retry_after(answer))
        if status == 422 and self._config.status_422 == "conflict":
            return Conflict()
        if status in {425, 429, 503}:
            reason = "rate_limited" if status == 429 else "unavailable"
            return Retryable(reason, self._retry_after(answer))
        if status in {301, 302, 303}:
            return Unknown("redirected")
        if 300 <= status < 400:
            return Retryable("redirected")
        if status == 408 or status >= 500 or status < 200:
            return Unknown("timeout" if status in {408, 504} else "server_error")
        return Permanent(_REFUSALS.get(status, "rejected"))

    def _by_word(self, word: str, answer: _Answer, data: object) -> DeliveryResult:
        fields = self._config.answer
        match word:
            case "delivered":
                return Delivered(_reference(fields, data), _snapshot(fields, data))
            case "duplicate":
                return Duplicate(_reference(fields, data), _snapshot(fields, data))
            case "retry":
                return Retryable("unavailable", self._retry_after(answer))
            case "in_progress":
                return Retryable("in_progress", self._retry_after(answer))
            case "conflict":
                return Conflict()
            case "permanent":
                return Permanent()
            case _:
                return Unknown("server_error")

    def _word(self, data: object) -> str | None:
        """Return which of `_ANSWERS` the body says, or None."""
        value = _at(data, self._config.answer.result)
        return self._config.answer.words.get(value) if isinstance(value, str) else None

    def _retry_after(self, answer: _Answer) -> timedelta | None:
        text = answer.headers.get("retry-after", "").strip()
        if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
            seconds = float(text)
        else:
            try:
                moment = parsedate_to_datetime(text)
            except (ValueError, TypeError, IndexError):
                return None
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = moment.timestamp() - self._now()
        return timedelta(seconds=min(max(seconds, 0.0), self._config.retry_after_max))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[httpcore.AsyncConnectionPool]:
        """Lend a connection, the one used last. After a failure it isn't used again.

        Each is a pool of one: a pool of many looks at all of them at every request.

        Raises:
            NotSent: no free one in time.
        """
        try:
            async with asyncio.timeout(self._config.pool_timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise NotSent("not_started") from None
        now = asyncio.get_running_loop().time
        pool = self._idle.pop()[0] if self._idle else self._open()
        try:
            yield pool
        except BaseException:
            await pool.aclose()
            raise
        else:
            self._idle.append((pool, now()))
        finally:
            self._slots.release()
        while self._idle and self._idle[0][1] + _KEEPALIVE < now():
            await self._idle.popleft()[0].aclose()

    def _open(self) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=1,
            keepalive_expiry=_KEEPALIVE,
            network_backend=self._backend,
        )


_REFUSALS = {400: "invalid_request", 401: "unauthorized", 403: "unauthorized", 404: "not_found"}
# What we or the transport send ourselves; `trex-` as well.
_OURS = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-length", "content-type", "expect",
        "host", "idempotency-key", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
    }
)  # fmt: skip


def _fixed_headers(config: HttpConfig) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"User-Agent", b"trex"),
        (b"Accept", b"application/json"),
        (b"Accept-Encoding", b"identity"),
    ]
    secrets = list(config.headers.items())
    if config.bearer is not None:
        secrets.append(("Authorization", Secret(f"Bearer {config.bearer.reveal()}")))
    seen: set[str] = set()
    for name, value in secrets:
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError("headers")
        if lower in _OURS or lower.startswith("trex-"):
            raise ConfigError("headers has a name that trex sets itself")
        if lower in seen:
            raise ConfigError("headers has a name twice")
        seen.add(lower)
        try:
            headers.append((name.encode("ascii"), value.reveal().encode("latin-1")))
        except UnicodeEncodeError:
            raise ConfigError("headers") from None
    return headers


def _failure(error: BaseException, *, sent: bool) -> str:
    """Return the reason code for an exception of the transport; its text is never looked at."""
    if isinstance(error, NotSent):
        return error.reason
    if isinstance(error, HostNotAllowed):
        return "host_not_allowed"
    if isinstance(error, httpcore.ConnectTimeout):
        return "connect_failed"
    if isinstance(error, httpcore.TimeoutException | TimeoutError):
        return "timeout" if sent else "connect_failed"
    if isinstance(error, httpcore.ConnectError):
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                return "tls_failed"
            cause = cause.__cause__ or cause.__context__
        return "connect_failed"
    if isinstance(error, httpcore.NetworkError | httpcore.ProtocolError):
        return "connection_lost"
    return "adapter_error"


def _json(body: bytes | None) -> object:
    """Return the body as data with exact numbers, or None when it isn't JSON."""
    if not body:
        return None
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, InvalidOperation):
        return None


def _refuse_constant(_: str) -> object:
    raise ValueError


def _at(data: object, path: str | None) -> object:
    if path is None:
        return None
    for name in path.split("."):
        if not isinstance(data, dict):
            return None
        data = data.get(name)
    return data


def _booked(data: object, path: str) -> object:
    """Return what is at a path; null is a value there, and missing isn't.

    Raises:
        ValueError: there is nothing at it.
    """
    *way, last = path.split(".")
    there = _at(data, ".".join(way)) if way else data
    if not isinstance(there, dict) or last not in there:
        raise ValueError
    value: object = there[last]
    return value


def _booked_text(data: object, path: str | None) -> str | Literal[Unstated.UNSTATED] | None:
    if path is None:
        return UNSTATED
    value = _booked(data, path)
    if value is not None and not isinstance(value, str):
        raise ValueError
    return value


def _booked_amount(data: object, path: str | None) -> Decimal | Literal[Unstated.UNSTATED] | None:
    """Read an exact amount: a JSON number, or a string that is one."""
    if path is None:
        return UNSTATED
    value = _booked(data, path)
    return None if value is None else exact(value)


def _reference(fields: AnswerFields, data: object) -> str | None:
    value = _at(data, fields.reference)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10**40 else None
    return value if isinstance(value, str) else None


def _snapshot(fields: AnswerFields, data: object) -> Snapshot | None:
    balance, version = _at(data, fields.balance), _at(data, fields.version)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        return None
    try:
        return Snapshot(exact(balance), version)
    except ValueError:
        return None
