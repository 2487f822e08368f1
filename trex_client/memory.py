"""The in-memory simulation of the SQL functions: the specification that a reader checks against
`sql/functions`.

Same names, arguments, errors, order of checks and clock rule; a rule that is a function in SQL is
the function of the same name here. It is the oracle of the tests, the model that the simulator
runs, and a mock for users:

    db = MemoryDatabase()
    shop = MemoryClient(db, "shop", role="app")
    shop.register_instance(actor="me", reason="test")
    shop.bind("app", actor="me", reason="test")
    with db.transaction():
        shop.enqueue("payout", "order-1", {"n": 1})

Thread-safe: one call at a time, and a transaction holds the database until it ends. It can't show
privileges (which role may call which function), plans, row locks, what others see of a transaction
that is still open, isolation levels, or notifications; `hold` sets no timeout.
"""

# ruff: noqa: S101 - assert narrows a type
from __future__ import annotations

import hashlib
import json
import re
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache, wraps
from itertools import pairwise
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

from trex_client._calls import Calls, each, is_too_deep, refused
from trex_client._values import is_key
from trex_client.errors import (
    AccessDenied,
    ClaimLost,
    DatabaseError,
    EndedOtherwise,
    Forbidden,
    InvalidArgument,
    InvariantViolated,
    KeyReused,
    NotFound,
    NotPrimary,
    TrexError,
    WrongTransaction,
)
from trex_client.model import (
    BOXES,
    CONFIRMED_BY,
    EFFECT_POLICIES,
    REASONS,
    RESULTS,
    Box,
    Cash,
    Claim,
    ConfirmedBy,
    EffectPolicy,
    Enqueued,
    EnqueueStatus,
    Exchange,
    Extended,
    InstancePolicy,
    InstanceStats,
    MessageStatus,
    Movement,
    OnConflict,
    OnLost,
    Operated,
    Parked,
    ParkedMessage,
    Pending,
    Purged,
    Recorded,
    RecordStatus,
    Report,
    Resolution,
    Result,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trex_client.api import Trex

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound="MemoryKernel")

INFINITY = datetime.max.replace(tzinfo=UTC)
"""'infinity' of `deferred_until`: parked, or waiting behind an earlier message of the ordering
key."""
_READY = datetime.min.replace(tzinfo=UTC)
_LAST_ID = 2**63 - 1
_ZERO = timedelta(0)
_LEAST = timedelta(milliseconds=100)
_DAY = timedelta(days=1)
_MOST_DELAY = timedelta(days=30)
_MICROSECOND = timedelta(microseconds=1)


# Values


_CONTROL = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
_BLANK = " \u00a0\u1680\u2000-\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
_SLUG = re.compile("[a-z0-9][a-z0-9._:-]{0,62}").fullmatch
_TEXT = re.compile(f"(?=.*[^{_BLANK}])[^{_CONTROL}]{{1,1000}}", re.DOTALL).fullmatch
_STUCK = re.compile("[\x00\ud800-\udfff]").search
_CURRENCY = re.compile("[A-Z][A-Z0-9]{2,11}").fullmatch


def _is_slug(value: object) -> bool:
    return isinstance(value, str) and _SLUG(value) is not None


_is_key = is_key


def _is_text(value: object) -> bool:
    return isinstance(value, str) and _TEXT(value) is not None


def _is_after(value: object, most: int) -> bool:
    """The place where a page of text ids begins: any text that can travel."""
    return isinstance(value, str) and len(value) <= most and _STUCK(value) is None


def _is_currency(value: object) -> bool:
    return isinstance(value, str) and _CURRENCY(value) is not None


def _is_reason(value: object) -> bool:
    return isinstance(value, str) and value in REASONS


def _is_role(value: object) -> bool:
    return _is_key(value) and len(str(value).encode()) <= 63


def _is_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_duration(value: object, least: timedelta, most: timedelta) -> bool:
    return isinstance(value, timedelta) and least <= value <= most


def _is_time(value: object) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


_WIDE = Context(prec=60, traps=[])


def _is_number(value: object) -> bool:
    """An exact, finite number: no float, no bool."""
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) and not isinstance(value, bool)


def _amount(value: Decimal | int, exponent: int) -> Decimal | None:
    """The amount with exactly the currency's decimals, or None when it doesn't fit them or 38
    digits."""
    exact = Decimal(value)
    if exact and exact.adjusted() >= 38 - exponent:
        return None
    rounded = exact.quantize(Decimal((0, (1,), -exponent)), context=_WIDE)
    if rounded != exact:
        return None
    return rounded if rounded else abs(rounded)


# JSON


