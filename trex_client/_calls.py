"""Arguments of the API made into SQL calls, shared by both clients and by `--print-sql`.

Every parameter travels as text (or NULL) with an explicit cast: one prepared statement per function
whatever the size of a number, and arrays without psycopg's slow generic dumper. Every result column
is named. Money comes back as text, so that no adapter registered elsewhere can make a float of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from trex_client.errors import InvalidArgument
from trex_client.model import (
    Box,
    Cash,
    Claim,
    ConfirmedBy,
    EffectPolicy,
    Enqueued,
    Exchange,
    Extended,
    InstancePolicy,
    InstanceStats,
    MessageStatus,
    Movement,
    OnConflict,
    OnLost,
    Operated,
    ParkedMessage,
    Pending,
    Purged,
    Recorded,
    Report,
    Resolution,
    Result,
)

S = TypeVar("S")
T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = tuple[str | None, ...]

_INSTANCE_KEY: Final = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}")
_MOST_LEVELS: Final = 256
_STRING_OR_BRACKET: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
_INT4_MAX: Final = 2**31 - 1
_INT8_MAX: Final = 2**63 - 1
# 200 years: more than any function accepts, less than an interval holds.
_LONGEST: Final = timedelta(days=73_000)
_MICROSECOND: Final = timedelta(microseconds=1)

# What is allowed, as the functions' hints say it.
_KEY_TEXT: Final = "1 to 63 of a-z 0-9 . _ : -, a letter or digit first"
_TEXT: Final = "text, no NUL, no lone surrogates"
_INT4: Final = "a whole number of 32 bits"
_INT8: Final = "a whole number of 64 bits"
_BOOL: Final = "true or false"
_NUMBER: Final = "Decimal or int, at most 38 digits before the point and 1000 after it"
_SPAN: Final = "a duration of at most 200 years"
_INSTANT: Final = "a time with its time zone"
_DEEP: Final = f"at most {_MOST_LEVELS} levels deep, no NUL, no lone surrogates"
_JSON_TEXT: Final = f"JSON text, {_DEEP}, no number beyond numeric"
_JSON_DATA: Final = f"dict, list, str, numbers but NaN and infinity, bool and None, {_DEEP}"


# Values. Ranges are the functions' business; here is refused what can't travel.


def check_instance_key(value: object) -> str:
    """The key as `str`.

    Raises:
        InvalidArgument: it is anything but a well-formed instance key.
    """
    if not isinstance(value, str) or _INSTANCE_KEY.fullmatch(value) is None:
        raise InvalidArgument(f"instance_key: {_KEY_TEXT}")
    return str.__str__(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidArgument(f"{name}: {_TEXT}")
    if not value.isascii():
        _refuse_surrogates(name, value)
    return str.__str__(value)


def _optional_text(name: str, value: object) -> str | None:
    return None if value is None else _text(name, value)


def _refuse_surrogates(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        pass
    else:
        return
    raise InvalidArgument(f"{name}: {_TEXT}")


def _integer(name: str, value: object, most: int = _INT8_MAX) -> str:
    if not isinstance(value, int) or isinstance(value, bool) or not -most <= value <= most:
        raise InvalidArgument(f"{name}: {_INT8 if most == _INT8_MAX else _INT4}")
    return int.__repr__(value)


def _int4(name: str, value: object) -> str:
    return _integer(name, value, _INT4_MAX)


def _flag(name: str, value: object) -> str:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name}: {_BOOL}")
    return "true" if value else "false"


def _money(name: str, value: object) -> str | None:
    """An amount in plain digits; `Decimal` or `int`, never `float`."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        raise InvalidArgument(f"{name}: {_NUMBER}")
    if value.is_zero():
        return "0"
    exponent = value.as_tuple().exponent
    if value.adjusted() >= 38 or not isinstance(exponent, int) or exponent < -1000:
        raise InvalidArgument(f"{name}: {_NUMBER}")
    return format(value, "f")


