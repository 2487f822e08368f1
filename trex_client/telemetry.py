"""The only door to logs, metrics and alerts. No free text gets in, so nothing secret gets out.

What passes: an event name of `Event`, the instance keys and topics this door was made for,
results and reasons from closed lists, a correlation identity (as it is when it is a UUID or a
ULID, else its digest), and numbers under known names. Everything else is dropped and counted,
never printed; that is checked at run time as well as by types.

Logs are JSON lines on stderr (structlog). Metrics live in a registry of their own
(prometheus-client) with labels from closed lists, so the number of series is bounded. Alerts are
log events and, when configured, a POST to a webhook with the same fields.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import ssl
import sys
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from psycopg import errors as pg_errors

from trex_client.errors import BY_SQLSTATE
from trex_client.model import REASONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from datetime import timedelta
    from types import TracebackType
    from typing import TextIO, Unpack

    from trex_client.adapters.network import Resolve
    from trex_client.model import Box, Claim, InstanceStats, Report

Level = Literal["debug", "info", "warning", "error"]
_LEVELS: Final[dict[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Event(StrEnum):
    """Every event there is. A name says what happened; fields say how much and to whom."""

    STARTED = "started"
    STOPPED = "stopped"
    DRAINING = "draining"
    CONNECTED = "connected"
    CONNECTION_LOST = "connection_lost"
    CONNECT_FAILED = "connect_failed"
    LISTENING = "listening"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    RETRIED = "retried"
    UNKNOWN = "unknown"
    PARKED = "parked"
    RELEASED = "released"
    POSTPONED = "postponed"
    CLAIM_LOST = "claim_lost"
    LEASE_EXTENDED = "lease_extended"
    CALL_FAILED = "call_failed"
    ADAPTER_FAILED = "adapter_failed"
    REPORT_REFUSED = "report_refused"
    ALERT = "alert"
    ALERT_NOT_SENT = "alert_not_sent"
    PAUSED = "paused"
    SERVING = "serving"
    RELOADED = "reloaded"
    LIBRARY_LOG = "library_log"
    UNHANDLED = "unhandled"
    PROGRESS = "progress"
    FINISHED = "finished"


class Alert(StrEnum):
    """What an operator is told about. Each has a rule in `ops/alerts.yaml`."""

    PARKED = "parked"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CONFLICT = "conflict"
    CLAIM_LOST = "claim_lost"
    DATABASE_UNREACHABLE = "database_unreachable"
    NOT_PRIMARY = "not_primary"
    ACCESS_DENIED = "access_denied"
    INVARIANT_VIOLATED = "invariant_violated"
    WRITE_BACK_FAILED = "write_back_failed"
    ADAPTER_FAILED = "adapter_failed"
    NO_CONSUMER = "no_consumer"


RESULTS: Final[frozenset[str]] = frozenset(
    {
        "completed", "duplicate", "retry", "unknown", "conflict", "permanent", "dead_letter",
        "released", "postponed", "claim_lost", "ended_otherwise", "not_found", "already_recorded",
        "lease_expired", "ok", "failed", "drained", "left_in_flight", "interrupted", "empty",
        "limit_reached", "serialization_failure", "commit_unknown", "database_error",
        "schema_newer", "schema_outdated",
        *(alert.value for alert in Alert),
        *BY_SQLSTATE,
        *(cls.sqlstate for cls in vars(pg_errors).values() if getattr(cls, "sqlstate", None)),
    }
)  # fmt: skip
"""All values of the field `result`; a SQLSTATE is one that psycopg knows."""

NUMBERS: Final[frozenset[str]] = frozenset(
    {
        "message_id", "attempt", "tries", "fence", "count", "seconds", "delay_seconds", "due",
        "oldest_due_seconds", "in_flight", "parked", "port", "exit_code", "concurrency",
        "claimed", "delivered", "duplicates", "retried", "unknown", "released", "postponed",
        "claim_lost", "epoch", "signal", "severity", "dropped", "pid", "connection_attempt",
    }
)  # fmt: skip
"""All names of number fields."""

_WORDS: Final[dict[str, frozenset[str]]] = {"result": RESULTS, "reason": REASONS}

COUNTERS: Final[dict[str, str]] = {
    "claimed": "Claims given to this process.",
    "delivered": "Messages delivered and recorded.",
    "duplicate": "Messages that the sink already had, recorded as delivered.",
    "retried": "Attempts recorded for a later retry.",
    "unknown": "Attempts whose outcome nobody knows, deferred or parked.",
    "conflict": "Messages parked because the sink has other content under their key.",
    "permanent": "Messages parked because the sink refused them for good.",
    "dead_lettered": "Messages parked because their allowance was used up.",
    "claim_lost": "Claims that this process lost; nothing was recorded for them.",
    "released": "Claims given back unused.",
    "postponed": "Claims put off without using up the allowance.",
}
PARKED_STATES: Final = ("dead_letter", "permanent", "conflict", "unknown")
OTHER_TOPIC: Final = "other"

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}")
_SLUG = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}")
_LABEL_TOPICS = 200
_LINES = 60
_LINE_WINDOW = 60.0
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Fields(TypedDict, total=False):
    """What an event may carry. The same rules are applied at run time."""

    result: str
    reason: str
    topic: str
    correlation: str | None
    message_id: int
    attempt: int
    tries: int
    fence: int
    count: int
    seconds: float
    delay_seconds: float
    due: int
    oldest_due_seconds: float
    in_flight: int
    parked: int
    port: int
    exit_code: int
    concurrency: int
    claimed: int
    delivered: int
    duplicates: int
    retried: int
    unknown: int
    released: int
    postponed: int
    claim_lost: int
    epoch: int
    signal: int
    severity: int
    pid: int
    connection_attempt: int


def correlation_identity(correlation_id: str) -> str:
    """Return a UUID or ULID as it is, anything else as `sha256:` and 32 hex digits."""
    if _UUID.fullmatch(correlation_id) or _ULID.fullmatch(correlation_id):
        return correlation_id
    digest = hashlib.sha256(correlation_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"sha256:{digest[:32]}"


def _is_slug(value: object) -> bool:
    return type(value) is str and _SLUG.fullmatch(value) is not None


class Telemetry:
    """One process's door, for one instance.

    Args:
        instance_key: the only instance key that is ever shown; `-` when malformed.
        topics: the registered topics, at most 200; others are shown as `other`.
        level: what is logged at least.
        stream: where log lines go; `sys.stderr` unless given.
        webhook: called with the JSON text of an alert; its failures are counted, not shown.
        monotonic: seconds, for the pause between equal alerts.
        alert_pause: seconds in which an equal alert (name, reason) isn't sent again.
    """

    def __init__(
        self,
        instance_key: str,
        *,
        topics: Collection[str] = (),
        level: Level = "info",
        stream: TextIO | None = None,
        webhook: Callable[[bytes], Awaitable[bool]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        alert_pause: float = 60.0,
    ) -> None:
        self.instance_key = instance_key if _is_slug(instance_key) else "-"
        named = sorted({topic for topic in topics if _is_slug(topic)})
        self.topics = frozenset(named[:_LABEL_TOPICS])
        self.registry = CollectorRegistry()
        self._threshold = _LEVELS[level]
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(stream or sys.stderr),
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.BoundLoggerBase,
        )
        self._webhook = webhook
        self._monotonic = monotonic
        self._alert_pause = alert_pause
        self._alerted: dict[tuple[str, str], float] = {}
        self._posts: set[asyncio.Task[None]] = set()
        self._lines: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._make_metrics()

    # logs

    def event(self, event: Event, level: Level = "info", **fields: Unpack[Fields]) -> None:
        """Log one event. Fields that don't pass are left out and counted.

        Of equal events (name, result, reason) at most 60 lines a minute are written; the next one
        after that says in `dropped` how many weren't.
        """
        if _LEVELS[level] >= self._threshold:
            self._write(event, level, fields)

    def alert(self, alert: Alert, **fields: Unpack[Fields]) -> None:
        """Tell an operator: a log event, and the webhook. Equal ones at most once per pause."""
        name = Alert(alert).value
        reason = fields.get("reason", "")
        key = (name, reason if reason in REASONS else "")
        now = self._monotonic()
        if now - self._alerted.get(key, float("-inf")) < self._alert_pause:
            return
        self._alerted[key] = now
        self.alerts.labels(self.instance_key, name).inc()
        shown = self._write(Event.ALERT, "error", {**fields, "result": name})
        if self._webhook is not None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self.alerts_not_sent.inc()
                return
            task = loop.create_task(self._post(self._webhook, shown))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)

    async def flush(self, seconds: float = 5.0) -> None:
        """Wait for webhooks under way, at most so many seconds."""
        if self._posts:
            await asyncio.wait(self._posts, timeout=seconds)

    # counters and histograms: only after the COMMIT was acknowledged

    def count(self, name: str, claim: Claim | None, reason: str = "", number: int = 1) -> None:
        """Raise a counter of `COUNTERS` for a claim's topic."""
        topic = self._topic(claim.topic) if claim is not None else OTHER_TOPIC
        counter = self.counters[name]
        if name in _WITHOUT_REASON:
            counter.labels(self.instance_key, topic).inc(number)
        else:
            label = reason if reason in REASONS else "unspecified"
            counter.labels(self.instance_key, topic, label).inc(number)

    def observe(self, name: str, seconds: float) -> None:
        """Add to a histogram: claim, deliver, record or end_to_end."""
        self._observers[name].observe(seconds)

    def stats(self, stats: InstanceStats, cash_entries: int, oldest_due_seconds: float) -> None:
        """Set the gauges from what the database says."""
        key, box = self.instance_key, stats.box
        self.due.labels(key, box).set(stats.ready + stats.due + stats.lease_ended)
        self.oldest_due.labels(key, box).set(max(0.0, oldest_due_seconds))
        for state, number in (
            ("dead_letter", stats.dead_letter),
            ("permanent", stats.permanent),
            ("conflict", stats.conflict),
            ("unknown", stats.unknown),
        ):
            self.parked.labels(key, box, state).set(number)
        self.blocked_keys.labels(key, box).set(stats.blocked_keys)
        self.cash_entries.labels(key).set(cash_entries)

    def recorded(self, claim: Claim, report: Report, state: str | None) -> str:
        """Count and log one outcome that is on the books; return the name of its counter.

        `state` is the message's state after it: a parked one decides the counter, so that every
        outcome row and every receipt has exactly one count.
        """
        name, event, level = _after(report.result, state)
        self.count(name, claim, report.reason)
        if _LEVELS[level] >= self._threshold:
            fields: Fields = {
                "result": report.result,
                "topic": claim.topic,
                "correlation": claim.correlation_id,
                "message_id": claim.message_id,
                "attempt": claim.attempt,
                "fence": claim.fence,
            }
            if event not in {Event.DELIVERED, Event.DUPLICATE}:
                fields["reason"] = report.reason
            self._write(event, level, fields)
        if event is Event.PARKED:
            alert = {"unknown": Alert.OUTCOME_UNKNOWN, "conflict": Alert.CONFLICT}.get(name)
            self.alert(alert or Alert.PARKED, reason=report.reason, message_id=claim.message_id)
        return name

    def render(self) -> bytes:
        """Return all metrics as Prometheus text."""
        return generate_latest(self.registry)

    # the rest of the process

    def own_process(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Take over every other way in which this process could print something.

        Log records of libraries, warnings and uncaught exceptions are counted and shown without
        their text. Call once, from a program, never from a library.
        """
        logging.raiseExceptions = False
        logging.lastResort = None
        root = logging.getLogger()
        root.handlers = [_CountOnly(self)]
        root.setLevel(logging.WARNING)
        for name in list(logging.root.manager.loggerDict):
            logger = logging.getLogger(name)
            logger.handlers = []
            logger.propagate = True
        for name in ("httpx", "httpcore", "psycopg", "psycopg.pool", "asyncio", "urllib3"):
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.captureWarnings(capture=True)

        def hook(
            kind: type[BaseException], value: BaseException, trace: TracebackType | None
        ) -> None:
            del value, trace
            if not issubclass(kind, KeyboardInterrupt):
                self.unhandled()

        sys.excepthook = hook
        threading.excepthook = lambda _: self.unhandled()
        sys.unraisablehook = lambda _: self.unhandled()
        if loop is not None:
            loop.set_exception_handler(lambda *_: self.unhandled())

    def unhandled(self) -> None:
        """Say that something failed where nobody caught it, and nothing more."""
        self.unhandled_errors.inc()
        self.event(Event.UNHANDLED, "error")

    # inside

    def _make_metrics(self) -> None:
        # Not `instance`: Prometheus puts the scraped target's address under that name.
        instance, registry = ["trex_instance"], self.registry
        # What daemons of two boxes say about one instance are two numbers, not one said twice.
        box = [*instance, "box"]
        self.counters = {
            name: Counter(
                f"trex_{name}",
                text,
                ["trex_instance", "topic"]
                if name in _WITHOUT_REASON
                else ["trex_instance", "topic", "reason"],
                registry=registry,
            )
            for name, text in COUNTERS.items()
        }
        self.due = Gauge("trex_due", "Messages that could be claimed now.", box, registry=registry)
        self.oldest_due = Gauge(
            "trex_oldest_due_seconds", "Age of the oldest of them.", box, registry=registry
        )
        self.in_flight = Gauge(
            "trex_in_flight", "Claims that this process holds.", instance, registry=registry
        )
        self.parked = Gauge("trex_parked", "Parked messages.", [*box, "state"], registry=registry)
        self.blocked_keys = Gauge(
            "trex_blocked_keys", "Ordering keys behind a parked one.", box, registry=registry
        )
        self.cash_entries = Gauge(
            "trex_pending_cash_entries",
            "Undelivered messages that move cash; they are the outbox's.",
            instance,
            registry=registry,
        )
        self.connected = Gauge(
            "trex_connected", "1 while connected to a primary.", box, registry=registry
        )
        self.histograms = {
            name: Histogram(
                f"trex_{name}_seconds", text, instance, buckets=_BUCKETS, registry=registry
            )
            for name, text in {
                "claim": "One call of claim or exchange.",
                "deliver": "One delivery by the adapter.",
                "record": "One call of record or exchange that recorded something.",
                "end_to_end": "From enqueue to the acknowledged commit of the delivery.",
            }.items()
        }
        self._observers = {
            name: histogram.labels(self.instance_key) for name, histogram in self.histograms.items()
        }
        self.alerts = Counter(
            "trex_alerts", "Alerts raised.", ["trex_instance", "alert"], registry=registry
        )
        self.alerts_not_sent = Counter(
            "trex_alerts_not_sent", "Alerts that the webhook didn't take.", registry=registry
        )
        self.dropped = Counter(
            "trex_telemetry_dropped", "Fields that weren't let through.", registry=registry
        )
        self.library_logs = Counter(
            "trex_library_logs", "Log records of libraries, text dropped.", registry=registry
        )
        self.unhandled_errors = Counter(
            "trex_unhandled_errors", "Exceptions that nobody caught.", registry=registry
        )
        # A series that is born at 1 shows no increase, and the first alert would raise no rule.
        for alert in Alert:
            self.alerts.labels(self.instance_key, alert.value)
        self._last_in_flight = self.in_flight.labels(self.instance_key)

    def holding(self, number: int) -> None:
        """Set the number of claims that this process holds."""
        self._last_in_flight.set(number)

    def is_connected(self, box: Box, *, connected: bool) -> None:
        """Say whether the daemon of this box has a primary."""
        self.connected.labels(self.instance_key, box).set(1 if connected else 0)

    def _topic(self, topic: object) -> str:
        return topic if type(topic) is str and topic in self.topics else OTHER_TOPIC

    def _clean(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return what may be shown of some fields; count the rest."""
        clean: dict[str, Any] = {}
        for name, value in fields.items():
            if name in NUMBERS and type(value) in {int, float} and abs(value) < 2**63:
                clean[name] = round(value, 6) if isinstance(value, float) else value
            elif type(value) is str and value in _WORDS.get(name, ()):
                clean[name] = value
            elif name == "topic":
                clean[name] = self._topic(value)
            elif name == "correlation" and type(value) is str:
                clean[name] = correlation_identity(value)
            elif not (name == "correlation" and value is None):
                self.dropped.inc()
        return clean

    def _write(self, event: Event, level: Level, fields: Mapping[str, Any]) -> dict[str, Any]:
        clean = self._clean(fields)
        shown = {"event": Event(event).value, "instance": self.instance_key, **clean}
        held_back = self._held_back(
            (event.value, str(clean.get("result", "")), str(clean.get("reason", "")))
        )
        if held_back is not None:
            line = {**shown, "dropped": held_back} if held_back else shown
            try:
                self._logger._proxy_to_logger("msg", level=level, **line)
            except (OSError, ValueError):
                self.dropped.inc()
        return shown

    def _held_back(self, key: tuple[str, str, str]) -> int | None:
        """Return how many equal lines were held back since the last one; None: hold this one."""
        now = self._monotonic()
        start, lines = self._lines.get(key, (now, 0))
        if now - start >= _LINE_WINDOW:
            self._lines[key] = (now, 1)
            return max(0, lines - _LINES)
        self._lines[key] = (start, lines + 1)
        return 0 if lines < _LINES else None

    async def _post(
        self, webhook: Callable[[bytes], Awaitable[bool]], shown: Mapping[str, Any]
    ) -> None:
        try:
            taken = await webhook(json.dumps(shown).encode())
        except Exception:  # noqa: BLE001
            taken = False
        if not taken:
            self.alerts_not_sent.inc()
            self.event(Event.ALERT_NOT_SENT, "warning")


_WITHOUT_REASON: Final = frozenset({"claimed", "delivered", "duplicate"})


def _after(result: str, state: str | None) -> tuple[str, Event, Level]:
    """Return counter, event and level for a recorded outcome."""
    match result:
        case "completed":
            return "delivered", Event.DELIVERED, "debug"
        case "duplicate":
            return "duplicate", Event.DUPLICATE, "info"
        case _ if state in PARKED_STATES:
            name = "dead_lettered" if state == "dead_letter" else str(state)
            return name, Event.PARKED, "error"
        case "unknown":
            return "unknown", Event.UNKNOWN, "warning"
        case "released":
            return "released", Event.RELEASED, "debug"
        case "postponed":
            return "postponed", Event.POSTPONED, "info"
        case _:
            return "retried", Event.RETRIED, "warning"


class _CountOnly(logging.Handler):
    """Counts the log records of libraries; looks at nothing but their level."""

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__()
        self._telemetry = telemetry

    def emit(self, record: logging.LogRecord) -> None:
        self._telemetry.library_logs.inc()
        self._telemetry.event(Event.LIBRARY_LOG, "debug", severity=record.levelno)


def webhook_poster(
    url: str,
    timeout: timedelta,
    networks: Sequence[str] = (),
    *,
    resolve: Resolve | None = None,
) -> Callable[[bytes], Awaitable[bool]]:
    """Return a webhook for `Telemetry`: POST to an https URL (http only to this machine).

    It connects where an HTTP adapter may: to public addresses, and to private ones in `networks`
    such as `10.1.0.0/16`. No redirect is followed, no proxy used, and only the status is read.

    Raises:
        ConfigError: URL or networks aren't like that.
    """
    import httpcore

    from trex_client.adapters.network import AddressRule, GuardedBackend, parse_networks, parse_url

    target = parse_url(url, "alert webhook")
    rule = AddressRule(parse_networks(networks, "alert networks"))
    backend = GuardedBackend(rule, resolve) if resolve else GuardedBackend(rule)
    address = httpcore.URL(
        scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
    )
    headers = [(b"Host", target.netloc), (b"Content-Type", b"application/json")]

    async def post(body: bytes) -> bool:
        async with (
            asyncio.timeout(timeout.total_seconds()),
            httpcore.AsyncConnectionPool(
                ssl_context=ssl.create_default_context(), network_backend=backend
            ) as pool,
            pool.stream(
                "POST",
                address,
                headers=[*headers, (b"Content-Length", str(len(body)).encode())],
                content=body,
            ) as answer,
        ):
            return 200 <= answer.status < 300

    return post