def _canonical(value: object) -> str:
    """The text that PostgreSQL prints for this value as jsonb.

    Keys once (the last wins), ordered by length in bytes, then by bytes. Numbers keep their
    decimals, as numeric does, so 1, 1.0 and 1.00 are three contents.
    """
    if isinstance(value, str):
        if "\x00" in value:
            raise InvalidArgument("payload")
        return encode_basestring(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, float):
        return _number(Decimal(float.__repr__(value)))
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgument("payload")
        pairs = sorted(value.items(), key=_key_order)
        return "{" + ", ".join([f"{_canonical(k)}: {_canonical(v)}" for k, v in pairs]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([_canonical(item) for item in value]) + "]"
    raise InvalidArgument("payload")


def _key_order(item: tuple[str, object]) -> tuple[int, bytes]:
    key = item[0].encode()
    return len(key), key


def _number(value: Decimal) -> str:
    """As numeric prints it: no exponent, no negative zero; at most 131,072 digits before and 16,383
    after the point."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not -16383 <= exponent < 2**30 - 1:
        raise InvalidArgument("payload")
    if value.adjusted() > 131071:
        raise InvalidArgument("payload")
    return format(value if value else abs(value), "f")


def _not_json(_: str) -> object:
    raise InvalidArgument("payload")


def canonical_json(
    payload: Any = None, payload_json: str | None = None, name: str = "payload"
) -> str:
    """The canonical jsonb text of JSON data or of JSON text; exactly one of the two.

    `payload_json="null"` is the JSON null; `payload=None` is no payload.
    """
    if (payload is None) == (payload_json is None):
        raise InvalidArgument(name)
    try:
        if payload_json is None:
            text = _canonical(payload)
            text.encode()
            if is_too_deep(text):
                raise InvalidArgument(name)
        elif not isinstance(payload_json, str):
            raise InvalidArgument(f"{name}_json")
        elif is_too_deep(payload_json):
            raise InvalidArgument(name)
        elif len(payload_json) <= 256:
            text = _canonical_short(payload_json)
        else:
            text = _canonical_text(payload_json)
    except (ValueError, ArithmeticError, RecursionError):
        pass
    else:
        return text
    # Outside of `except`, or the error would carry one that has the payload in it.
    raise InvalidArgument(name)


def _canonical_text(text: str) -> str:
    value = json.loads(
        text,
        parse_float=Decimal,
        parse_int=Decimal,
        parse_constant=_not_json,
        object_pairs_hook=_object,
    )
    canonical = _canonical(value)
    canonical.encode()
    return canonical


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The last value of a key wins, and the others must be good as well."""
    result = dict(pairs)
    if len(result) < len(pairs):
        for _, value in pairs:
            _canonical(value).encode()
    return result


_canonical_short = lru_cache(maxsize=4096)(_canonical_text)


# Rules


def _backoff(
    message_id: int, attempt: int, tries: int, base: timedelta, cap: timedelta
) -> timedelta:
    """base * 2^(tries - 1), capped, half of it jittered; in whole microseconds and from the ids
    alone."""
    most = cap // _MICROSECOND
    full = min(base // _MICROSECOND << min(max(tries - 1, 0), 30), most)
    half = full // 2
    digest = ((message_id % 2147483648) * 1103515245 + attempt * 12345) % 2147483648
    return timedelta(microseconds=full - half + half * (digest >> 11) // 1048576)


Kind = Literal[
    "retry", "unknown", "conflict", "permanent", "dead_letter", "released", "postponed",
    "lease_expired",
]  # fmt: skip


def _settle(
    kind: Kind,
    policy: EffectPolicy,
    uncertain: bool,
    sent: bool,
    tries: int,
    max_attempts: int,
    absent: bool,
    park: bool,
) -> tuple[Parked | None, bool, int]:
    """What becomes of a message whose claim ended without a delivery: (parked, uncertain, tries).

    Uncertain is sticky: only certain absence or a conflict answer clears it. An uncertain
    at_most_once message, and any uncertain one whose allowance is used up, can only be parked as
    unknown.
    """
    once = policy == "at_most_once"
    if kind == "unknown":
        uncertain = True
    elif kind == "conflict":
        uncertain = False
    elif kind == "lease_expired":
        uncertain = uncertain or not once or sent
    else:
        uncertain = uncertain and not absent
    # An at_most_once sink was called: never again without an operator, unless the answer was final.
    called = once and sent and kind in ("retry", "released", "postponed")
    if called and not absent:
        uncertain = True
    if kind in ("released", "postponed"):
        tries -= 1
    parked: Parked | None = None
    if kind == "conflict":
        parked = "conflict"
    elif uncertain and once:
        parked = "unknown"
    elif kind == "permanent":
        parked = "permanent"
    elif kind == "dead_letter":
        parked = "unknown" if uncertain else "dead_letter"
    elif called:
        parked = "dead_letter"
    elif kind == "unknown" and park:
        parked = "unknown"
    elif kind in ("retry", "unknown", "lease_expired") and tries >= max_attempts:
        parked = "unknown" if uncertain else "dead_letter"
    return parked, uncertain, tries


def _state(
    parked: Parked | None,
    lease_until: datetime | None,
    deferred_until: datetime | None,
    now: datetime,
) -> State:
    if parked is not None:
        return parked
    if lease_until is not None:
        return "leased" if lease_until > now else "lease_ended"
    if deferred_until == INFINITY:
        return "waiting"
    if deferred_until is not None and deferred_until > now:
        return "deferred"
    return "ready"


# Tables: rows named and ordered like the columns in `sql/migrations`.


@dataclass(slots=True)
class InstanceRow:
    instance_key: str
    paused: bool
    max_attempts: int
    lease_default: timedelta
    lease_max: timedelta
    backoff_base: timedelta
    backoff_cap: timedelta
    on_parked: Literal["block", "continue"]
    wake: bool
    payload_max: int
    registered_at: datetime


@dataclass(slots=True)
class BindingRow:
    instance_key: str
    role_name: str
    bound_at: datetime


@dataclass(slots=True)
class MessageRow:
    instance_key: str
    message_id: int
    box: Box
    topic: str
    idempotency_key: str
    correlation_id: str | None
    ordering_key: str | None
    account: str | None
    currency: str | None
    cash_delta: Decimal | None
    payload: str | None
    digest: bytes
    effect_policy: EffectPolicy
    enqueued_at: datetime


@dataclass(slots=True, eq=False)
class DeliveryRow:
    instance_key: str
    message_id: int
    box: Box
    ordering_key: str | None
    deferred_until: datetime | None
    lease_until: datetime | None = None
    worker: str | None = None
    fence: int = 0
    attempts: int = 0
    tries: int = 0
    sent_fence: int | None = None
    uncertain: bool = False
    parked: Parked | None = None
    abandoned: bool = False


@dataclass(slots=True)
class ReceiptRow:
    instance_key: str
    message_id: int
    fence: int
    attempt: int
    duplicate: bool
    late: bool
    confirmed_by: ConfirmedBy
    reference: str | None
    delivered_at: datetime


@dataclass(slots=True)
class OutcomeRow:
    instance_key: str
    message_id: int
    fence: int
    attempt: int
    kind: Kind
    state: State
    reason: str
    late: bool
    recorded_at: datetime


@dataclass(slots=True)
class StaleReportRow:
    instance_key: str
    message_id: int
    fence: int
    result: Result
    reported_at: datetime


@dataclass(slots=True)
class ListenerRow:
    instance_key: str
    worker: str
    until: datetime


@dataclass(slots=True)
class SnapshotRow:
    instance_key: str
    account: str
    currency: str
    balance: Decimal
    version: int
    message_id: int
    fence: int
    ignored: int
    contradicted: int
    stored_at: datetime


@dataclass(slots=True)
class SkipRow:
    instance_key: str
    message_id: int
    account: str | None
    currency: str | None
    cash_delta: Decimal | None
    parked: Parked
    reason: str
    opened_at: datetime
    resolved_at: datetime | None = None
    resolved_fence: int | None = None


@dataclass(slots=True)
class QuarantineRow:
    quarantine_id: int
    source: str
    source_key: str
    instance_key: None = None
    topic: str | None = None
    idempotency_key: str | None = None
    correlation_id: str | None = None
    account: str | None = None
    currency: str | None = None
    cash_delta: Decimal | None = None
    payload: str | None = None
    source_state: str | None = None
    source_attempts: int | None = None
    occurred_at: datetime | None = None
    imported_at: datetime | None = None
    adopted_message_id: int | None = None
    adopted_at: datetime | None = None


@dataclass(slots=True)
class AuditRow:
    audit_id: int
    instance_key: str | None
    action: str
    message_id: int | None
    actor: str
    reason: str
    detail: str
    role_name: str
    at: datetime


@dataclass(slots=True)
class EpochRow:
    singleton: bool
    epoch: int
    postmaster_start: int | None


@dataclass(slots=True)
class CurrencyRow:
    currency: str
    exponent: int


_CURRENCIES = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: (
        "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP "
        "BYN BZD CAD CDF CHE CHF CHW CNY COP COU CRC CUC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR "
        "FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW "
        "KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN "
        "NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD "
        "SHP SLE SLL SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU "
        "UZS VED VES WST XCD XCG YER ZAR ZMW ZWG ZWL"
    ),
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
    6: "USDC USDT SOLUSD XRP ADA",
    8: "BTC BCH LTC DOGE",
    9: "SOL",
    18: "ETH DAI",
}


_CURRENCY_ROWS = {
    code: CurrencyRow(code, exponent)
    for exponent, codes in _CURRENCIES.items()
    for code in codes.split()
}


class Clock:
    """A clock that stands still until it is moved; to the microsecond, in UTC."""

    def __init__(self, at: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._at = at.astimezone(UTC)

    def __call__(self) -> datetime:
        return self._at

    def advance(self, by: timedelta) -> datetime:
        """Move by `by` (backwards if it is negative) and return the new time."""
        self._at += by
        return self._at

    def set(self, at: datetime) -> datetime:
        self._at = at.astimezone(UTC)
        return self._at


def _system_clock() -> datetime:
    return datetime.now(UTC)


Key = tuple[str, int]


class MemoryDatabase:
    """The tables of all instances, one clock, one lock.

    `now` is the only clock (`trex._now()`): any callable that returns an aware datetime; assign it,
    or give `clock`. `standby = True` makes writers raise `NotPrimary`. Tables are dicts by primary
    key, named as in SQL.
    """

    def __init__(self, clock: Callable[[], datetime] = _system_clock) -> None:
        self.now = clock
        self.standby = False
        self.currency = _CURRENCY_ROWS.copy()
        self.epoch = EpochRow(singleton=True, epoch=0, postmaster_start=None)
        self.instance: dict[str, InstanceRow] = {}
        self.binding: dict[tuple[str, str], BindingRow] = {}
        self.message: dict[Key, MessageRow] = {}
        self.delivery: dict[Key, DeliveryRow] = {}
        self.lane: dict[tuple[str, Box, str], None] = {}
        self.receipt: dict[Key, ReceiptRow] = {}
        self.outcome: dict[tuple[str, int, int], OutcomeRow] = {}
        self.stale_report: dict[tuple[str, int, int, str], StaleReportRow] = {}
        self.listener: dict[tuple[str, str], ListenerRow] = {}
        self.ledger_snapshot: dict[tuple[str, str, str], SnapshotRow] = {}
        self.ledger_skip: dict[Key, SkipRow] = {}
        self.quarantine: dict[int, QuarantineRow] = {}
        self.audit: dict[int, AuditRow] = {}
        # Indexes. delivery_claim and delivery_lane are sorted lists, as their B-trees are.
        self.message_key: dict[tuple[str, Box, str], int] = {}
        self.outcome_fences: dict[Key, list[int]] = {}
        self.message_correlation: dict[tuple[str, str], list[int]] = {}
        self.delivery_claim: dict[tuple[str, Box], list[tuple[datetime, int]]] = {}
        self.delivery_lane: dict[tuple[str, Box, str], list[int]] = {}
        # Sequences: what was drawn is never given back.
        self.message_id_seq = 0
        self.fence_seq = 0
        self.audit_id_seq = 0
        self.quarantine_id_seq = 0
        self._postmaster_start = 1
        self._extensions: dict[type[Any], Any] = {}
        self._lock = threading.RLock()
        self._undo: list[tuple[Any, ...]] | None = None
        self._failed = False

    def _now(self) -> datetime:
        """The only clock, read once by each function."""
        at = self.now()
        return at if at.tzinfo is UTC else at.astimezone(UTC)

    def extension(self, kind: type[R]) -> R:
        """The tables of a part that builds on the kernel: one `kind()` for each database."""
        if kind not in self._extensions:
            self._extensions[kind] = kind()
        tables: R = self._extensions[kind]
        return tables

    def restart(self) -> None:
        """As a restarted server: the next claim raises the epoch."""
        with self._lock:
            self._postmaster_start += 1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing: an exception that leaves the block undoes what was done in it; a block
        inside another is a savepoint. As in PostgreSQL, a call that raised spoils the transaction
        up to the savepoint around it."""
        with self._lock:
            outer = self._undo
            if outer is None:
                self._undo = []
            elif self._failed:
                raise DatabaseError("25P02")
            mark = len(self._undo or ())
            try:
                yield
                if self._failed:
                    self._rollback(mark)
                    if outer is not None:
                        raise DatabaseError("25P02")
            except BaseException:
                self._rollback(mark)
                raise
            finally:
                if outer is None:
                    self._undo = None

    def _rollback(self, mark: int) -> None:
        undo, self._undo = self._undo, None
        assert undo is not None
        while len(undo) > mark:
            entry = undo.pop()
            entry[0](*entry[1:])
        self._undo = undo
        self._failed = False

    # Every write goes through these, so that a transaction can be undone.

    def put(self, table: dict[Any, Any], key: object, row: object) -> None:
        """Insert a row that isn't there."""
        table[key] = row
        if self._undo is not None:
            self._undo.append((table.pop, key))

    def drop(self, table: dict[Any, Any], key: object) -> None:
        """Delete a row."""
        row = table.pop(key)
        if self._undo is not None:
            self._undo.append((table.__setitem__, key, row))

    def change(self, row: Any) -> None:
        """To be called before columns of a row are assigned to."""
        if self._undo is not None:
            self._undo.append((_restore, row, copy(row)))

    def put_message(self, row: MessageRow) -> None:
        self.put(self.message, (row.instance_key, row.message_id), row)
        self.put(self.message_key, (row.instance_key, row.box, row.idempotency_key), row.message_id)
        if row.correlation_id is not None:
            ids = self.message_correlation.setdefault((row.instance_key, row.correlation_id), [])
            ids.append(row.message_id)
            if self._undo is not None:
                self._undo.append((ids.pop,))

    def put_outcome(self, row: OutcomeRow) -> None:
        self.put(self.outcome, (row.instance_key, row.message_id, row.fence), row)
        fences = self.outcome_fences.setdefault((row.instance_key, row.message_id), [])
        fences.append(row.fence)
        if self._undo is not None:
            self._undo.append((fences.pop,))

    def put_delivery(self, row: DeliveryRow) -> None:
        self.delivery[row.instance_key, row.message_id] = row
        claim = self.delivery_claim.setdefault((row.instance_key, row.box), [])
        insort(claim, (row.deferred_until or _READY, row.message_id))
        if row.ordering_key is not None:
            lane = (row.instance_key, row.box, row.ordering_key)
            insort(self.delivery_lane.setdefault(lane, []), row.message_id)
        if self._undo is not None:
            self._undo.append((self.drop_delivery, row))

    def drop_delivery(self, row: DeliveryRow) -> None:
        del self.delivery[row.instance_key, row.message_id]
        claim = self.delivery_claim[row.instance_key, row.box]
        del claim[bisect_left(claim, (row.deferred_until or _READY, row.message_id))]
        if row.ordering_key is not None:
            lane = self.delivery_lane[row.instance_key, row.box, row.ordering_key]
            del lane[bisect_left(lane, row.message_id)]
        if self._undo is not None:
            self._undo.append((self.put_delivery, row))

    def defer(self, row: DeliveryRow, until: datetime) -> None:
        """Set `deferred_until`, which the claim index is sorted by."""
        self._reindex(row, until)

    def _reindex(self, row: DeliveryRow, until: datetime | None) -> None:
        before = row.deferred_until
        if before == until:
            return
        claim = self.delivery_claim[row.instance_key, row.box]
        del claim[bisect_left(claim, (before or _READY, row.message_id))]
        insort(claim, (until or _READY, row.message_id))
        row.deferred_until = until
        if self._undo is not None:
            self._undo.append((self._reindex, row, before))

    def quarantined(self, source: str, source_key: str, **columns: Any) -> int:
        """Bring in a row of an older outbox, as `sql/legacy/import.psql` does; the id to adopt it
        by."""
        with self._lock:
            self.quarantine_id_seq += 1
            columns.setdefault("imported_at", self._now())
            row = QuarantineRow(self.quarantine_id_seq, source, source_key, **columns)
            self.put(self.quarantine, row.quarantine_id, row)
            return row.quarantine_id

    def dump(self) -> dict[str, list[dict[str, object]]]:
        """All tables as plain data, rows in the order of the primary key; a new one each time.

        Payloads and details are canonical jsonb text, 'infinity' is a string. Left out: the
        server's start time.
        """
        with self._lock:
            tables: dict[str, list[dict[str, object]]] = {
                name: [_plain(row) for _, row in sorted(getattr(self, name).items())]
                for name in _DUMPED
            }
            tables["lane"] = [
                {"instance_key": instance, "box": box, "ordering_key": key}
                for instance, box, key in sorted(self.lane)
            ]
            tables["epoch"] = [{"singleton": True, "epoch": self.epoch.epoch}]
            for kind in EXTENSIONS:
                for name, table in vars(self.extension(kind)).items():
                    tables[name] = [_plain(row) for _, row in sorted(table.items())]
            return tables


EXTENSIONS: list[type[Any]] = []
"""Tables of the parts that build on the kernel: each attribute of such a class is a table."""

_DUMPED = (
    "currency", "instance", "binding", "message", "delivery", "receipt", "outcome", "stale_report",
    "listener", "ledger_snapshot", "ledger_skip", "quarantine", "audit",
)  # fmt: skip


def _plain(row: Any) -> dict[str, object]:
    values = {name: getattr(row, name) for name in row.__slots__}
    if values.get("deferred_until") == INFINITY:
        values["deferred_until"] = "infinity"
    return values


def _restore(row: Any, saved: Any) -> None:
    for name in row.__slots__:
        setattr(row, name, getattr(saved, name))


# Arguments


def _require(ok: bool, name: str) -> None:
    if not ok:
        raise InvalidArgument(name)


def _check_on(value: object, name: str) -> None:
    _require(value in ("raise", "report"), name)


def _check_act(actor: object, reason: object) -> None:
    _require(_is_key(actor), "actor")
    _require(_is_text(reason), "reason")


def _check_sequence(values: object, most: int, kind: type, name: str) -> None:
    _require(isinstance(values, Sequence) and not isinstance(values, (str, bytes)), name)
    assert isinstance(values, Sequence)
    _require(len(values) <= most and all(isinstance(value, kind) for value in values), name)


def _check_ids(message_ids: Sequence[int]) -> None:
    _check_sequence(message_ids, 1000, int, "message_ids")
    _require(all(_is_integer(i, 1, _LAST_ID) for i in message_ids), "message_ids")
    _require(len(set(message_ids)) == len(message_ids), "message_ids")


def _check_payload(instance: InstanceRow, message: MessageRow) -> None:
    text = message.payload or ""
    if len(text) * 4 > instance.payload_max:
        _require(len(text.encode()) <= instance.payload_max, "payload")


def _check_report(r: Report) -> None:
    """Each argument in its range, and only those that the result takes (defaults aside)."""
    _require(_is_integer(r.message_id, 1, _LAST_ID), "message_id")
    _require(_is_integer(r.fence, 1, _LAST_ID), "fence")
    result = r.result
    _require(result in RESULTS, "result")
    _require(isinstance(r.absent, bool), "absent")
    _require(isinstance(r.park, bool), "park")
    if result in ("completed", "duplicate"):
        _require(r.reason == "unspecified", "reason")
        _require(r.delay is None, "delay")
        _require(not r.absent, "absent")
        _require(not r.park, "park")
        _require(r.confirmed_by in CONFIRMED_BY and r.confirmed_by != "operator", "confirmed_by")
        _require(r.reference is None or _is_key(r.reference), "reference")
        _require((r.balance is None) == (r.version is None), "balance")
        if r.balance is not None:
            _require(_is_number(r.balance), "balance")
            _require(not r.balance or Decimal(r.balance).adjusted() < 38, "balance")
            _require(_is_integer(r.version, 0, _LAST_ID), "version")
        return
    _require(_is_reason(r.reason), "reason")
    _require(not r.absent or result not in ("unknown", "conflict"), "absent")
    _require(not r.park or result == "unknown", "park")
    if r.delay is not None:
        _require(result in ("retry", "unknown", "postponed"), "delay")
        _require(_is_duration(r.delay, _ZERO, _MOST_DELAY), "delay")
    else:
        _require(result != "postponed", "delay")
    _require(r.confirmed_by == "answer", "confirmed_by")
    _require(r.reference is None, "reference")
    _require(r.balance is None and r.version is None, "balance")


def _check_reports(reports: Sequence[Report]) -> None:
    _check_sequence(reports, 1000, Report, "reports")
    each("report", reports, _check_report)
    _require(len({r.message_id for r in reports}) == len(reports), "reports")


def _call(
    function: Callable[Concatenate[K, P], R],
) -> Callable[Concatenate[K, P], R]:
    """One call at a time; one that raised inside a transaction spoils it, unless the client would
    have refused it before it sent anything."""
    name = function.__name__

    @wraps(function)
    def call(self: K, /, *args: P.args, **kwargs: P.kwargs) -> R:
        db = self.db
        with db._lock:
            if db._undo is None:
                return function(self, *args, **kwargs)
            statement, _ = getattr(self._calls, name)(*args, **kwargs)
            if statement.own:
                raise WrongTransaction
            if db._failed:
                raise DatabaseError("25P02")
            try:
                return function(self, *args, **kwargs)
            except TrexError:
                db._failed = True
                raise

    return call


class MemoryKernel:
    """Outbox, claims, outcomes, reads and operators. Checks come first, so a call that raises has
    changed nothing."""

    def __init__(self, db: MemoryDatabase, instance_key: str, role: str = "app") -> None:
        _require(_is_slug(instance_key), "instance_key")
        _require(_is_role(role), "role")
        self.db = db
        self.role = role
        self._instance_key = instance_key
        self._calls = Calls(instance_key)

    @property
    def instance_key(self) -> str:
        return self._instance_key

    def transaction(self) -> Any:
        """The caller's transaction: `with client.transaction(): ...`; see
        `MemoryDatabase.transaction`."""
        return self.db.transaction()

    # internal

    def _enter(self) -> InstanceRow:
        """The caller's role must be bound to the instance, by exact name."""
        if (self._instance_key, self.role) not in self.db.binding:
            raise AccessDenied(
                "instance unknown or not bound to the calling role: register and bind it"
            )
        return self.db.instance[self._instance_key]

    def _durable(self) -> None:
        if self.db.standby:
            raise NotPrimary

    def _epoch(self) -> int:
        """The high bits of every fence: they rise when the server isn't the one that drew the
        last."""
        epoch = self.db.epoch
        if epoch.postmaster_start != self.db._postmaster_start:
            self.db.change(epoch)
            epoch.epoch += 1
            epoch.postmaster_start = self.db._postmaster_start
        return epoch.epoch << 42

    def _duration(self, instance: InstanceRow, lease: timedelta | None) -> timedelta:
        if lease is None:
            return instance.lease_default
        _require(lease <= instance.lease_max, "lease")
        return lease

    # outbox: write

    @_call
    def enqueue(
        self,
        topic: str,
        idempotency_key: str,
        payload: Any = None,
        *,
        payload_json: str | None = None,
        account: str | None = None,
        currency: str | None = None,
        cash_delta: Decimal | int | None = None,
        correlation_id: str | None = None,
        ordering_key: str | None = None,
        effect_policy: EffectPolicy = "idempotent",
        delay: timedelta | None = None,
        on_conflict: OnConflict = "raise",
    ) -> Enqueued:
        message = self._message(
            topic, idempotency_key, payload, payload_json, account, currency, cash_delta,
            correlation_id, ordering_key, effect_policy, delay,
        )  # fmt: skip
        _check_on(on_conflict, "on_conflict")
        self._durable()
        _check_payload(self._enter(), message)
        return self._enqueue([message], [delay], on_conflict)[0]

    @_call
    def enqueue_many(
        self, movements: Sequence[Movement], *, on_conflict: OnConflict = "raise"
    ) -> list[Enqueued]:
        _check_sequence(movements, 10_000, Movement, "movements")
        messages = each(
            "movement",
            movements,
            lambda m: self._message(
                m.topic, m.idempotency_key, m.payload, m.payload_json, m.account, m.currency,
                m.cash_delta, m.correlation_id, m.ordering_key, m.effect_policy, m.delay,
            ),
        )  # fmt: skip
        _check_on(on_conflict, "on_conflict")
        self._durable()
        instance = self._enter()
        each("movement", messages, lambda message: _check_payload(instance, message))
        return self._enqueue(messages, [m.delay for m in movements], on_conflict)

    def _message(
        self,
        topic: str | None,
        idempotency_key: str | None,
        payload: Any,
        payload_json: str | None,
        account: str | None,
        currency: str | None,
        cash_delta: Decimal | int | None,
        correlation_id: str | None,
        ordering_key: str | None,
        effect_policy: EffectPolicy,
        delay: timedelta | None,
    ) -> MessageRow:
        """The checked arguments as a row that has no id and no time yet."""
        _require(_is_slug(topic), "topic")
        _require(_is_key(idempotency_key), "idempotency_key")
        assert topic is not None
        assert idempotency_key is not None
        text = canonical_json(payload, payload_json)
        amount = None
        if account is not None or currency is not None or cash_delta is not None:
            _require(_is_key(account), "account")
            _require(currency is not None, "currency")
            _require(cash_delta is not None, "cash_delta")
            _require(isinstance(currency, str) and currency in self.db.currency, "currency")
            _require(cash_delta is not None and _is_number(cash_delta), "cash_delta")
            assert currency is not None
            assert cash_delta is not None
            amount = _amount(cash_delta, self.db.currency[currency].exponent)
            _require(amount is not None, "cash_delta")
        _require(correlation_id is None or _is_key(correlation_id), "correlation_id")
        _require(ordering_key is None or _is_key(ordering_key), "ordering_key")
        _require(effect_policy in EFFECT_POLICIES, "effect_policy")
        _require(delay is None or _is_duration(delay, _ZERO, _MOST_DELAY), "delay")
        return MessageRow(
            self._instance_key, 0, "outbox", topic, idempotency_key, correlation_id, ordering_key,
            account, currency, amount, text, hashlib.sha256(text.encode()).digest(), effect_policy,
            _READY,
        )  # fmt: skip

    def _enqueue(
        self,
        messages: list[MessageRow],
        delays: list[timedelta | None],
        on_conflict: OnConflict,
        *,
        uncertain: bool = False,
    ) -> list[Enqueued]:
        """Insert what is new. A key that exists, in the table or earlier in the call, is a
        duplicate or a conflict; it uses up an id as well."""
        db = self.db
        now = db._now()
        first: dict[str, MessageRow] = {}
        known: list[MessageRow | None] = []
        conflict: int | None = None
        for number, message in enumerate(messages, 1):
            db.message_id_seq += 1
            message.message_id = db.message_id_seq
            message.enqueued_at = now
            key = message.idempotency_key
            existing: MessageRow | None = first.get(key)
            if existing is None:
                stored = db.message_key.get((message.instance_key, message.box, key))
                if stored is None:
                    first[key] = message
                else:
                    existing = db.message[message.instance_key, stored]
            if existing is not None and conflict is None and not _same(existing, message):
                conflict = number
            known.append(existing)
        if conflict is not None and on_conflict == "raise":
            raise KeyReused(f"movement {conflict}" if len(messages) > 1 else None)
        for message in messages:
            if message.ordering_key is not None:
                lane = (message.instance_key, message.box, message.ordering_key)
                if lane not in db.lane:
                    db.put(db.lane, lane, None)
        result = []
        for message, delay, existing in zip(messages, delays, known, strict=True):
            if existing is not None:
                status: EnqueueStatus = "duplicate" if _same(existing, message) else "conflict"
                result.append(Enqueued(existing.message_id, status))
                continue
            db.put_message(message)
            delivery = DeliveryRow(
                message.instance_key, message.message_id, message.box, message.ordering_key,
                None if delay is None else now + delay, uncertain=uncertain,
            )  # fmt: skip
            db.put_delivery(delivery)
            result.append(Enqueued(message.message_id, "enqueued"))
        return result

    # claim

    @_call
    def claim(
        self,
        worker: str,
        limit: int = 1,
        *,
        lease: timedelta | None = None,
        box: Box = "outbox",
        correlation_id: str | None = None,
        after: int = 0,
        due_after: datetime | None = None,
    ) -> list[Claim]:
        self._check_claim(worker, limit, lease, box, after, due_after)
        _require(correlation_id is None or _is_key(correlation_id), "correlation_id")
        self._durable()
        instance = self._enter()
        lease = self._duration(instance, lease)
        now = self.db._now()
        return self._claim(
            instance, worker, limit, lease, box, correlation_id, after, due_after, now
        )

    def _check_claim(
        self,
        worker: str,
        limit: int,
        lease: timedelta | None,
        box: Box,
        after: int,
        due_after: datetime | None,
    ) -> None:
        _require(_is_key(worker), "worker")
        _require(_is_integer(limit, 1, 1000), "limit")
        _require(lease is None or _is_duration(lease, _LEAST, _DAY), "lease")
        _require(box in BOXES, "box")
        _require(_is_integer(after, 0, _LAST_ID), "after")
        _require(due_after is None or _is_time(due_after), "due_after")

    def _claim(
        self,
        instance: InstanceRow,
        worker: str,
        limit: int,
        lease: timedelta,
        box: Box,
        correlation_id: str | None,
        after: int,
        due_after: datetime | None,
        now: datetime,
    ) -> list[Claim]:
        """Take, and hand out in order of time; a correlation's in order of id."""
        rows = self._take(
            instance, worker, limit, lease, box, correlation_id, after, due_after, now
        )  # fmt: skip
        if len(rows) > 1:
            rows.sort(key=_due_first if correlation_id is None else _message_id)
        return [self._claimed(row) for row in rows]

    def _take(
        self,
        instance: InstanceRow,
        worker: str,
        limit: int,
        lease: timedelta,
        box: Box,
        correlation_id: str | None,
        after: int,
        due_after: datetime | None,
        now: datetime,
    ) -> list[DeliveryRow]:
        """Rounds of: pick rows, lease those that need no look, sift the others and lease what is
        left of them. Due rows get half of the first round, ready ones the rest; further rounds
        belong to due rows first."""
        if instance.paused:
            return []
        epoch = self._epoch()
        until = now + lease
        taken: list[DeliveryRow] = []
        left: set[int] = set()
        moved = 0
        # One row a call: due and ready take turns, told by the last fence drawn.
        share = (limit + 1) // 2 if limit > 1 else 1 - self.db.fence_seq % 2
        while True:
            want = limit - len(taken)
            due = 0
            if correlation_id is not None:
                special = self._pick_correlated(box, correlation_id, want, left, now)
            else:
                picked = self._pick_due(box, due_after, share, left, now)
                due = len(picked)
                picked += self._pick_ready(box, after, want - due, left, now)
                plain, special = [], []
                for row in picked:
                    if (
                        row.lease_until is not None
                        or row.tries >= instance.max_attempts
                        or row.uncertain
                        or row.ordering_key is not None
                    ):
                        special.append(row)
                    else:
                        plain.append(row)
                taken += self._lease(plain, worker, epoch, until)
            set_aside = False
            if special:
                special.sort(key=_message_id)
                good, alone, count = self._sift(instance, special, 10 * limit - moved, now)
                taken += self._lease(good, worker, epoch, until)
                left.update(alone)
                moved += count
                set_aside = count > 0 or len(alone) > 0
            if len(taken) >= limit or moved >= 10 * limit or len(left) >= 10 * limit:
                break
            # Another round: due rows that their share kept out, or rows behind some set aside.
            if not set_aside and (due < share or correlation_id is not None):
                break
            share = limit - len(taken)
        if len(taken) < limit and after == 0 and correlation_id is None:
            self._free_heads(box, instance.on_parked == "block", now, 1000)
        return taken

    def _lease(
        self, rows: list[DeliveryRow], worker: str, epoch: int, until: datetime
    ) -> list[DeliveryRow]:
        """A lease and a fence for each; fences are drawn in id order."""
        db = self.db
        if len(rows) > 1:
            rows.sort(key=_message_id)
        for row in rows:
            db.change(row)
            db.fence_seq += 1
            row.lease_until = until
            row.worker = worker
            row.fence = epoch + db.fence_seq
            row.attempts += 1
            row.tries += 1
        return rows

    def _claimed(self, row: DeliveryRow) -> Claim:
        m = self.db.message[row.instance_key, row.message_id]
        assert row.lease_until is not None
        assert m.payload is not None
        return Claim(
            m.message_id, row.fence, row.attempts, row.tries, row.lease_until, row.uncertain, m.box,
            m.topic, m.idempotency_key, m.correlation_id, m.ordering_key, m.account, m.currency,
            m.cash_delta, m.payload, m.effect_policy, m.enqueued_at,
        )  # fmt: skip

    def _pick(
        self,
        box: Box,
        above: tuple[datetime, int],
        last: tuple[datetime, int],
        most: int,
        left: set[int],
        now: datetime,
    ) -> list[DeliveryRow]:
        """The first rows in a range of the claim index that nobody holds, but for those left."""
        picked: list[DeliveryRow] = []
        index = self.db.delivery_claim.get((self._instance_key, box))
        if most < 1 or not index:
            return picked
        delivery, instance_key = self.db.delivery, self._instance_key
        for i in range(bisect_right(index, above), len(index)):
            entry = index[i]
            if entry > last:
                break
            row = delivery[instance_key, entry[1]]
            if (row.lease_until is None or row.lease_until <= now) and row.message_id not in left:
                picked.append(row)
                if len(picked) == most:
                    break
        return picked

    def _pick_ready(
        self, box: Box, after: int, most: int, left: set[int], now: datetime
    ) -> list[DeliveryRow]:
        return self._pick(box, (_READY, after), (_READY, _LAST_ID), most, left, now)

    def _pick_due(
        self, box: Box, due_after: datetime | None, most: int, left: set[int], now: datetime
    ) -> list[DeliveryRow]:
        above = (due_after or _READY, _LAST_ID)
        return self._pick(box, above, (now, _LAST_ID), most, left, now)

    def _pick_correlated(
        self, box: Box, correlation_id: str, most: int, left: set[int], now: datetime
    ) -> list[DeliveryRow]:
        picked: list[DeliveryRow] = []
        for message_id in self.db.message_correlation.get((self._instance_key, correlation_id), ()):
            row = self.db.delivery.get((self._instance_key, message_id))
            if (
                row is not None
                and row.box == box
                and (row.deferred_until is None or row.deferred_until <= now)
                and (row.lease_until is None or row.lease_until <= now)
                and message_id not in left
            ):
                picked.append(row)
                if len(picked) == most:
                    break
        return picked

    def _sift(
        self, instance: InstanceRow, picked: list[DeliveryRow], most: int, now: datetime
    ) -> tuple[list[DeliveryRow], list[int], int]:
        """What needs a look before it can be claimed: a lease that ended without an outcome, a
        used-up allowance, an uncertain at_most_once message, an ordering key.

        Returns those to claim, the ids to leave alone for now, and how many were moved out of the
        way (parked, or behind an earlier row).
        """
        db = self.db
        claimable: list[DeliveryRow] = []
        left: list[int] = []
        moved = 0
        for row in picked:
            policy = db.message[row.instance_key, row.message_id].effect_policy
            expired = row.lease_until is not None
            exhausted = row.tries >= instance.max_attempts
            parked: Parked | None = None
            uncertain = row.uncertain
            if expired:
                parked, uncertain, _ = _settle(
                    "lease_expired", policy, row.uncertain, row.sent_fence == row.fence, row.tries,
                    instance.max_attempts, False, False,
                )  # fmt: skip
            elif uncertain and policy == "at_most_once":
                parked = "unknown"
            elif exhausted:
                parked = "unknown" if uncertain else "dead_letter"
            if parked is not None and moved >= most:
                left.append(row.message_id)
                continue
            if expired:
                self._outcome(row, "lease_expired", parked or "ready", "lease_expired", False, now)
            if expired or parked is not None:
                db.change(row)
                row.lease_until = row.worker = None
                row.uncertain = uncertain
                row.parked = parked
            if parked is not None:
                db.defer(row, INFINITY)
                moved += 1
                reason = "attempts_exhausted" if exhausted else "operator"
                self._open_skip(row, parked, "lease_expired" if expired else reason, now)
                if instance.on_parked == "continue":
                    self._free_key(row.box, row.ordering_key, now)
                continue
            if row.ordering_key is not None:
                if self._is_behind(row, instance.on_parked == "block"):
                    db.defer(row, INFINITY)
                    moved += 1
                    continue
                if self._is_lane_leased(row, now):
                    left.append(row.message_id)
                    continue
            claimable.append(row)
        return claimable, left, moved

    def _lane_ids(self, box: Box, ordering_key: str) -> list[int]:
        return self.db.delivery_lane.get((self._instance_key, box, ordering_key), [])

    def _is_behind(self, row: DeliveryRow, block: bool) -> bool:
        """An earlier message of the key isn't delivered; a parked one counts if the policy is to
        block and nobody gave it up."""
        assert row.ordering_key is not None
        for message_id in self._lane_ids(row.box, row.ordering_key):
            if message_id == row.message_id:
                break
            if self._stands_in_the_way(self.db.delivery[row.instance_key, message_id], block):
                return True
        return False

    @staticmethod
    def _stands_in_the_way(row: DeliveryRow, block: bool) -> bool:
        return row.parked is None or (block and not row.abandoned)

    def _is_lane_leased(self, row: DeliveryRow, now: datetime) -> bool:
        """Another message of the key is under an active lease."""
        assert row.ordering_key is not None
        for message_id in self._lane_ids(row.box, row.ordering_key):
            if message_id != row.message_id:
                lease_until = self.db.delivery[row.instance_key, message_id].lease_until
                if lease_until is not None and lease_until > now:
                    return True
        return False

    def _free_key(self, box: Box, ordering_key: str | None, now: datetime) -> None:
        """A message left its key: the first one that is neither parked nor leased goes on, if it
        waits."""
        if ordering_key is None:
            return
        for message_id in self._lane_ids(box, ordering_key):
            row = self.db.delivery[self._instance_key, message_id]
            if row.parked is None and row.lease_until is None:
                if row.deferred_until == INFINITY:
                    self.db.defer(row, now)
                return

    def _free_heads(self, box: Box, block: bool, now: datetime, most: int) -> None:
        """The safety net: the first message of a key must not wait. At most `most` keys a call."""
        db = self.db
        index = db.delivery_claim.get((self._instance_key, box))
        if not index or index[-1][0] is not INFINITY:
            return
        keys = sorted(
            key
            for (instance_key, lane_box, key), ids in db.delivery_lane.items()
            if ids and instance_key == self._instance_key and lane_box == box
        )
        for key in keys[:most]:
            for message_id in self._lane_ids(box, key):
                row = db.delivery[self._instance_key, message_id]
                if self._stands_in_the_way(row, block):
                    if row.parked is None and row.deferred_until == INFINITY:
                        db.defer(row, now)
                    break

    @_call
    def extend(
        self, message_ids: Sequence[int], fences: Sequence[int], *, lease: timedelta | None = None
    ) -> list[Extended]:
        _check_ids(message_ids)
        _check_sequence(fences, 1000, int, "fences")
        _require(len(fences) == len(message_ids), "fences")
        _require(all(_is_integer(f, 1, _LAST_ID) for f in fences), "fences")
        _require(lease is None or _is_duration(lease, _LEAST, _DAY), "lease")
        self._durable()
        lease = self._duration(self._enter(), lease)
        now = self.db._now()
        return [
            self._extend(message_id, fence, now, now + lease)
            for message_id, fence in zip(message_ids, fences, strict=True)
        ]

    def _extend(self, message_id: int, fence: int, now: datetime, until: datetime) -> Extended:
        row = self._matched(message_id, fence)
        if row is None:
            status, _, _, _ = self._tell(message_id, fence, None, now)
            assert status != "recorded"
            assert status != "already_recorded"
            return Extended(message_id, fence, status, None)
        assert row.lease_until is not None
        if (
            row.lease_until <= now
            and row.ordering_key is not None
            and self._is_lane_leased(row, now)
        ):
            return Extended(message_id, fence, "claim_lost", None)
        if until > row.lease_until:
            self.db.change(row)
            row.lease_until = until
        return Extended(message_id, fence, "extended", row.lease_until)

    @_call
    def mark_sent(self, message_id: int, fence: int, *, on_lost: OnLost = "raise") -> Recorded:
        self._check_claimed(message_id, fence)
        _check_on(on_lost, "on_lost")
        self._durable()
        self._enter()
        now = self.db._now()
        row = self._matched(message_id, fence)
        if row is None or row.lease_until is None or row.lease_until <= now:
            return self._tell_one(message_id, fence, on_lost, now)
        if row.sent_fence == fence:
            return Recorded(message_id, fence, "already_recorded", "leased", False, None)
        self.db.change(row)
        row.sent_fence = fence
        return Recorded(message_id, fence, "recorded", "leased", False, None)

    @_call
    def hold(
        self, message_id: int, fence: int, *, timeout: timedelta = timedelta(seconds=10)
    ) -> Recorded:
        self._check_claimed(message_id, fence)
        _require(_is_duration(timeout, _LEAST, timedelta(minutes=10)), "timeout")
        self._durable()
        self._enter()
        now = self.db._now()
        row = self._matched(message_id, fence)
        if row is None:
            return self._tell_one(message_id, fence, "raise", now)
        assert row.lease_until is not None
        late = row.lease_until <= now
        state: State = "lease_ended" if late else "leased"
        return Recorded(message_id, fence, "recorded", state, late, None)

    def _check_claimed(self, message_id: int, fence: int) -> None:
        _require(_is_integer(message_id, 1, _LAST_ID), "message_id")
        _require(_is_integer(fence, 1, _LAST_ID), "fence")

    @_call
    def listen(self, worker: str, duration: timedelta) -> str:
        _require(_is_key(worker), "worker")
        _require(_is_duration(duration, _LEAST, timedelta(hours=1)), "duration")
        self._durable()
        self._enter()
        db = self.db
        now = db._now()
        key = (self._instance_key, worker)
        row = db.listener.get(key)
        if row is None:
            db.put(db.listener, key, ListenerRow(*key, now + duration))
        else:
            db.change(row)
            row.until = now + duration
        gone = [
            (k, w)
            for (k, w), other in db.listener.items()
            if k == self._instance_key and other.until < now - timedelta(hours=1)
        ]
        for other_key in gone[:100]:
            db.drop(db.listener, other_key)
        digest = hashlib.md5(self._instance_key.encode(), usedforsecurity=False)
        return "trex_" + digest.hexdigest()

    @_call
    def unlisten(self, worker: str) -> None:
        _require(_is_key(worker), "worker")
        self._durable()
        self._enter()
        key = (self._instance_key, worker)
        if key in self.db.listener:
            self.db.drop(self.db.listener, key)

    # outcome

    @_call
    def release(
        self, message_id: int, fence: int, *, reason: str = "not_started", on_lost: OnLost = "raise"
    ) -> Recorded:
        return self._record_one(Report(message_id, fence, "released", reason), on_lost)

    @_call
    def postpone(
        self,
        message_id: int,
        fence: int,
        delay: timedelta,
        *,
        reason: str = "waiting",
        on_lost: OnLost = "raise",
    ) -> Recorded:
        return self._record_one(Report(message_id, fence, "postponed", reason, delay), on_lost)

    @_call
    def complete(
        self,
        message_id: int,
        fence: int,
        *,
        reference: str | None = None,
        confirmed_by: ConfirmedBy = "answer",
        balance: Decimal | None = None,
        version: int | None = None,
        on_lost: OnLost = "raise",
    ) -> Recorded:
        report = Report(
            message_id, fence, "completed", confirmed_by=confirmed_by, reference=reference,
            balance=balance, version=version,
        )  # fmt: skip
        return self._record_one(report, on_lost)

    @_call
    def complete_duplicate(
        self,
        message_id: int,
        fence: int,
        *,
        reference: str | None = None,
        confirmed_by: ConfirmedBy = "answer",
        balance: Decimal | None = None,
        version: int | None = None,
        on_lost: OnLost = "raise",
    ) -> Recorded:
        report = Report(
            message_id, fence, "duplicate", confirmed_by=confirmed_by, reference=reference,
            balance=balance, version=version,
        )  # fmt: skip
        return self._record_one(report, on_lost)

    @_call
    def retry(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        delay: timedelta | None = None,
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded:
        return self._record_one(Report(message_id, fence, "retry", reason, delay, absent), on_lost)

    @_call
    def mark_unknown(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        delay: timedelta | None = None,
        park: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded:
        return self._record_one(
            Report(message_id, fence, "unknown", reason, delay, park=park), on_lost
        )

    @_call
    def conflict(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "key_conflict",
        on_lost: OnLost = "raise",
    ) -> Recorded:
        return self._record_one(Report(message_id, fence, "conflict", reason), on_lost)

    @_call
    def fail(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "rejected",
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded:
        return self._record_one(
            Report(message_id, fence, "permanent", reason, absent=absent), on_lost
        )

    @_call
    def dead_letter(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Recorded:
        return self._record_one(
            Report(message_id, fence, "dead_letter", reason, absent=absent), on_lost
        )

    @_call
    def record(self, reports: Sequence[Report]) -> list[Recorded]:
        _check_reports(reports)
        self._durable()
        return self._record(self._enter(), reports, self.db._now())

    @_call
    def exchange(
        self,
        reports: Sequence[Report],
        worker: str,
        limit: int = 1,
        *,
        lease: timedelta | None = None,
        box: Box = "outbox",
        after: int = 0,
        due_after: datetime | None = None,
    ) -> Exchange:
        self._check_claim(worker, limit, lease, box, after, due_after)
        _check_reports(reports)
        self._durable()
        instance = self._enter()
        lease = self._duration(instance, lease)
        now = self.db._now()
        recorded = self._record(instance, reports, now)
        claims = self._claim(instance, worker, limit, lease, box, None, after, due_after, now)
        return Exchange(recorded, claims)

    @_call
    def report_stale(self, message_id: int, fence: int, result: Result) -> bool:
        self._check_claimed(message_id, fence)
        _require(result in RESULTS, "result")
        self._durable()
        self._enter()
        now = self.db._now()
        if (self._instance_key, message_id) not in self.db.message:
            raise NotFound
        if self._matched(message_id, fence) is not None:
            return False
        status, _, _, given = self._tell(message_id, fence, result, now)
        return status == "claim_lost" and given and self._stale(message_id, fence, result, now)

    def _matched(self, message_id: int, fence: int) -> DeliveryRow | None:
        """The compare of every outcome: the delivery, if this fence is its open claim."""
        row = self.db.delivery.get((self._instance_key, message_id))
        if row is None or row.fence != fence or row.lease_until is None:
            return None
        return row

    def _tell(
        self, message_id: int, fence: int, result: Result | None, now: datetime
    ) -> tuple[RecordStatus, State | None, datetime | None, bool]:
        """Why a report wasn't recorded, what the message is now, and whether the fence was ever
        given out for it. A fence that ended by lease_expired is a lost claim, not another
        outcome."""
        db = self.db
        key = (self._instance_key, message_id)
        if key not in db.message:
            return "not_found", None, None, False
        row = db.delivery.get(key)
        receipt = db.receipt.get(key)
        outcome = db.outcome.get((self._instance_key, message_id, fence))
        end: str | None = None
        if outcome is not None:
            end = outcome.kind
        elif receipt is not None and receipt.fence == fence and receipt.confirmed_by != "operator":
            end = "duplicate" if receipt.duplicate else "completed"
        if end is None or end == "lease_expired":
            given = (
                outcome is not None
                or (receipt is not None and receipt.fence == fence)
                or (row is not None and row.fence == fence)
            )
            return "claim_lost", None, None, given
        status: RecordStatus = "already_recorded" if end == result else "ended_otherwise"
        if row is None:
            return status, "delivered", None, True
        state = _state(row.parked, row.lease_until, row.deferred_until, now)
        return status, state, _due_at(row), True

    def _stale(self, message_id: int, fence: int, result: Result, now: datetime) -> bool:
        """A rejected report of a fence that was given out is evidence, once."""
        key = (self._instance_key, message_id, fence, result)
        if key in self.db.stale_report:
            return False
        self.db.put(self.db.stale_report, key, StaleReportRow(*key, now))
        return True

    def _tell_one(self, message_id: int, fence: int, on_lost: OnLost, now: datetime) -> Recorded:
        """Why mark_sent or hold did nothing: any end of this claim is another one."""
        status, state, due_at, _ = self._tell(message_id, fence, None, now)
        if on_lost == "raise":
            _refuse(status)
        return Recorded(message_id, fence, status, state, False, due_at)

    def _record_one(self, report: Report, on_lost: OnLost) -> Recorded:
        _check_on(on_lost, "on_lost")
        _check_report(report)
        self._durable()
        instance = self._enter()
        now = self.db._now()
        message_id, fence = report.message_id, report.fence
        if on_lost == "raise" and self._matched(message_id, fence) is None:
            status, _, _, given = self._tell(message_id, fence, report.result, now)
            if status == "claim_lost" and given and self.db._undo is None:
                # Outside of a transaction the client keeps the evidence by a call of its own.
                self._stale(message_id, fence, report.result, now)
            _refuse(status)
        return self._record(instance, (report,), now, numbered=False)[0]

    def _record(
        self,
        instance: InstanceRow,
        reports: Sequence[Report],
        now: datetime,
        *,
        numbered: bool = True,
    ) -> list[Recorded]:
        """Every outcome of a worker, one or many: a compare-and-set on the fence of the open
        claim."""
        matched = [self._matched(r.message_id, r.fence) for r in reports]
        snapshots = []
        for number, (report, row) in enumerate(zip(reports, matched, strict=True), 1):
            if row is not None and report.version is not None:
                name = f"report {number}: balance" if numbered else "balance"
                snapshots.append(self._snapshot(row, report, name))
        result: list[Recorded] = []
        free: set[tuple[Box, str]] = set()
        for report, row in zip(reports, matched, strict=True):
            if row is None:
                status, state, due_at, given = self._tell(
                    report.message_id, report.fence, report.result, now
                )
                if status == "claim_lost" and given:
                    self._stale(report.message_id, report.fence, report.result, now)
                result.append(
                    Recorded(report.message_id, report.fence, status, state, False, due_at)
                )
                continue
            assert row.lease_until is not None
            late = row.lease_until <= now
            if report.result == "completed" or report.result == "duplicate":
                self._deliver(
                    row,
                    report.result == "duplicate",
                    late,
                    report.confirmed_by,
                    report.reference,
                    now,
                )
                freed = True
                recorded = Recorded(row.message_id, row.fence, "recorded", "delivered", late, None)
            else:
                recorded = self._end(instance, row, report.result, report, late, now)
                freed = row.parked is not None and instance.on_parked == "continue"
            result.append(recorded)
            if freed and row.ordering_key is not None:
                free.add((row.box, row.ordering_key))
        for snapshot in sorted(snapshots, key=_by_account):
            self._store_snapshot(snapshot, now)
        for box, ordering_key in free:
            self._free_key(box, ordering_key, now)
        return result

    def _deliver(
        self,
        row: DeliveryRow,
        duplicate: bool,
        late: bool,
        confirmed_by: ConfirmedBy,
        reference: str | None,
        now: datetime,
    ) -> None:
        """The end of the work on a message: its delivery goes, its receipt comes, its skip is
        resolved."""
        db = self.db
        key = (row.instance_key, row.message_id)
        db.drop_delivery(row)
        db.put(
            db.receipt,
            key,
            ReceiptRow(
                *key, row.fence, row.attempts, duplicate, late, confirmed_by, reference, now
            ),
        )
        skip = db.ledger_skip.get(key)
        if skip is not None and skip.resolved_at is None:
            db.change(skip)
            skip.resolved_at = now
            skip.resolved_fence = row.fence

    def _end(
        self,
        instance: InstanceRow,
        row: DeliveryRow,
        kind: Kind,
        report: Report,
        late: bool,
        now: datetime,
    ) -> Recorded:
        """An open claim ends without a delivery."""
        db = self.db
        policy = db.message[row.instance_key, row.message_id].effect_policy
        parked, uncertain, tries = _settle(
            kind, policy, row.uncertain, row.sent_fence == row.fence, row.tries,
            instance.max_attempts, report.absent, report.park,
        )  # fmt: skip
        if parked is not None:
            due = INFINITY
        elif kind == "released":
            due = now
        elif kind == "postponed":
            due = now + (report.delay or _ZERO)
        else:
            wait = _backoff(
                row.message_id, row.attempts, row.tries, instance.backoff_base, instance.backoff_cap
            )
            due = now + max(wait, report.delay or _ZERO)
        state: State = parked or ("ready" if kind == "released" else "deferred")
        self._outcome(row, kind, state, report.reason, late, now)
        exhausted = (
            kind in ("retry", "unknown") and not report.park and row.tries >= instance.max_attempts
        )
        db.change(row)
        row.lease_until = row.worker = None
        row.tries = tries
        row.uncertain = uncertain
        row.parked = parked
        db.defer(row, due)
        if parked is not None:
            self._open_skip(row, parked, "attempts_exhausted" if exhausted else report.reason, now)
        return Recorded(
            row.message_id, row.fence, "recorded", state, late, None if parked is not None else due
        )

    def _outcome(
        self, row: DeliveryRow, kind: Kind, state: State, reason: str, late: bool, now: datetime
    ) -> None:
        outcome = OutcomeRow(
            row.instance_key, row.message_id, row.fence, row.attempts, kind, state, reason, late,
            now,
        )  # fmt: skip
        self.db.put_outcome(outcome)

    def _open_skip(self, row: DeliveryRow, parked: Parked, reason: str, now: datetime) -> None:
        """A parked outbox message is a movement that the ledger doesn't have, or may not have."""
        if row.box != "outbox":
            return
        db = self.db
        key = (row.instance_key, row.message_id)
        skip = db.ledger_skip.get(key)
        if skip is None:
            m = db.message[key]
            skip = SkipRow(*key, m.account, m.currency, m.cash_delta, parked, reason, now)
            db.put(db.ledger_skip, key, skip)
            return
        db.change(skip)
        skip.parked = parked
        skip.reason = reason
        skip.opened_at = now
        skip.resolved_at = skip.resolved_fence = None

    def _snapshot(self, row: DeliveryRow, report: Report, name: str) -> SnapshotRow:
        """The reported balance as a row, if it fits the message's currency."""
        m = self.db.message[row.instance_key, row.message_id]
        balance = None
        if m.currency is not None and report.balance is not None:
            balance = _amount(report.balance, self.db.currency[m.currency].exponent)
        if balance is None or m.account is None or m.currency is None or report.version is None:
            raise InvalidArgument(name)
        return SnapshotRow(
            m.instance_key, m.account, m.currency, balance, report.version, m.message_id, row.fence,
            0, 0, _READY,
        )  # fmt: skip

    def _store_snapshot(self, new: SnapshotRow, now: datetime) -> None:
        """A newer version replaces; an older or a repeated one never does; another balance of the
        same is counted."""
        db = self.db
        key = (new.instance_key, new.account, new.currency)
        old = db.ledger_snapshot.get(key)
        if old is None:
            new.stored_at = now
            db.put(db.ledger_snapshot, key, new)
            return
        db.change(old)
        if new.version > old.version:
            old.balance, old.version = new.balance, new.version
            old.message_id, old.fence, old.stored_at = new.message_id, new.fence, now
        elif new.version < old.version:
            old.ignored += 1
        elif new.balance != old.balance:
            old.contradicted += 1

    # read

    def _deliveries(self, box: Box, after: int = 0) -> Iterator[DeliveryRow]:
        """Undelivered messages of the box in id order."""
        db = self.db
        ids = sorted(
            i for _, i in db.delivery_claim.get((self._instance_key, box), ()) if i > after
        )
        return (db.delivery[self._instance_key, i] for i in ids)

    @_call
    def list_pending(
        self,
        *,
        limit: int = 100,
        after: int = 0,
        box: Box = "outbox",
        include_parked: bool = False,
    ) -> list[Pending]:
        _check_read(limit, after, box)
        _require(isinstance(include_parked, bool), "include_parked")
        self._enter()
        now = self.db._now()
        result: list[Pending] = []
        for row in self._deliveries(box, after):
            if row.lease_until is not None and row.lease_until > now:
                continue
            if row.parked is not None and not include_parked:
                continue
            m = self.db.message[row.instance_key, row.message_id]
            result.append(
                Pending( m.message_id, m.box, _state(row.parked, row.lease_until,
                row.deferred_until, now), m.topic, m.idempotency_key, m.correlation_id,
                m.ordering_key, m.account, m.currency, m.cash_delta, _due_at(row), row.attempts,
                row.tries, row.uncertain, m.enqueued_at, ),
            )  # fmt: skip
            if len(result) == limit:
                break
        return result

    @_call
    def pending_cash_delta(
        self, *, account: str | None = None, currency: str | None = None
    ) -> list[Cash]:
        _require(account is None or _is_key(account), "account")
        _require(currency is None or currency in self.db.currency, "currency")
        self._enter()
        sums: dict[tuple[str, str], Cash] = {}
        for row in self._deliveries("outbox"):
            m = self.db.message[row.instance_key, row.message_id]
            if m.account is None or m.currency is None or m.cash_delta is None:
                continue
            if account not in (None, m.account) or currency not in (None, m.currency):
                continue
            key = (m.account, m.currency)
            total = sums.get(key) or Cash(*key, Decimal(0), Decimal(0), Decimal(0), 0)
            name = "uncertain" if row.uncertain else "pending" if row.parked is None else "skipped"
            amount = _WIDE.add(getattr(total, name), m.cash_delta)
            entries = total.entries + 1
            sums[key] = replace(total, entries=entries, **{name: amount})  # type: ignore[arg-type]
        return [sums[key] for key in sorted(sums)]

    def _first_of_lane(self, box: Box, ordering_key: str) -> int | None:
        ids = self._lane_ids(box, ordering_key)
        return next((i for i in ids if not self.db.delivery[self._instance_key, i].abandoned), None)

    @_call
    def list_parked(
        self, *, limit: int = 100, after: int = 0, box: Box = "outbox"
    ) -> list[ParkedMessage]:
        _check_read(limit, after, box)
        self._enter()
        result: list[ParkedMessage] = []
        for row in self._deliveries(box, after):
            if row.parked is None:
                continue
            m = self.db.message[row.instance_key, row.message_id]
            reason, at = self._parked_why(row)
            result.append(
                ParkedMessage( m.message_id, m.box, row.parked, reason, m.topic, m.idempotency_key,
                m.correlation_id, m.ordering_key, m.account, m.currency, m.cash_delta, row.attempts,
                row.uncertain, row.abandoned, at, m.enqueued_at, ),
            )  # fmt: skip
            if len(result) == limit:
                break
        return result

    def _parked_why(self, row: DeliveryRow) -> tuple[str, datetime]:
        """Why a message is parked, and since when."""
        skip = self.db.ledger_skip.get((row.instance_key, row.message_id))
        if skip is not None and skip.resolved_at is None:
            return skip.reason, skip.opened_at
        outcome = self.db.outcome[row.instance_key, row.message_id, row.fence]
        return outcome.reason, outcome.recorded_at

    @_call
    def status(
        self,
        message_id: int | None = None,
        *,
        idempotency_key: str | None = None,
        box: Box = "outbox",
    ) -> MessageStatus:
        _require(message_id is None or _is_integer(message_id, 1, _LAST_ID), "message_id")
        _require(idempotency_key is None or _is_key(idempotency_key), "idempotency_key")
        _require(message_id is not None or idempotency_key is not None, "message_id")
        _require(message_id is None or idempotency_key is None, "idempotency_key")
        _require(box in BOXES, "box")
        self._enter()
        db = self.db
        if idempotency_key is not None:
            message_id = db.message_key.get((self._instance_key, box, idempotency_key))
        if message_id is None:
            raise NotFound
        key = (self._instance_key, message_id)
        m = db.message.get(key)
        if m is None:
            raise NotFound
        now = db._now()
        receipt = db.receipt.get(key)
        row = db.delivery.get(key)
        if receipt is not None:
            return MessageStatus(
                m.message_id, m.box, "delivered", None, m.topic, m.idempotency_key, receipt.attempt,
                0, receipt.fence, False, None, None, None, m.enqueued_at, receipt.delivered_at,
                receipt.duplicate, receipt.confirmed_by, receipt.reference,
            )  # fmt: skip
        assert row is not None
        fences = db.outcome_fences.get(key)
        reason = db.outcome[*key, fences[-1]].reason if fences else None
        if row.parked is not None:
            reason, _ = self._parked_why(row)
        return MessageStatus(
            m.message_id, m.box, _state(row.parked, row.lease_until, row.deferred_until, now),
            reason, m.topic, m.idempotency_key, row.attempts, row.tries, row.fence, row.uncertain,
            row.worker, row.lease_until, _due_at(row), m.enqueued_at, None, None, None, None,
        )  # fmt: skip

    @_call
    def stats(self, *, box: Box = "outbox", cap: int = 100_000) -> InstanceStats:
        _require(box in BOXES, "box")
        _require(_is_integer(cap, 1, 10_000_000), "cap")
        instance = self._enter()
        db = self.db
        now = db._now()
        index = db.delivery_claim.get((self._instance_key, box), [])
        bounds = [
            0,
            bisect_right(index, (_READY, _LAST_ID)),
            bisect_right(index, (now, _LAST_ID)),
            bisect_left(index, (INFINITY, 0)),
            len(index),
        ]
        # Each range of the claim index is read up to cap rows: ready, due, deferred, the rest.
        ranges = [
            [db.delivery[self._instance_key, i] for _, i in index[start:end][:cap]]
            for start, end in pairwise(bounds)
        ]
        ready, due, deferred, rest = ranges
        free = [row for row in ready if row.lease_until is None]
        oldest = [row.deferred_until for row in due if row.lease_until is None][:1]
        if free:
            oldest.append(db.message[self._instance_key, free[0].message_id].enqueued_at)
        leases = [row.lease_until for row in ready + due if row.lease_until is not None]
        parked = [row for row in rest if row.parked is not None]
        counts = Counter("abandoned" if row.abandoned else row.parked for row in parked)
        blocked = {
            row.ordering_key
            for row in parked
            if row.ordering_key is not None
            and instance.on_parked == "block"
            and self._first_of_lane(box, row.ordering_key) == row.message_id
        }
        return InstanceStats(
            box,
            ready=len(free),
            due=sum(row.lease_until is None for row in due),
            deferred=len(deferred),
            waiting=len(rest) - len(parked),
            leased=sum(lease > now for lease in leases),
            lease_ended=sum(lease <= now for lease in leases),
            dead_letter=counts["dead_letter"],
            permanent=counts["permanent"],
            conflict=counts["conflict"],
            unknown=counts["unknown"],
            abandoned=counts["abandoned"],
            blocked_keys=len(blocked),
            oldest_due_at=min(filter(None, oldest), default=None),
            oldest_parked_at=min(
                (self._parked_why(row)[1] for row in parked if not row.abandoned), default=None
            ),
            capped=any(len(rows) == cap for rows in ranges),
        )

    @_call
    def policy(self) -> InstancePolicy:
        i = self._enter()
        roles = sorted(role for key, role in self.db.binding if key == self._instance_key)
        return InstancePolicy(
            i.instance_key, i.paused, i.max_attempts, i.lease_default, i.lease_max, i.backoff_base,
            i.backoff_cap, i.on_parked, i.wake, i.payload_max, roles, i.registered_at,
        )  # fmt: skip

    # operator

    def _audit(
        self,
        action: str,
        message_id: int | None,
        actor: str,
        reason: str,
        detail: dict[str, object],
        now: datetime,
        *,
        instance_key: str | None = "",
    ) -> None:
        """Who did what, and why; in the transaction of the act."""
        db = self.db
        db.audit_id_seq += 1
        row = AuditRow(
            db.audit_id_seq, self._instance_key if instance_key == "" else instance_key, action,
            message_id, actor, reason, _canonical(detail), self.role, now,
        )  # fmt: skip
        db.put(db.audit, row.audit_id, row)

    @_call
    def register_instance(
        self,
        *,
        actor: str,
        reason: str,
        max_attempts: int | None = None,
        lease_default: timedelta | None = None,
        lease_max: timedelta | None = None,
        backoff_base: timedelta | None = None,
        backoff_cap: timedelta | None = None,
        on_parked: Literal["block", "continue"] | None = None,
        wake: bool | None = None,
        payload_max: int | None = None,
    ) -> str:
        _check_act(actor, reason)
        _require(max_attempts is None or _is_integer(max_attempts, 1, 1000), "max_attempts")
        for name, duration, least, most in (
            ("lease_default", lease_default, _LEAST, _DAY),
            ("lease_max", lease_max, _LEAST, _DAY),
            ("backoff_base", backoff_base, timedelta(milliseconds=1), _MOST_DELAY),
            ("backoff_cap", backoff_cap, timedelta(milliseconds=1), _MOST_DELAY),
        ):
            _require(duration is None or _is_duration(duration, least, most), name)
        _require(on_parked in (None, "block", "continue"), "on_parked")
        _require(wake is None or isinstance(wake, bool), "wake")
        _require(payload_max is None or _is_integer(payload_max, 2, 16_777_216), "payload_max")
        self._durable()
        db = self.db
        now = db._now()
        old = db.instance.get(self._instance_key)
        new = copy(old) if old is not None else InstanceRow(
            self._instance_key, False, 12, timedelta(seconds=30), timedelta(minutes=15),
            timedelta(seconds=1), timedelta(hours=1), "block", True, 1_048_576, now,
        )  # fmt: skip
        for column, value in (
            ("max_attempts", max_attempts),
            ("lease_default", lease_default),
            ("lease_max", lease_max),
            ("backoff_base", backoff_base),
            ("backoff_cap", backoff_cap),
            ("on_parked", on_parked),
            ("wake", wake),
            ("payload_max", payload_max),
        ):
            if value is not None:
                setattr(new, column, value)
        _require(new.lease_default <= new.lease_max, "lease_default")
        _require(new.backoff_base <= new.backoff_cap, "backoff_base")
        if old == new:
            return "unchanged"
        opened = old is not None and (old.on_parked, new.on_parked) == ("block", "continue")
        if old is None:
            db.put(db.instance, self._instance_key, new)
        else:
            db.change(old)
            _restore(old, new)
        if opened:
            self._free_heads("inbox", False, now, _LAST_ID)
            self._free_heads("outbox", False, now, _LAST_ID)
        detail: dict[str, object] = {
            "max_attempts": new.max_attempts,
            "lease_default": new.lease_default // _MICROSECOND,
            "lease_max": new.lease_max // _MICROSECOND,
            "backoff_base": new.backoff_base // _MICROSECOND,
            "backoff_cap": new.backoff_cap // _MICROSECOND,
            "on_parked": new.on_parked,
            "wake": new.wake,
            "payload_max": new.payload_max,
        }
        self._audit("register_instance", None, actor, reason, detail, now)
        return "registered" if old is None else "changed"

    @_call
    def bind(self, role_name: str, *, actor: str, reason: str) -> bool:
        _require(_is_role(role_name), "role_name")
        _check_act(actor, reason)
        self._durable()
        db = self.db
        if self._instance_key not in db.instance:
            raise AccessDenied("register the instance first")
        key = (self._instance_key, role_name)
        if key in db.binding:
            return False
        now = db._now()
        db.put(db.binding, key, BindingRow(*key, now))
        self._audit("bind", None, actor, reason, {"role_name": role_name}, now)
        return True

    @_call
    def unbind(self, role_name: str, *, actor: str, reason: str) -> bool:
        _require(_is_role(role_name), "role_name")
        _check_act(actor, reason)
        self._durable()
        db = self.db
        if self._instance_key not in db.instance:
            raise AccessDenied("register the instance first")
        key = (self._instance_key, role_name)
        if key not in db.binding:
            return False
        db.drop(db.binding, key)
        self._audit("unbind", None, actor, reason, {"role_name": role_name}, db._now())
        return True

    @_call
    def pause(self, *, actor: str, reason: str) -> bool:
        return self._pause(True, actor, reason)

    @_call
    def resume(self, *, actor: str, reason: str) -> bool:
        return self._pause(False, actor, reason)

    def _pause(self, paused: bool, actor: str, reason: str) -> bool:
        _check_act(actor, reason)
        self._durable()
        instance = self._enter()
        if instance.paused == paused:
            return False
        self.db.change(instance)
        instance.paused = paused
        self._audit("pause" if paused else "resume", None, actor, reason, {}, self.db._now())
        return True

    @_call
    def redrive(self, message_ids: Sequence[int], *, actor: str, reason: str) -> list[Operated]:
        _check_ids(message_ids)
        _check_act(actor, reason)
        self._durable()
        self._enter()
        now = self.db._now()
        return [Operated(i, self._redrive(i, actor, reason, now)) for i in message_ids]

    def _redrive(self, message_id: int, actor: str, reason: str, now: datetime) -> str:
        """Back to work with the same key; attempts and fence go on, the allowance begins anew."""
        row = self.db.delivery.get((self._instance_key, message_id))
        if row is None:
            return self._gone(message_id)
        if row.parked is None:
            return "not_parked"
        once = self.db.message[self._instance_key, message_id].effect_policy == "at_most_once"
        if row.parked in ("unknown", "conflict") or (row.uncertain and once):
            return "needs_resolve"
        self._audit("redrive", message_id, actor, reason, {"parked": row.parked}, now)
        self.db.change(row)
        row.parked = None
        row.tries = 0
        row.abandoned = False
        self.db.defer(row, now)
        return "redriven"

    def _gone(self, message_id: int) -> str:
        return "delivered" if (self._instance_key, message_id) in self.db.receipt else "not_found"

    @_call
    def resolve(
        self,
        message_id: int,
        resolution: Resolution,
        *,
        evidence: str,
        actor: str,
        reason: str,
        reference: str | None = None,
    ) -> Recorded:
        _require(_is_integer(message_id, 1, _LAST_ID), "message_id")
        _require(resolution in get_args(Resolution), "resolution")
        _require(_is_text(evidence), "evidence")
        _check_act(actor, reason)
        _require(
            reference is None or (_is_key(reference) and resolution == "delivered"), "reference"
        )
        self._durable()
        self._enter()
        db = self.db
        now = db._now()
        key = (self._instance_key, message_id)
        if key not in db.message:
            raise NotFound
        row = db.delivery.get(key)
        if row is None:
            if resolution != "delivered":
                raise EndedOtherwise
            fence = db.receipt[key].fence
            return Recorded(message_id, fence, "already_recorded", "delivered", False, None)
        if row.abandoned and (
            resolution == "abandon" or (resolution == "absent" and not row.uncertain)
        ):
            return Recorded(message_id, row.fence, "already_recorded", "permanent", False, None)
        in_doubt = row.parked in ("unknown", "conflict") or row.uncertain
        if row.parked is None or (resolution == "resend" and not in_doubt):
            raise Forbidden(
                "only a parked message; for resend one in doubt: unknown, conflict, uncertain"
            )
        detail: dict[str, object] = {
            "resolution": resolution,
            "evidence": evidence,
            "parked": row.parked,
        }
        self._audit("resolve", message_id, actor, reason, detail, now)
        if resolution == "delivered":
            self._deliver(row, False, False, "operator", reference, now)
            self._free_key(row.box, row.ordering_key, now)
            return Recorded(message_id, row.fence, "recorded", "delivered", False, None)
        db.change(row)
        if resolution == "resend":
            row.uncertain = row.abandoned = False
            row.parked = None
            row.tries = 0
            db.defer(row, now)
            return Recorded(message_id, row.fence, "recorded", "ready", False, now)
        row.parked = "permanent"
        row.abandoned = True
        row.uncertain = row.uncertain and resolution == "abandon"
        self._open_skip(row, "permanent", "operator", now)
        self._free_key(row.box, row.ordering_key, now)
        return Recorded(message_id, row.fence, "recorded", "permanent", False, None)

    @_call
    def expedite(self, message_ids: Sequence[int], *, actor: str, reason: str) -> list[Operated]:
        _check_ids(message_ids)
        _check_act(actor, reason)
        self._durable()
        self._enter()
        now = self.db._now()
        return [Operated(i, self._expedite(i, actor, reason, now)) for i in message_ids]

    def _expedite(self, message_id: int, actor: str, reason: str, now: datetime) -> str:
        row = self.db.delivery.get((self._instance_key, message_id))
        if row is None:
            return self._gone(message_id)
        if _state(row.parked, row.lease_until, row.deferred_until, now) != "deferred":
            return "not_deferred"
        self.db.defer(row, now)
        self._audit("expedite", message_id, actor, reason, {}, now)
        return "expedited"

    @_call
    def purge(
        self,
        older_than: timedelta,
        *,
        actor: str,
        reason: str,
        limit: int = 1000,
        after: int = 0,
        dry_run: bool = False,
    ) -> Purged:
        _require(_is_duration(older_than, _ZERO, timedelta(days=36525)), "older_than")
        _check_act(actor, reason)
        _require(_is_integer(limit, 1, 10_000), "limit")
        _require(_is_integer(after, 0, _LAST_ID), "after")
        _require(isinstance(dry_run, bool), "dry_run")
        self._durable()
        self._enter()
        db = self.db
        now = db._now()
        ids = [i for key, i in db.receipt if key == self._instance_key and i > after]
        page = sorted(ids)[:limit]
        purged = 0
        for message_id in page:
            m = db.message[self._instance_key, message_id]
            delivered_at = db.receipt[self._instance_key, message_id].delivered_at
            if m.box != "outbox" or m.payload is None or delivered_at > now - older_than:
                continue
            purged += 1
            if not dry_run:
                db.change(m)
                m.payload = None
                self._audit("purge", message_id, actor, reason, {}, now)
        return Purged(len(page), purged, page[-1] if page else after)

    @_call
    def bump_epoch(self, *, actor: str, reason: str) -> int:
        _check_act(actor, reason)
        self._durable()
        epoch = self.db.epoch
        if epoch.epoch == 2097151:
            raise InvariantViolated
        self.db.change(epoch)
        epoch.epoch += 1
        self._audit(
            "bump_epoch",
            None,
            actor,
            reason,
            {"epoch": epoch.epoch},
            self.db._now(),
            instance_key=None,
        )
        return epoch.epoch

    @_call
    def register_currency(self, currency: str, exponent: int, *, actor: str, reason: str) -> bool:
        _require(_is_currency(currency), "currency")
        _require(_is_integer(exponent, 0, 18), "exponent")
        _check_act(actor, reason)
        self._durable()
        db = self.db
        old = db.currency.get(currency)
        if old is not None:
            if old.exponent != exponent:
                raise KeyReused  # a currency's exponent is for ever
            return False
        db.put(db.currency, currency, CurrencyRow(currency, exponent))
        detail: dict[str, object] = {"currency": currency, "exponent": exponent}
        self._audit("register_currency", None, actor, reason, detail, db._now(), instance_key=None)
        return True

    @_call
    def adopt(
        self,
        quarantine_id: int,
        *,
        evidence: str,
        actor: str,
        reason: str,
        topic: str | None = None,
        idempotency_key: str | None = None,
        effect_policy: EffectPolicy = "lookup",
    ) -> Enqueued:
        _require(_is_integer(quarantine_id, 1, _LAST_ID), "quarantine_id")
        _require(_is_text(evidence), "evidence")
        _check_act(actor, reason)
        _require(topic is None or _is_slug(topic), "topic")
        _require(idempotency_key is None or _is_key(idempotency_key), "idempotency_key")
        _require(effect_policy in EFFECT_POLICIES, "effect_policy")
        self._durable()
        instance = self._enter()
        db = self.db
        now = db._now()
        row = db.quarantine.get(quarantine_id)
        if row is None:
            raise NotFound
        if row.adopted_message_id is not None:
            if (self._instance_key, row.adopted_message_id) not in db.message:
                raise NotFound
            return Enqueued(row.adopted_message_id, "duplicate")
        try:
            message = self._message(
                row.topic if topic is None else topic,
                row.idempotency_key if idempotency_key is None else idempotency_key,
                None, row.payload, row.account, row.currency, row.cash_delta, row.correlation_id,
                None, effect_policy, None,
            )  # fmt: skip
            _check_payload(instance, message)
        except InvalidArgument as error:
            raise InvalidArgument(f"the quarantined row: {refused(error)}") from None
        if (self._instance_key, "outbox", message.idempotency_key) in db.message_key:
            db.message_id_seq += 1
            raise KeyReused
        enqueued = self._enqueue([message], [None], "raise", uncertain=True)[0]
        db.change(row)
        row.adopted_message_id = enqueued.message_id
        row.adopted_at = now
        detail: dict[str, object] = {"quarantine_id": quarantine_id, "evidence": evidence}
        self._audit("adopt", enqueued.message_id, actor, reason, detail, now)
        return enqueued


def _check_read(limit: object, after: object, box: object) -> None:
    _require(_is_integer(limit, 1, 10_000), "limit")
    _require(_is_integer(after, 0, _LAST_ID), "after")
    _require(box in BOXES, "box")


def _refuse(status: RecordStatus) -> None:
    """The answers that stop a transaction."""
    if status == "not_found":
        raise NotFound
    if status == "claim_lost":
        raise ClaimLost
    if status == "ended_otherwise":
        raise EndedOtherwise


def _due_at(row: DeliveryRow) -> datetime | None:
    if row.lease_until is not None or row.deferred_until == INFINITY:
        return None
    return row.deferred_until


def _same(a: MessageRow, b: MessageRow) -> bool:
    """Same content: all that the caller said but the delay."""
    return (
        a.topic == b.topic
        and a.digest == b.digest
        and a.effect_policy == b.effect_policy
        and a.correlation_id == b.correlation_id
        and a.ordering_key == b.ordering_key
        and a.account == b.account
        and a.currency == b.currency
        and a.cash_delta == b.cash_delta
    )


def _message_id(row: DeliveryRow) -> int:
    return row.message_id


def _due_first(row: DeliveryRow) -> tuple[datetime, int]:
    return row.deferred_until or INFINITY, row.message_id


def _by_account(snapshot: SnapshotRow) -> tuple[str, str, int, int]:
    return snapshot.account, snapshot.currency, snapshot.version, snapshot.message_id


# The parts that build on the kernel; they import what they need from here.
from trex_client._calls_reconcile import AllCalls  # noqa: E402
from trex_client._memory_reconcile import MemoryReconcile  # noqa: E402


class MemoryClient(MemoryReconcile):
    """The simulated API, bound to one instance and called by one role."""

    def __init__(self, db: MemoryDatabase, instance_key: str, role: str = "app") -> None:
        super().__init__(db, instance_key, role)
        self._calls = AllCalls(instance_key)


if TYPE_CHECKING:

    def _is_trex(client: MemoryClient) -> Trex:
        return client