def _interval(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, timedelta) or abs(value) > _LONGEST:
        raise InvalidArgument(f"{name}: {_SPAN}")
    seconds, micros = divmod(abs(value) // _MICROSECOND, 1_000_000)
    sign = "-" if value.days < 0 else ""
    return f"{sign}{seconds}.{micros:06d} seconds"


def _duration(name: str, value: object) -> str:
    text = _interval(name, value)
    if text is None:
        raise InvalidArgument(f"{name}: {_SPAN}")
    return text


def _time(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidArgument(f"{name}: {_INSTANT}")
    try:
        return value.astimezone(UTC).isoformat()
    except (OverflowError, ValueError):
        pass
    raise InvalidArgument(f"{name}: {_INSTANT}")


def _payload(name: str, payload: object, payload_json: object) -> str:
    if (payload is None) == (payload_json is None):
        raise InvalidArgument(f"{name}: give either {name} or {name}_json")
    if payload_json is not None:
        return check_json(payload_json, name)
    return encode_json(payload, name)


def check_json(value: object, name: str = "payload") -> str:
    """JSON text that `jsonb` takes. The server would write what it can't read into its log.

    Raises:
        InvalidArgument: it isn't JSON; a NUL or a lone surrogate is in it, escaped or not; a number
            has more digits than `numeric`; too deep a nesting.
    """
    text = _text(name, value)
    if is_too_deep(text):
        raise InvalidArgument(f"{name}: {_JSON_TEXT}")
    try:
        json.loads(text, parse_int=_digits, parse_float=_digits, parse_constant=_digits)
        fine = all(map(_is_character, _ESCAPE.finditer(text))) if "\\u" in text else True
    except (ValueError, ArithmeticError, RecursionError):
        fine = False
    if not fine:
        raise InvalidArgument(f"{name}: {_JSON_TEXT}")
    return text


# Escapes of JSON text, a pair of surrogates as one.
_ESCAPE: Final = re.compile(
    r"\\(?:u(d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|[0-9a-f]{4})|.)", re.IGNORECASE | re.DOTALL
)


def _is_character(escape: re.Match[str]) -> bool:
    code = escape[1]
    if code is None or len(code) > 4:
        return True
    return code != "0000" and not 0xD800 <= int(code, 16) <= 0xDFFF


def _digits(token: str | Decimal) -> None:
    """Refuse a number with more than 131,072 digits before or 16,383 after the point; NaN too."""
    number = Decimal(token)
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -16383 or number.adjusted() > 131071:
        raise ValueError


def encode_json(value: object, name: str = "payload") -> str:
    """JSON text of `dict` with `str` keys, `list`, `tuple`, `str`, `int`, `Decimal`, finite
    `float`, `bool`, `None`.

    A `Decimal` becomes the exact number literal.

    Raises:
        InvalidArgument: anything else is in it; a NUL or a lone surrogate; more than 256 levels.
    """
    parts: list[str] = []
    try:
        _encode(value, parts.append)
        text = "".join(parts)
        if is_too_deep(text):
            raise ValueError
        if not text.isascii():
            text.encode()
    except (RecursionError, ValueError):
        pass
    else:
        return text
    raise InvalidArgument(f"{name}: {_JSON_DATA}")


def is_too_deep(text: str) -> bool:
    """Whether JSON text has more levels than a payload may have, told without recursion. The limit
    is the clients' own: PostgreSQL's depends on the size of its stack."""
    if text.count("[") + text.count("{") <= _MOST_LEVELS:
        return False
    level = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[0] in ("[", "{"):
            level += 1
            if level > _MOST_LEVELS:
                return True
        elif found[0] in ("]", "}"):
            level -= 1
    return False


def _encode(value: object, write: Callable[[str], object]) -> None:
    if isinstance(value, str):
        write(_encode_string(value))
    elif value is None:
        write("null")
    elif isinstance(value, bool):
        write("true" if value else "false")
    elif isinstance(value, int):
        write(int.__repr__(value))
    elif isinstance(value, Decimal):
        _digits(value)
        write(str(value))
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError
        write(float.__repr__(value))
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError
            write(before)
            write(_encode_string(key))
            write(":")
            _encode(item, write)
            before = ","
        write("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        before = "["
        for item in value:
            write(before)
            _encode(item, write)
            before = ","
        write("]" if value else "[]")
    else:
        raise ValueError


def _encode_string(value: str) -> str:
    if "\0" in value:
        raise ValueError
    return encode_basestring(value)


# Arrays, as PostgreSQL's text form of them.


def _sequence(name: str, value: Sequence[T], kind: type[T] | None = None) -> Sequence[T]:
    wrong = isinstance(value, (str, bytes, bytearray)) or not _is_sequence(value)
    if not wrong and kind is not None:
        wrong = not all(issubclass(found, kind) for found in {*map(type, value)})
    if wrong:
        raise InvalidArgument(f"{name}: a list" + (f" of {kind.__name__}" if kind else ""))
    return value


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence)


def each(row: str, items: Iterable[S], check: Callable[[S], T]) -> list[T]:
    """What `check` makes of each item; a refusal says of which, from 1."""
    done: list[T] = []
    failure = ""
    for number, item in enumerate(items, 1):
        try:
            done.append(check(item))
        except InvalidArgument as refusal:
            failure = f"{row} {number}: {refused(refusal)}"
            break
    if failure:
        raise InvalidArgument(failure)
    return done


def refused(refusal: InvalidArgument) -> str:
    """What it refuses: the text after the name of the error."""
    return str(refusal).removeprefix(f"{refusal.text}: ")


def _array(items: Sequence[str | None]) -> str:
    """An array of values that need no quotes: numbers, flags, times; closed lists after a check."""
    return "{" + ",".join(["null" if item is None else item for item in items]) + "}"


def _quoted_array(items: Sequence[str | None]) -> str:
    quoted = [
        "null" if item is None else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for item in items
    ]
    return "{" + ",".join(quoted) + "}"


def _ids(name: str, values: Sequence[int]) -> str:
    numbers = list(_sequence(name, values))
    if set(map(type, numbers)) <= {int} and max(map(abs, numbers), default=0) <= _INT8_MAX:
        return "{" + str(numbers)[1:-1] + "}"
    return _array([_integer(name, number) for number in numbers])


def _column(
    name: str,
    values: list[Any],
    default: object,
    convert: Callable[[str, object], str | None],
    array: Callable[[Sequence[str | None]], str],
) -> str | None:
    """One optional array of a batch. NULL is the function's own default, and all that it accepts
    where the column isn't for the result that is reported."""
    if {*map(id, values)} <= {id(default)}:
        return None
    texts = [None if value is default else convert(name, value) for value in values]
    given = [None if text == default else text for text in texts]
    return None if given.count(None) == len(given) else array(given)


# Statements.


class Statement(Generic[T]):
    """A call of one function: its text, and what makes its rows the result.

    Attributes:
        name: the function.
        arguments: names of its parameters, without `p_`.
        sql: the call, with `%s` for each argument.
        load: rows to result.
        hot: always a server-side prepared statement.
        own: runs in a transaction of its own, committed before the result is returned.
        result: for the single outcomes: what to tell `report_stale` when the claim was lost.
    """

    __slots__ = ("arguments", "hot", "load", "name", "own", "result", "sql")

    def __init__(
        self,
        name: str,
        arguments: str,
        columns: str,
        load: Callable[[list[Row]], T],
        *,
        hot: bool = False,
        own: bool = False,
        result: Result | None = None,
        instance: bool = True,
    ) -> None:
        pairs = [argument.split(" ", 1) for argument in arguments.split(", ") if argument]
        if instance:
            pairs.insert(0, ["instance_key", "text"])
        call = ", ".join(f"p_{argument} => %s::{kind}" for argument, kind in pairs)
        if columns:
            listed = ", ".join(f"r.{column}" for column in columns.split())
            self.sql = f"select {listed} from trex.{name}({call}) as r"  # noqa: S608 - constants
        else:
            self.sql = f"select trex.{name}({call})"
        self.name = name
        self.arguments = tuple(argument for argument, _ in pairs)
        self.load = load
        self.hot = hot or own
        self.own = own
        self.result: Result | None = result


Call: TypeAlias = tuple[Statement[T], Params]


def render(call: Call[Any]) -> str:
    """The call as one SQL statement with its values quoted, to be read or run by psql."""
    statement, params = call
    texts = statement.sql.split("%s")
    quoted = [_literal(param) for param in params]
    return "".join(a + b for a, b in zip(texts, [*quoted, ";"], strict=True))


def _literal(value: str | None) -> str:
    if value is None:
        return "null"
    quoted = "'" + value.replace("'", "''") + "'"
    # E'' means the same whatever standard_conforming_strings says.
    return "E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted


def _with_times(row: Row, *columns: int) -> Row:
    return _converted(row, columns, lambda value: value.astimezone(UTC))


def _with_money(row: Row, *columns: int) -> Row:
    return _converted(row, columns, Decimal)


def _converted(row: Row, columns: tuple[int, ...], convert: Callable[[Any], object]) -> Row:
    values = list(row)
    for column in columns:
        if values[column] is not None:
            values[column] = convert(values[column])
    return tuple(values)


def _claim(row: Row) -> Claim:
    (
        message_id, fence, attempt, tries, lease_until, uncertain, box, topic, idempotency_key,
        correlation_id, ordering_key, account, currency, cash_delta, payload, effect_policy,
        enqueued_at,
    ) = row  # fmt: skip
    return Claim(
        message_id, fence, attempt, tries, lease_until.astimezone(UTC), uncertain, box, topic,
        idempotency_key, correlation_id, ordering_key, account, currency,
        None if cash_delta is None else Decimal(cash_delta), payload, effect_policy,
        enqueued_at.astimezone(UTC),
    )  # fmt: skip


def _recorded(row: Row) -> Recorded:
    message_id, fence, status, state, late, due_at = row
    return Recorded(
        message_id, fence, status, state, late, None if due_at is None else due_at.astimezone(UTC)
    )


def _claims(rows: list[Row]) -> list[Claim]:
    return [_claim(row) for row in rows]


def _recordeds(rows: list[Row]) -> list[Recorded]:
    return [_recorded(row) for row in rows]


def _one_recorded(rows: list[Row]) -> Recorded:
    return _recorded(rows[0])


def _exchange(rows: list[Row]) -> Exchange:
    recorded: list[Recorded] = []
    claims: list[Claim] = []
    for row in rows:
        if row[0] is None:
            claims.append(_claim(row[4:]))
        else:
            status, state, late, due_at, message_id, fence = row[:6]
            recorded.append(_recorded((message_id, fence, status, state, late, due_at)))
    return Exchange(recorded, claims)


def _one_enqueued(rows: list[Row]) -> Enqueued:
    return Enqueued(*rows[0])


def _enqueueds(rows: list[Row]) -> list[Enqueued]:
    return [Enqueued(*row) for row in rows]


def _extendeds(rows: list[Row]) -> list[Extended]:
    return [Extended(*_with_times(row, 3)) for row in rows]


def _operateds(rows: list[Row]) -> list[Operated]:
    return [Operated(*row) for row in rows]


def _pendings(rows: list[Row]) -> list[Pending]:
    return [Pending(*_with_times(_with_money(row, 9), 10, 14)) for row in rows]


def _cashes(rows: list[Row]) -> list[Cash]:
    return [Cash(*_with_money(row, 2, 3, 4)) for row in rows]


def _parkeds(rows: list[Row]) -> list[ParkedMessage]:
    return [ParkedMessage(*_with_times(_with_money(row, 10), 14, 15)) for row in rows]


def _status(rows: list[Row]) -> MessageStatus:
    return MessageStatus(*_with_times(rows[0], 11, 12, 13, 14))


def _stats(rows: list[Row]) -> InstanceStats:
    return InstanceStats(*_with_times(rows[0], 13, 14))


def _policy(rows: list[Row]) -> InstancePolicy:
    return InstancePolicy(*_with_times(rows[0], 11))


def _purged(rows: list[Row]) -> Purged:
    return Purged(*rows[0])


def _text_value(rows: list[Row]) -> str:
    value = rows[0][0]
    assert isinstance(value, str)  # noqa: S101 - the function's return type
    return value


def _bool_value(rows: list[Row]) -> bool:
    return rows[0][0] is True


def _int_value(rows: list[Row]) -> int:
    value = rows[0][0]
    assert isinstance(value, int)  # noqa: S101 - the function's return type
    return value


def _nothing(_rows: list[Row]) -> None:
    return None


_MESSAGE: Final = (
    "message_id fence attempt tries lease_until uncertain box topic idempotency_key correlation_id "
    "ordering_key account currency cash_delta::text payload::text effect_policy enqueued_at"
)
_RECORDED: Final = "message_id fence status state late due_at"
_REPORTS: Final = (
    "message_ids bigint[], fences bigint[], results text[], reasons text[], delays interval[], "
    "absent boolean[], park boolean[], confirmed_by text[], references text[], "
    "balances numeric[], versions bigint[]"
)
_OUTCOME: Final = "message_id bigint, fence bigint"
_CONFIRMED: Final = (
    f"{_OUTCOME}, reference text, confirmed_by text, balance numeric, version bigint, on_lost text"
)
_OPERATOR: Final = "actor text, reason text"

_ENQUEUE: Final = Statement(
    "enqueue",
    "topic text, idempotency_key text, payload jsonb, account text, currency text, "
    "cash_delta numeric, correlation_id text, ordering_key text, effect_policy text, "
    "delay interval, on_conflict text",
    "message_id status",
    _one_enqueued,
)
_ENQUEUE_MANY: Final = Statement(
    "enqueue_many",
    "topics text[], idempotency_keys text[], payloads jsonb[], accounts text[], currencies text[], "
    "cash_deltas numeric[], correlation_ids text[], ordering_keys text[], effect_policies text[], "
    "delays interval[], on_conflict text",
    "message_id status",
    _enqueueds,
)
_CLAIM: Final = Statement(
    "claim",
    "worker text, limit integer, lease interval, box text, correlation_id text, after bigint, "
    "due_after timestamptz",
    _MESSAGE,
    _claims,
    own=True,
)
_EXTEND: Final = Statement(
    "extend",
    "message_ids bigint[], fences bigint[], lease interval",
    "message_id fence status lease_until",
    _extendeds,
    hot=True,
)
_RELEASE: Final = Statement(
    "release",
    f"{_OUTCOME}, reason text, on_lost text",
    _RECORDED,
    _one_recorded,
    hot=True,
    result="released",
)
_POSTPONE: Final = Statement(
    "postpone",
    f"{_OUTCOME}, delay interval, reason text, on_lost text",
    _RECORDED,
    _one_recorded,
    hot=True,
    result="postponed",
)
_MARK_SENT: Final = Statement(
    "mark_sent", f"{_OUTCOME}, on_lost text", _RECORDED, _one_recorded, hot=True
)
_HOLD: Final = Statement("hold", f"{_OUTCOME}, timeout interval", _RECORDED, _one_recorded)
_LISTEN: Final = Statement("listen", "worker text, duration interval", "", _text_value)
_UNLISTEN: Final = Statement("unlisten", "worker text", "", _nothing)
_COMPLETE: Final = Statement(
    "complete", _CONFIRMED, _RECORDED, _one_recorded, hot=True, result="completed"
)
_COMPLETE_DUPLICATE: Final = Statement(
    "complete_duplicate", _CONFIRMED, _RECORDED, _one_recorded, hot=True, result="duplicate"
)
_RETRY: Final = Statement(
    "retry",
    f"{_OUTCOME}, reason text, delay interval, absent boolean, on_lost text",
    _RECORDED,
    _one_recorded,
    hot=True,
    result="retry",
)
_MARK_UNKNOWN: Final = Statement(
    "mark_unknown",
    f"{_OUTCOME}, reason text, delay interval, park boolean, on_lost text",
    _RECORDED,
    _one_recorded,
    result="unknown",
)
_CONFLICT: Final = Statement(
    "conflict",
    f"{_OUTCOME}, reason text, on_lost text",
    _RECORDED,
    _one_recorded,
    result="conflict",
)
_FAIL: Final = Statement(
    "fail",
    f"{_OUTCOME}, reason text, absent boolean, on_lost text",
    _RECORDED,
    _one_recorded,
    result="permanent",
)
_DEAD_LETTER: Final = Statement(
    "dead_letter",
    f"{_OUTCOME}, reason text, absent boolean, on_lost text",
    _RECORDED,
    _one_recorded,
    result="dead_letter",
)
_RECORD: Final = Statement("record", _REPORTS, _RECORDED, _recordeds, hot=True)
_EXCHANGE: Final = Statement(
    "exchange",
    "worker text, limit integer, lease interval, box text, after bigint, due_after timestamptz, "
    + _REPORTS,
    f"status state late due_at {_MESSAGE}",
    _exchange,
    own=True,
)
_REPORT_STALE: Final = Statement("report_stale", f"{_OUTCOME}, result text", "", _bool_value)
_LIST_PENDING: Final = Statement(
    "list_pending",
    "limit integer, after bigint, box text, include_parked boolean",
    "message_id box state topic idempotency_key correlation_id ordering_key account currency "
    "cash_delta::text due_at attempts tries uncertain enqueued_at",
    _pendings,
)
_PENDING_CASH_DELTA: Final = Statement(
    "pending_cash_delta",
    "account text, currency text",
    "account currency pending::text uncertain::text skipped::text entries",
    _cashes,
)
_LIST_PARKED: Final = Statement(
    "list_parked",
    "limit integer, after bigint, box text",
    "message_id box parked reason topic idempotency_key correlation_id ordering_key account "
    "currency cash_delta::text attempts uncertain abandoned parked_at enqueued_at",
    _parkeds,
)
_STATUS: Final = Statement(
    "status",
    "message_id bigint, idempotency_key text, box text",
    "message_id box state reason topic idempotency_key attempts tries fence uncertain worker "
    "lease_until due_at enqueued_at delivered_at duplicate confirmed_by reference",
    _status,
)
_STATS: Final = Statement(
    "stats",
    "box text, cap integer",
    "box ready due deferred waiting leased lease_ended dead_letter permanent conflict unknown "
    "abandoned blocked_keys oldest_due_at oldest_parked_at capped",
    _stats,
)
_POLICY: Final = Statement(
    "policy",
    "",
    "instance_key paused max_attempts lease_default lease_max backoff_base backoff_cap on_parked "
    "wake payload_max bound_roles registered_at",
    _policy,
)
_REGISTER_INSTANCE: Final = Statement(
    "register_instance",
    f"{_OPERATOR}, max_attempts integer, lease_default interval, lease_max interval, backoff_base "
    f"interval, "
    "backoff_cap interval, on_parked text, wake boolean, payload_max integer",
    "",
    _text_value,
)
_BIND: Final = Statement("bind", f"role_name text, {_OPERATOR}", "", _bool_value)
_UNBIND: Final = Statement("unbind", f"role_name text, {_OPERATOR}", "", _bool_value)
_PAUSE: Final = Statement("pause", _OPERATOR, "", _bool_value)
_RESUME: Final = Statement("resume", _OPERATOR, "", _bool_value)
_REDRIVE: Final = Statement(
    "redrive", f"message_ids bigint[], {_OPERATOR}", "message_id status", _operateds
)
_RESOLVE: Final = Statement(
    "resolve",
    f"message_id bigint, resolution text, evidence text, {_OPERATOR}, reference text",
    _RECORDED,
    _one_recorded,
)
_EXPEDITE: Final = Statement(
    "expedite", f"message_ids bigint[], {_OPERATOR}", "message_id status", _operateds
)
_PURGE: Final = Statement(
    "purge",
    f"older_than interval, {_OPERATOR}, limit integer, after bigint, dry_run boolean",
    "examined purged last_message_id",
    _purged,
)
_BUMP_EPOCH: Final = Statement("bump_epoch", _OPERATOR, "", _int_value, instance=False)
_REGISTER_CURRENCY: Final = Statement(
    "register_currency",
    f"currency text, exponent integer, {_OPERATOR}",
    "",
    _bool_value,
    instance=False,
)
_ADOPT: Final = Statement(
    "adopt",
    f"quarantine_id bigint, evidence text, {_OPERATOR}, topic text, idempotency_key text, "
    f"effect_policy text",
    "message_id status",
    _one_enqueued,
)


def stale_report(call: Call[Any]) -> Call[bool]:
    """For a single outcome whose claim was lost: the `report_stale` that keeps its result as
    evidence.
    """
    statement, params = call
    return _REPORT_STALE, (*params[:3], statement.result)


def _movement_params(m: Movement) -> Params:
    return (
        _text("topic", m.topic),
        _text("idempotency_key", m.idempotency_key),
        _payload("payload", m.payload, m.payload_json),
        _optional_text("account", m.account),
        _optional_text("currency", m.currency),
        _money("cash_delta", m.cash_delta),
        _optional_text("correlation_id", m.correlation_id),
        _optional_text("ordering_key", m.ordering_key),
        _text("effect_policy", m.effect_policy),
        _interval("delay", m.delay),
    )


def _report_params(reports: Sequence[Report]) -> Params:
    reports = _sequence("reports", reports, Report)
    with suppress(InvalidArgument):
        return _report_columns(reports)
    each("report", reports, lambda report: _report_columns([report]))
    raise InvalidArgument("reports")


def _report_columns(reports: Sequence[Report]) -> Params:
    return (
        _ids("message_id", [r.message_id for r in reports]),
        _ids("fence", [r.fence for r in reports]),
        _quoted_array([_text("result", r.result) for r in reports]),
        _column("reason", [r.reason for r in reports], "unspecified", _text, _quoted_array),
        _column("delay", [r.delay for r in reports], None, _interval, _array),
        _column("absent", [r.absent for r in reports], False, _flag, _array),
        _column("park", [r.park for r in reports], False, _flag, _array),
        _column("confirmed_by", [r.confirmed_by for r in reports], "answer", _text, _quoted_array),
        _column("reference", [r.reference for r in reports], None, _optional_text, _quoted_array),
        _column("balance", [r.balance for r in reports], None, _money, _array),
        _column("version", [r.version for r in reports], None, _optional_integer, _array),
    )


def _optional_integer(name: str, value: object) -> str | None:
    return None if value is None else _integer(name, value)


def _confirmed(
    key: str,
    message_id: int,
    fence: int,
    reference: str | None,
    confirmed_by: ConfirmedBy,
    balance: Decimal | None,
    version: int | None,
    on_lost: OnLost,
) -> Params:
    return (
        key,
        _integer("message_id", message_id),
        _integer("fence", fence),
        _optional_text("reference", reference),
        _text("confirmed_by", confirmed_by),
        _money("balance", balance),
        _optional_integer("version", version),
        _text("on_lost", on_lost),
    )


class Calls:
    """The functions of one instance: each method checks its arguments and returns the call.

    Every method raises `InvalidArgument` for a value of a wrong type or one that can't travel. What
    the functions themselves refuse is said in `sql/functions/**/NAME.sql`.
    """

    __slots__ = ("instance_key",)

    def __init__(self, instance_key: str) -> None:
        self.instance_key = check_instance_key(instance_key)

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
    ) -> Call[Enqueued]:
        """Put a message into the outbox, in the caller's transaction.

        `payload` is JSON data (`Decimal` for exact numbers), or JSON text in `payload_json`;
        exactly one of the two (JSON null only as text). `account`, `currency` and `cash_delta`: all
        or none. `delay`: 0 to 30 days.
        Returns `enqueued`, `duplicate`, or, with `on_conflict='report'`, `conflict`.

        Raises:
            InvalidArgument, AccessDenied, NotPrimary; KeyReused: the key exists with other content.
        """
        return _ENQUEUE, (
            self.instance_key,
            _text("topic", topic),
            _text("idempotency_key", idempotency_key),
            _payload("payload", payload, payload_json),
            _optional_text("account", account),
            _optional_text("currency", currency),
            _money("cash_delta", cash_delta),
            _optional_text("correlation_id", correlation_id),
            _optional_text("ordering_key", ordering_key),
            _text("effect_policy", effect_policy),
            _interval("delay", delay),
            _text("on_conflict", on_conflict),
        )

    def enqueue_many(
        self, movements: Sequence[Movement], *, on_conflict: OnConflict = "raise"
    ) -> Call[list[Enqueued]]:
        """`enqueue` for up to 10,000 messages: all or nothing, results in the same order.

        Raises:
            InvalidArgument, KeyReused: the text names the number of the movement, from 1.
            AccessDenied, NotPrimary.
        """
        rows = _sequence("movements", movements, Movement)
        checked = each("movement", rows, _movement_params)
        columns: list[list[str | None]] = [[row[i] for row in checked] for i in range(10)]
        quoted = [_quoted_array(column) for column in columns[:5]]
        return _ENQUEUE_MANY, (
            self.instance_key,
            *quoted,
            _array(columns[5]),
            *(_quoted_array(column) for column in columns[6:9]),
            _array(columns[9]),
            _text("on_conflict", on_conflict),
        )

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
    ) -> Call[list[Claim]]:
        """Lease up to `limit` (1 to 1,000) messages to `worker`, in a transaction of its own,
        committed on return.

        `lease`: 100 ms to the instance's `lease_max`; default the instance's. With `correlation_id`
        only that correlation's messages. `after` and `due_after` are hints for speed: see
        `docs/design.md`.

        Raises:
            InvalidArgument, AccessDenied, NotPrimary; WrongTransaction: the connection is inside a
            transaction, or
            not READ COMMITTED; CommitUnknown: the claims, if there are any, end with their lease.
        """
        return _CLAIM, (
            self.instance_key,
            _text("worker", worker),
            _int4("limit", limit),
            _interval("lease", lease),
            _text("box", box),
            _optional_text("correlation_id", correlation_id),
            _integer("after", after),
            _time("due_after", due_after),
        )

    def extend(
        self, message_ids: Sequence[int], fences: Sequence[int], *, lease: timedelta | None = None
    ) -> Call[list[Extended]]:
        """Heartbeat: `lease` from now for each claim that is still the current one; never shortens
        a lease.
        """
        return _EXTEND, (
            self.instance_key,
            _ids("message_ids", message_ids),
            _ids("fences", fences),
            _interval("lease", lease),
        )

    def release(
        self, message_id: int, fence: int, *, reason: str = "not_started", on_lost: OnLost = "raise"
    ) -> Call[Recorded]:
        """Give a claim back that wasn't worked on; it costs no try."""
        return _RELEASE, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("reason", reason),
            _text("on_lost", on_lost),
        )

    def postpone(
        self,
        message_id: int,
        fence: int,
        delay: timedelta,
        *,
        reason: str = "waiting",
        on_lost: OnLost = "raise",
    ) -> Call[Recorded]:
        """Give a claim back that waits for something else, for `delay` (0 to 30 days); it costs no
        try.
        """
        return _POSTPONE, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _duration("delay", delay),
            _text("reason", reason),
            _text("on_lost", on_lost),
        )

    def mark_sent(
        self, message_id: int, fence: int, *, on_lost: OnLost = "raise"
    ) -> Call[Recorded]:
        """Note before a call that can't be repeated; commit it before the call. The lease must not
        have ended.
        """
        return _MARK_SENT, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("on_lost", on_lost),
        )

    def hold(
        self, message_id: int, fence: int, *, timeout: timedelta = timedelta(seconds=10)
    ) -> Call[Recorded]:
        """Lock the message for the caller's business transaction, at most `timeout` idle (100 ms to
        10 minutes).
        """
        return _HOLD, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _duration("timeout", timeout),
        )

    def listen(self, worker: str, duration: timedelta) -> Call[str]:
        """Say that `worker` waits idle for `duration` (100 ms to 1 hour); returns the channel to
        LISTEN on.
        """
        return _LISTEN, (
            self.instance_key,
            _text("worker", worker),
            _duration("duration", duration),
        )

    def unlisten(self, worker: str) -> Call[None]:
        """Take back what `listen` said."""
        return _UNLISTEN, (self.instance_key, _text("worker", worker))

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
    ) -> Call[Recorded]:
        """Delivered. `balance` and `version`: the ledger's snapshot after the posting, both or
        neither.

        Raises:
            InvalidArgument, AccessDenied, NotFound, NotPrimary.
            ClaimLost: somebody else's claim by now: roll back. On an autocommit connection the
            rejected result was kept by `report_stale`; in a transaction of the caller, call that
            after the rollback.
            EndedOtherwise: this claim has another end already.
        """
        return _COMPLETE, _confirmed(
            self.instance_key, message_id, fence, reference, confirmed_by, balance, version, on_lost
        )

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
    ) -> Call[Recorded]:
        """Delivered: the ledger says it already has this key with this content. Otherwise as
        `complete`.
        """
        return _COMPLETE_DUPLICATE, _confirmed(
            self.instance_key, message_id, fence, reference, confirmed_by, balance, version, on_lost
        )

    def retry(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        delay: timedelta | None = None,
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Call[Recorded]:
        """Not delivered, try again: after the backoff, and at least `delay`; parked when the
        allowance is used up.

        `absent`: it is certain that no attempt took effect. Errors as `complete`.
        """
        return _RETRY, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("reason", reason),
            _interval("delay", delay),
            _flag("absent", absent),
            _text("on_lost", on_lost),
        )

    def mark_unknown(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        delay: timedelta | None = None,
        park: bool = False,
        on_lost: OnLost = "raise",
    ) -> Call[Recorded]:
        """Nobody can tell whether it took effect: deferred as uncertain, or parked. Errors as
        `complete`.
        """
        return _MARK_UNKNOWN, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("reason", reason),
            _interval("delay", delay),
            _flag("park", park),
            _text("on_lost", on_lost),
        )

    def conflict(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "key_conflict",
        on_lost: OnLost = "raise",
    ) -> Call[Recorded]:
        """Parked: the ledger has this key with other content. Errors as `complete`."""
        return _CONFLICT, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("reason", reason),
            _text("on_lost", on_lost),
        )

    def fail(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "rejected",
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Call[Recorded]:
        """Parked: refused for good. Errors as `complete`."""
        return _FAIL, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("reason", reason),
            _flag("absent", absent),
            _text("on_lost", on_lost),
        )

    def dead_letter(
        self,
        message_id: int,
        fence: int,
        *,
        reason: str = "unspecified",
        absent: bool = False,
        on_lost: OnLost = "raise",
    ) -> Call[Recorded]:
        """Parked: no more tries. Errors as `complete`."""
        return _DEAD_LETTER, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("reason", reason),
            _flag("absent", absent),
            _text("on_lost", on_lost),
        )

    def record(self, reports: Sequence[Report]) -> Call[list[Recorded]]:
        """Record up to 1,000 outcomes, each message at most once; one typed result per report, in
        the same order.
        """
        return _RECORD, (self.instance_key, *_report_params(reports))

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
    ) -> Call[Exchange]:
        """`record` and `claim` in one round trip and one transaction of its own, committed on
        return.
        """
        return _EXCHANGE, (
            self.instance_key,
            _text("worker", worker),
            _int4("limit", limit),
            _interval("lease", lease),
            _text("box", box),
            _integer("after", after),
            _time("due_after", due_after),
            *_report_params(reports),
        )

    def report_stale(self, message_id: int, fence: int, result: Result) -> Call[bool]:
        """Keep the rejected result of a lost claim as evidence. True if it is stored now, False if
        it wasn't new.
        """
        return _REPORT_STALE, (
            self.instance_key,
            _integer("message_id", message_id),
            _integer("fence", fence),
            _text("result", result),
        )

    def list_pending(
        self,
        *,
        limit: int = 100,
        after: int = 0,
        box: Box = "outbox",
        include_parked: bool = False,
    ) -> Call[list[Pending]]:
        """Undelivered messages that aren't under an active lease, by id, from the first above
        `after`.
        """
        return _LIST_PENDING, (
            self.instance_key,
            _int4("limit", limit),
            _integer("after", after),
            _text("box", box),
            _flag("include_parked", include_parked),
        )

    def pending_cash_delta(
        self, *, account: str | None = None, currency: str | None = None
    ) -> Call[list[Cash]]:
        """What the ledger hasn't got yet, or may not have, per account and currency."""
        return _PENDING_CASH_DELTA, (
            self.instance_key,
            _optional_text("account", account),
            _optional_text("currency", currency),
        )

    def list_parked(
        self, *, limit: int = 100, after: int = 0, box: Box = "outbox"
    ) -> Call[list[ParkedMessage]]:
        """Parked messages and why, by id, from the first above `after`."""
        return _LIST_PARKED, (
            self.instance_key,
            _int4("limit", limit),
            _integer("after", after),
            _text("box", box),
        )

    def status(
        self,
        message_id: int | None = None,
        *,
        idempotency_key: str | None = None,
        box: Box = "outbox",
    ) -> Call[MessageStatus]:
        """One message, by id or by idempotency key: exactly one of the two.

        Raises:
            NotFound: there is no such message in this instance and box.
        """
        return _STATUS, (
            self.instance_key,
            _optional_integer("message_id", message_id),
            _optional_text("idempotency_key", idempotency_key),
            _text("box", box),
        )

    def stats(self, *, box: Box = "outbox", cap: int = 100_000) -> Call[InstanceStats]:
        """Undelivered messages of one box by state; counting stops at `cap` (1 to 10,000,000)
        each.
        """
        return _STATS, (self.instance_key, _text("box", box), _int4("cap", cap))

    def policy(self) -> Call[InstancePolicy]:
        """The instance's policy and the roles bound to it."""
        return _POLICY, (self.instance_key,)

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
    ) -> Call[str]:
        """Register the instance or change its policy; None keeps a value. 'registered', 'changed'
        or 'unchanged'.
        """
        return _REGISTER_INSTANCE, (
            self.instance_key,
            _text("actor", actor),
            _text("reason", reason),
            None if max_attempts is None else _int4("max_attempts", max_attempts),
            _interval("lease_default", lease_default),
            _interval("lease_max", lease_max),
            _interval("backoff_base", backoff_base),
            _interval("backoff_cap", backoff_cap),
            _optional_text("on_parked", on_parked),
            None if wake is None else _flag("wake", wake),
            None if payload_max is None else _int4("payload_max", payload_max),
        )

    def bind(self, role_name: str, *, actor: str, reason: str) -> Call[bool]:
        """Let a database role act for the instance. True if that changed something."""
        return _BIND, (
            self.instance_key,
            _text("role_name", role_name),
            _text("actor", actor),
            _text("reason", reason),
        )

    def unbind(self, role_name: str, *, actor: str, reason: str) -> Call[bool]:
        """Take a role's binding away. True if that changed something."""
        return _UNBIND, (
            self.instance_key,
            _text("role_name", role_name),
            _text("actor", actor),
            _text("reason", reason),
        )

    def pause(self, *, actor: str, reason: str) -> Call[bool]:
        """No more claims until `resume`. True if that changed something."""
        return _PAUSE, (self.instance_key, _text("actor", actor), _text("reason", reason))

    def resume(self, *, actor: str, reason: str) -> Call[bool]:
        """Claims again after `pause`. True if that changed something."""
        return _RESUME, (self.instance_key, _text("actor", actor), _text("reason", reason))

    def redrive(
        self, message_ids: Sequence[int], *, actor: str, reason: str
    ) -> Call[list[Operated]]:
        """Bring parked messages (dead letter, permanent) back to work: same key, tries from 0."""
        return _REDRIVE, (
            self.instance_key,
            _ids("message_ids", message_ids),
            _text("actor", actor),
            _text("reason", reason),
        )

    def resolve(
        self,
        message_id: int,
        resolution: Resolution,
        *,
        evidence: str,
        actor: str,
        reason: str,
        reference: str | None = None,
    ) -> Call[Recorded]:
        """Decide about a parked message: 'resend' where its outcome is in doubt (unknown, conflict,
        uncertain); 'delivered', 'absent' and 'abandon' however it is parked: its ordering key goes
        on. 'delivered' and 'absent' end the doubt, 'abandon' doesn't.

        Raises:
            NotFound; EndedOtherwise: it is delivered already; Forbidden: it isn't parked, or isn't
            in doubt.
        """
        return _RESOLVE, (
            self.instance_key,
            _integer("message_id", message_id),
            _text("resolution", resolution),
            _text("evidence", evidence),
            _text("actor", actor),
            _text("reason", reason),
            _optional_text("reference", reference),
        )

    def expedite(
        self, message_ids: Sequence[int], *, actor: str, reason: str
    ) -> Call[list[Operated]]:
        """Make deferred messages due now."""
        return _EXPEDITE, (
            self.instance_key,
            _ids("message_ids", message_ids),
            _text("actor", actor),
            _text("reason", reason),
        )

    def purge(
        self,
        older_than: timedelta,
        *,
        actor: str,
        reason: str,
        limit: int = 1000,
        after: int = 0,
        dry_run: bool = False,
    ) -> Call[Purged]:
        """Remove payloads of outbox messages delivered longer ago than `older_than` (0 to 100
        years).
        """
        return _PURGE, (
            self.instance_key,
            _duration("older_than", older_than),
            _text("actor", actor),
            _text("reason", reason),
            _int4("limit", limit),
            _integer("after", after),
            _flag("dry_run", dry_run),
        )

    def bump_epoch(self, *, actor: str, reason: str) -> Call[int]:
        """Raise the epoch of all fences of the database, after history may have been lost; returns
        it.
        """
        return _BUMP_EPOCH, (_text("actor", actor), _text("reason", reason))

    def register_currency(
        self, currency: str, exponent: int, *, actor: str, reason: str
    ) -> Call[bool]:
        """Make a currency known, with `exponent` decimals (0 to 18). False if it was known like
        that.
        """
        return _REGISTER_CURRENCY, (
            _text("currency", currency),
            _int4("exponent", exponent),
            _text("actor", actor),
            _text("reason", reason),
        )

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
    ) -> Call[Enqueued]:
        """Copy one quarantined row of an older outbox into this instance's outbox, uncertain,
        once.
        """
        return _ADOPT, (
            self.instance_key,
            _integer("quarantine_id", quarantine_id),
            _text("evidence", evidence),
            _text("actor", actor),
            _text("reason", reason),
            _optional_text("topic", topic),
            _optional_text("idempotency_key", idempotency_key),
            _text("effect_policy", effect_policy),
        )
