"""Bad input: a typed error with constant text, nothing written, alike on every backend."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import WHO
from trex_client.errors import InvalidArgument
from trex_client.memory import MemoryClient, MemoryDatabase
from trex_client.model import Movement, Report
from trex_client.postgres import AsyncPostgresClient, PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.backends import Backend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0039"), pytest.mark.criterion("ac-0038")]

SECOND = timedelta(seconds=1)
NAN, INFINITY = float("nan"), float("inf")
CANARY = "s3cr3t"

NOT_KEYS: dict[str, object] = {
    "missing": None,
    "empty": "",
    "a blank": " ",
    "blanks": "   ",
    "a tab": "\t",
    "no-break spaces": "\u00a0",
    "zero-width": "\u200b",
    "a leading blank": f" {CANARY}",
    "a trailing blank": f"{CANARY} ",
    "a trailing no-break space": f"{CANARY}\u00a0",
    "a byte order mark": f"\ufeff{CANARY}",
    "a line feed": f"{CANARY}\n",
    "NUL": f"{CANARY}\0x",
    "a control character": f"{CANARY}\x1fx",
    "delete": f"{CANARY}\x7fx",
    "a C1 control": f"{CANARY}\x85x",
    "a lone surrogate": f"{CANARY}\ud800x",
    "over-long": "k" * 256,
    "over-long in code points": "é" * 256,
    "a number": 7,
    "bytes": CANARY.encode(),
    "a list": [CANARY],
}
KEYS = {"one": "k", "the longest": "k" * 255, "255 code points": "😀" * 255, "blank inside": "a b"}
NOT_SLUGS: dict[str, object] = {
    **NOT_KEYS,
    "upper case": "Topic",
    "a leading dot": ".topic",
    "64 long": "t" * 64,
    "not ascii": "thé",
    "inner blank": "a b",
    "a slash": "a/b",
}
NOT_TEXTS: dict[str, object] = {
    "missing": None,
    "empty": "",
    "blank": " \u3000",
    "over-long": "x" * 1001,
    "a line feed": f"{CANARY}\n{CANARY}",
    "NUL": f"{CANARY}\0",
    "a lone surrogate": f"{CANARY}\udfff",
    "a number": 7,
}
NOT_IDS: list[object] = [0, -1, 2**63, None, "1", 1.0, True, Decimal(1)]
LONG: list[timedelta] = [timedelta(days=999_999_999), timedelta.max, timedelta.min]
NOT_LEASES: list[object] = [
    timedelta(0),
    -SECOND,
    timedelta(microseconds=1),
    timedelta(milliseconds=99, microseconds=999),
    timedelta(minutes=15, microseconds=1),
    timedelta(days=1, microseconds=1),
    timedelta(days=25),
    timedelta(days=400),
    *LONG,
    30,
    0.5,
    "30 seconds",
]
NOT_DELAYS: list[object] = [
    -SECOND,
    timedelta(microseconds=-1),
    timedelta(days=30, microseconds=1),
    *LONG,
    30,
    0.5,
    "1 month",
]
NOT_LIMITS: list[object] = [0, -1, 1001, 10**9, 2**31, 2**63, None, 1.0, "1", True]
NOT_READ_LIMITS: list[object] = [0, -1, 10_001, 10**9, 2**40, None, 1.0, "1"]
NOT_AFTER: list[object] = [-1, 2**63, None, "0", 0.0]

MOVEMENT: dict[str, Any] = {"topic": "t", "idempotency_key": "k", "payload": {}}
CASH: dict[str, Any] = {"account": "a", "currency": "USD", "cash_delta": Decimal(1)}


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


BAD_MOVEMENTS: list[tuple[str, dict[str, Any]]] = [
    *((f"topic {n}", {"topic": v}) for n, v in NOT_SLUGS.items()),
    *((f"idempotency_key {n}", {"idempotency_key": v}) for n, v in NOT_KEYS.items()),
    *(
        (f"{name} {n}", {name: v})
        for name in ("correlation_id", "ordering_key")
        for n, v in NOT_KEYS.items()
        if v is not None
    ),
    *((f"account {n}", {**CASH, "account": v}) for n, v in NOT_KEYS.items()),
    ("account alone", {"account": "a"}),
    ("currency alone", {"currency": "USD"}),
    ("amount alone", {"cash_delta": 1}),
    ("currency without amount", {"account": "a", "currency": "USD"}),
    ("amount without account", {"currency": "USD", "cash_delta": 1}),
    *(
        (f"currency {value!r}", {**CASH, "currency": value})
        for value in ("usd", " USD", "USD ", "U\u0405D", "XXQ", "", "DOLLARS", "US", 840, "USD\0")
    ),
    *(
        (f"cash_delta {value!r}", {**CASH, "cash_delta": value})
        for value in (
            1.0, 0.1 + 0.2, NAN, INFINITY, True, "1", [1],
            Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("-Infinity"),
            Decimal("1.005"), Decimal("0.00000001"), Decimal("1e400"), Decimal("1e-400"),
            10**36, -(10**36), 10**40, Decimal("9" * 39),
        )
    ),
    ("JPY with decimals", {**CASH, "currency": "JPY", "cash_delta": Decimal("1.5")}),
    ("KRW with 39 digits", {**CASH, "currency": "KRW", "cash_delta": 10**38}),
    ("BTC with nine decimals", {**CASH, "currency": "BTC", "cash_delta": Decimal("0.000000001")}),
    *(
        (f"effect_policy {value!r}", {"effect_policy": value})
        for value in (None, "", "exactly_once", "Idempotent", 1)
    ),
    *((f"delay {value!r}", {"delay": value}) for value in NOT_DELAYS),
    ("no payload", {"payload": None}),
    ("both payloads", {"payload_json": "{}"}),
    *(
        (f"payload {name}", {"payload": value})
        for name, value in {
            "NaN": {"x": NAN},
            "Infinity": [INFINITY],
            "-Infinity": -INFINITY,
            "Decimal NaN": Decimal("NaN"),
            "Decimal sNaN": [Decimal("sNaN")],
            "Decimal Infinity": Decimal("Infinity"),
            "NUL": {"memo": "a\0b"},
            "NUL in a key": {"a\0b": 1},
            "a lone surrogate": {"x": "\ud800"},
            "a surrogate in a key": {"\udc00": 1},
            "a number as key": {1: 1},
            "bytes": b"x",
            "a set": {1},
            "a time": datetime(2030, 1, 1, tzinfo=UTC),
            "an object": object(),
            "too deep": _nested(100_000),
            "too many digits": Decimal("1e200000"),
            "too small": Decimal("1e-20000"),
        }.items()
    ),
    *(
        (f"payload_json {value[:12]!r}", {"payload": None, "payload_json": value})
        for value in (
            "", " ", "{", "nul", "NaN", "Infinity", "-Infinity", "{'a': 1}", '{"a": 1,}', "01",
            "1.", ".5", "+1", '"\x01"', '"\\u0000"', '{"\\u0000": 1}', '"\\ud800"',
            '"\\udc00\\ud800"',
            '"\\x"', "[1] 2", '"a\0b"', '"\ud800"', "\ufeff{}", "1e200000", "tru\u0435", "// x\n1",
        )
    ),
    ("payload_json bytes", {"payload": None, "payload_json": b"{}"}),
    ("payload_json a dict", {"payload": None, "payload_json": {}}),
    ("payload over the limit", {"payload": "x" * 1_048_576}),
]  # fmt: skip

Call = tuple[str, "Callable[[Trex], object]"]


def _calls() -> list[Call]:
    """Every argument of every other function, wrong in every way that is in the list."""
    made: list[Call] = []

    def bad(name: str, values: Any, **more: Any) -> None:
        method, argument = name.split(" ")
        for value in values.values() if isinstance(values, dict) else values:
            kwargs = {**_GOOD[method], **more, argument: value}
            made.append((f"{name}={value!r:.40}", _call(method, kwargs)))

    for method in ("claim", "exchange"):
        bad(f"{method} worker", NOT_KEYS)
        bad(f"{method} limit", NOT_LIMITS)
        bad(f"{method} lease", NOT_LEASES)
        bad(f"{method} box", [None, "", "Outbox", "both", 1])
        bad(f"{method} after", NOT_AFTER)
        bad(f"{method} due_after", [datetime(2030, 1, 1), 0, "now", "infinity"])  # noqa: DTZ001
    bad("claim correlation_id", {k: v for k, v in NOT_KEYS.items() if v is not None})
    bad("extend lease", NOT_LEASES)
    bad("extend message_ids", [[i] for i in NOT_IDS])
    bad("extend fences", [[i] for i in NOT_IDS])
    bad("extend message_ids", [[], [1, 1], [1, 2], None, 1, "1", list(range(1, 1002))])
    bad("extend fences", [[], [1, 1], None])
    for method in OUTCOMES:
        bad(f"{method} message_id", NOT_IDS)
        bad(f"{method} fence", NOT_IDS)
        bad(f"{method} on_lost", [None, "", "ignore", True])
    for method in (
        "release",
        "postpone",
        "retry",
        "mark_unknown",
        "conflict",
        "fail",
        "dead_letter",
    ):
        bad(f"{method} reason", ["", "because", "Timeout", f"{CANARY} 42", "timeout ", 7, "x\0"])
    for method in ("postpone", "retry", "mark_unknown"):
        bad(f"{method} delay", NOT_DELAYS)
    bad("postpone delay", [None])
    for method in ("retry", "fail", "dead_letter"):
        bad(f"{method} absent", [1, "true", "yes"])
    bad("mark_unknown park", [1, "true"])
    for method in ("complete", "complete_duplicate"):
        bad(f"{method} reference", {k: v for k, v in NOT_KEYS.items() if v is not None})
        bad(f"{method} confirmed_by", ["", "operator", "nobody", 1])
        bad(f"{method} balance", [Decimal(1), 1], version=None)
        bad(f"{method} version", [1], balance=None)
        bad(f"{method} version", [-1, 2**63, "1", 1.0, True], balance=Decimal(1))
        bad(
            f"{method} balance",
            [1.0, Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity"), "1", True, 10**40],
            version=1,
        )
    bad("hold message_id", NOT_IDS)
    bad("hold fence", NOT_IDS)
    bad(
        "hold timeout", [timedelta(milliseconds=99), timedelta(minutes=11), -SECOND, *LONG, 1, None]
    )
    bad("listen worker", NOT_KEYS)
    bad("listen duration", [timedelta(milliseconds=99), timedelta(hours=2), *LONG, 1, None])
    bad("unlisten worker", NOT_KEYS)
    bad("report_stale message_id", NOT_IDS)
    bad("report_stale fence", NOT_IDS)
    bad("report_stale result", [None, "", "lease_expired", "done", 1])
    for method in ("list_pending", "list_parked"):
        bad(f"{method} limit", NOT_READ_LIMITS)
        bad(f"{method} after", NOT_AFTER)
        bad(f"{method} box", [None, "", "both"])
    bad("list_pending include_parked", [None, 1, "yes"])
    bad("pending_cash_delta account", {k: v for k, v in NOT_KEYS.items() if v is not None})
    bad("pending_cash_delta currency", ["usd", "", "XXQ", 840])
    bad("status message_id", [*NOT_IDS[:3], "1", 1.0])
    bad(
        "status idempotency_key",
        {k: v for k, v in NOT_KEYS.items() if v is not None},
        message_id=None,
    )
    bad("status idempotency_key", ["k"])
    bad("status message_id", [None])
    bad("status box", [None, "", "both"])
    bad("stats box", [None, "", "both"])
    bad("stats cap", [0, -1, 10_000_001, 2**40, None, "1"])
    for method in OPERATOR:
        bad(f"{method} actor", NOT_KEYS)
        bad(f"{method} reason", NOT_TEXTS)
    bad("register_instance max_attempts", [0, -1, 1001, 2**31, "3", 1.5, True])
    bad("register_instance lease_default", [*NOT_LEASES[:4], timedelta(minutes=16), *LONG])
    bad("register_instance lease_max", [*NOT_LEASES[:4], timedelta(hours=25), SECOND, *LONG])
    bad("register_instance backoff_base", [timedelta(0), -SECOND, timedelta(hours=2), *LONG, 1])
    bad("register_instance backoff_cap", [timedelta(0), timedelta(days=31), *LONG, 1])
    bad("register_instance backoff_cap", [timedelta(milliseconds=999)])
    bad("register_instance on_parked", ["", "stop", 1])
    bad("register_instance wake", [1, "true"])
    bad("register_instance payload_max", [0, 1, 16_777_217, 2**31, "10"])
    for method in ("bind", "unbind"):
        bad(f"{method} role_name", {**NOT_KEYS, "64 bytes": "r" * 64, "32 accents": "é" * 32})
    for method in ("redrive", "expedite"):
        bad(f"{method} message_ids", [[i] for i in NOT_IDS])
        bad(f"{method} message_ids", [[1, 1], [1, None], None, 1, "1", list(range(1, 1002))])
    bad("resolve message_id", NOT_IDS)
    bad("resolve resolution", [None, "", "done", "deliver"])
    bad("resolve evidence", NOT_TEXTS)
    bad("resolve reference", {k: v for k, v in NOT_KEYS.items() if v is not None})
    bad("resolve reference", ["r"], resolution="resend")
    bad("purge older_than", [-SECOND, timedelta(days=36526), *LONG, 1, None])
    bad("purge limit", NOT_READ_LIMITS)
    bad("purge after", NOT_AFTER)
    bad("purge dry_run", [None, 1, "yes"])
    bad("register_currency currency", [None, "", "ab", "xyz", "1AB", "A" * 13, "A\0B", 1])
    bad("register_currency exponent", [-1, 19, 2**31, None, "2", 1.0])
    bad("adopt quarantine_id", NOT_IDS)
    bad("adopt evidence", NOT_TEXTS)
    bad("adopt topic", {k: v for k, v in NOT_SLUGS.items() if v is not None})
    bad("adopt idempotency_key", {k: v for k, v in NOT_KEYS.items() if v is not None})
    bad("adopt effect_policy", [None, "", "once"])
    return made


OUTCOMES = (
    "release", "postpone", "mark_sent", "complete", "complete_duplicate", "retry", "mark_unknown",
    "conflict", "fail", "dead_letter",
)  # fmt: skip
OPERATOR = (
    "register_instance", "bind", "unbind", "pause", "resume", "redrive", "resolve", "expedite",
    "purge", "bump_epoch", "register_currency", "adopt",
)  # fmt: skip
_CLAIM = {"message_id": 1, "fence": (1 << 42) + 1}
_GOOD: dict[str, dict[str, Any]] = {
    "claim": {"worker": "w"},
    "exchange": {"reports": [], "worker": "w"},
    "extend": {"message_ids": [1], "fences": [_CLAIM["fence"]]},
    **dict.fromkeys((*OUTCOMES, "hold"), _CLAIM),
    "postpone": {**_CLAIM, "delay": SECOND},
    "listen": {"worker": "w", "duration": SECOND},
    "unlisten": {"worker": "w"},
    "report_stale": {**_CLAIM, "result": "retry"},
    "list_pending": {},
    "list_parked": {},
    "pending_cash_delta": {},
    "status": {"message_id": 1},
    "stats": {},
    **dict.fromkeys(OPERATOR, WHO),
    "bind": {"role_name": "somebody", **WHO},
    "unbind": {"role_name": "somebody", **WHO},
    "redrive": {"message_ids": [1], **WHO},
    "expedite": {"message_ids": [1], **WHO},
    "resolve": {"message_id": 1, "resolution": "delivered", "evidence": "e", **WHO},
    "purge": {"older_than": SECOND, **WHO},
    "register_currency": {"currency": "ZZZ", "exponent": 2, **WHO},
    "adopt": {"quarantine_id": 1, "evidence": "e", **WHO},
}


def _call(method: str, kwargs: dict[str, Any]) -> Callable[[Trex], object]:
    return lambda client: getattr(client, method)(**kwargs)


def _refused(client: Trex, name: str, call: Callable[[Trex], object]) -> None:
    """InvalidArgument, whose text holds nothing of the input and that carries no other error."""
    error: BaseException | None = None
    try:
        call(client)
    except InvalidArgument as refused:
        error = refused
    assert error is not None, f"accepted: {name}"
    while error is not None:
        assert isinstance(error, InvalidArgument), name
        assert str(error).startswith("invalid argument"), name
        assert CANARY not in str(error), name
        assert error.__cause__ is None, name
        error = error.__context__


@pytest.fixture
def leased(backend: Backend, shop: Trex) -> Trex:
    """A message with cash under a lease, so that a call that is let through would do something."""
    shop.enqueue("t", "first", {}, **CASH)
    assert shop.claim("w")[0].fence == _CLAIM["fence"]
    return shop


def test_bad_movements(backend: Backend, leased: Trex) -> None:
    before = backend.dump()
    for name, wrong in BAD_MOVEMENTS:
        arguments = {**MOVEMENT, **wrong}
        _refused(leased, name, lambda c: c.enqueue(**arguments))  # noqa: B023
        _refused(leased, name, lambda c: c.enqueue_many([Movement(**arguments)]))  # noqa: B023
    values: list[Any] = [None, "", "ignore", True]
    for value in values:
        _refused(leased, "on_conflict", lambda c: c.enqueue(**MOVEMENT, on_conflict=value))  # noqa: B023
        _refused(leased, "on_conflict", lambda c: c.enqueue_many([], on_conflict=value))  # noqa: B023
    values = [None, "t", Movement(**MOVEMENT), [MOVEMENT], [None]]
    for value in values:
        _refused(leased, "movements", lambda c: c.enqueue_many(value))  # noqa: B023
    assert backend.dump() == before


def test_bad_arguments_of_every_function(backend: Backend, leased: Trex) -> None:
    before = backend.dump()
    calls = _calls()
    for name, call in calls:
        _refused(leased, name, call)
    assert len(calls) > 800
    assert backend.dump() == before


def test_bad_reports(backend: Backend, leased: Trex) -> None:
    at = (1, _CLAIM["fence"])
    good = Report(*at, "completed")
    bad: list[Any] = [
        *(Report(i, 1, "completed") for i in NOT_IDS),  # type: ignore[arg-type]
        *(Report(1, i, "completed") for i in NOT_IDS),  # type: ignore[arg-type]
        *(Report(*at, r) for r in ("", None, "lease_expired", "ok", 1)),  # type: ignore[arg-type]
        *(Report(*at, "retry", r) for r in ("", "because", f"{CANARY}", 7)),  # type: ignore[arg-type]
        *(Report(*at, "retry", delay=d) for d in NOT_DELAYS),  # type: ignore[arg-type]
        Report(*at, "postponed"),
        Report(*at, "completed", "timeout"),
        Report(*at, "completed", delay=SECOND),
        Report(*at, "completed", absent=True),
        Report(*at, "completed", park=True),
        Report(*at, "duplicate", confirmed_by="operator"),
        Report(*at, "duplicate", reference=" "),
        Report(*at, "completed", balance=Decimal(1)),
        Report(*at, "completed", version=1),
        Report(*at, "completed", balance=Decimal("NaN"), version=1),
        Report(*at, "completed", balance=Decimal(1), version=-1),
        Report(*at, "completed", balance=Decimal("0.001"), version=1),
        Report(*at, "completed", balance=Decimal(10**36), version=1),
        *(Report(*at, r, delay=SECOND) for r in ("released", "conflict", "permanent")),
        *(Report(*at, r, reference="r") for r in ("retry", "unknown", "conflict", "released")),
        *(Report(*at, r, balance=Decimal(1), version=1) for r in ("retry", "permanent")),
        *(Report(*at, r, absent=True) for r in ("unknown", "conflict")),
        *(Report(*at, r, park=True) for r in ("retry", "permanent", "released")),
        Report(*at, "retry", confirmed_by="lookup"),
        None,
        "completed",
        {"message_id": 1},
    ]
    before = backend.dump()
    for report in bad:
        for batch in ([report], [Report(2, 1, "completed"), report]):
            _refused(leased, f"{report}", lambda c: c.record(batch))  # noqa: B023
            _refused(leased, f"{report}", lambda c: c.exchange(batch, "w"))  # noqa: B023
    for reports in ([good, good], [good, Report(1, 9, "retry")], None, good, "x"):
        _refused(leased, f"{reports}", lambda c: c.record(reports))  # type: ignore[arg-type]  # noqa: B023
    many = [Report(i, 1, "completed") for i in range(1, 1002)]
    _refused(leased, "1001 reports", lambda c: c.record(many))
    assert backend.dump() == before
    assert {r.status for r in leased.record(many[:1000])} == {"not_found", "claim_lost"}


@pytest.mark.parametrize("value", KEYS.values(), ids=KEYS)
def test_the_longest_good_values(backend: Backend, shop: Trex, value: str) -> None:
    movement = {**MOVEMENT, "idempotency_key": value, "correlation_id": value}
    shop.enqueue(**movement, ordering_key=value, **{**CASH, "account": value})
    (claim,) = shop.claim(value, correlation_id=value)
    shop.complete(1, claim.fence, reference=value)
    assert shop.status(idempotency_key=value).reference == value
    shop.enqueue("t" * 63, "other", {})
    assert shop.pause(actor=value, reason="x" * 1000)
    assert shop.bind("é" * 31, **WHO)


def test_a_snapshot_needs_a_message_with_cash(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "k", {})
    (claim,) = shop.claim("w")
    before = backend.dump()
    with pytest.raises(InvalidArgument):
        shop.complete(1, claim.fence, balance=Decimal(1), version=1)
    with pytest.raises(InvalidArgument):
        shop.record([Report(1, claim.fence, "completed", balance=Decimal(1), version=1)])
    assert backend.dump() == before


@pytest.mark.criterion("ac-0029")
@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        " ",
        "Shop",
        "shop ",
        " shop",
        "-shop",
        "s" * 64,
        "shöp",
        "sh\0p",
        "s/p",
        7,
        b"shop",
    ],
)
def test_a_client_without_a_good_key_is_refused_before_it_connects(key: Any) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"the connection was touched: {name}")

    connection: Any = Untouched()
    for make in (
        lambda: PostgresClient(connection, key),
        lambda: AsyncPostgresClient(connection, key),
        lambda: MemoryClient(MemoryDatabase(), key),
    ):
        with pytest.raises(InvalidArgument):
            make()


def test_a_refusal_by_the_client_leaves_the_transaction_usable(
    backend: Backend, shop: Trex
) -> None:
    with backend.transaction(shop):
        shop.enqueue("t", "k1", {})
        for payload in (math.nan, {"x": math.inf}, Decimal("NaN"), "\ud800", {"a\0": 1}):
            with pytest.raises(InvalidArgument):
                shop.enqueue("t", "k2", payload)
        with pytest.raises(InvalidArgument):
            shop.enqueue("t", "k2", {}, account="a", currency="USD", cash_delta=1.5)  # type: ignore[arg-type]
        shop.enqueue("t", "k3", {})
    assert [row["idempotency_key"] for row in backend.rows("message")] == ["k1", "k3"]


NAMED: dict[str, tuple[str, Callable[[Trex], object]]] = {
    "unregistered": (
        "currency",
        lambda c: c.enqueue("t", "k", {}, account="a", currency="usd", cash_delta=1),
    ),
    "without a currency": ("currency", lambda c: c.enqueue("t", "k", {}, account="a")),
    "without an account": ("account", lambda c: c.enqueue("t", "k", {}, cash_delta=1)),
    "without an amount": (
        "cash_delta",
        lambda c: c.enqueue("t", "k", {}, account="a", currency="usd"),
    ),
    "too many decimals": (
        "cash_delta",
        lambda c: c.enqueue(
            "t", "k", {}, account="a", currency="USD", cash_delta=Decimal("0.001")
        ),
    ),
    "in a batch": (
        "movement 1: currency",
        lambda c: c.enqueue_many([Movement("t", "k", {}, account="a")]),
    ),
    "empty key": ("idempotency_key", lambda c: c.status(idempotency_key="")),
    "id and key": ("idempotency_key", lambda c: c.status(1, idempotency_key="k")),
    "neither": ("message_id", lambda c: c.status()),
    **{
        f"{name} of fence 0": ("fence", lambda c, name=name: getattr(c, name)(1, 0))  # type: ignore[misc]
        for name in (
            "complete", "complete_duplicate", "retry", "mark_unknown", "conflict", "fail",
            "dead_letter", "release",
        )
    },
    "id 0": ("message_id", lambda c: c.complete(0, 0)),
    "257 levels": ("payload", lambda c: c.enqueue("t", "k", _nested(257))),
    "257 levels of text": (
        "payload",
        lambda c: c.enqueue("t", "k", payload_json="[" * 257 + "]" * 257),
    ),
    "too large a number": ("payload", lambda c: c.enqueue("t", "k", {"n": Decimal("1E+131072")})),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_the_argument_that_is_wrong_is_named(backend: Backend, shop: Trex, case: str) -> None:
    name, call = NAMED[case]
    with pytest.raises(InvalidArgument) as info:
        call(shop)
    assert re.match(f"invalid argument: {name}(:|$)", str(info.value)), str(info.value)


def test_the_largest_payloads(backend: Backend, shop: Trex) -> None:
    shop.enqueue("t", "deep", _nested(256))
    shop.enqueue("t", "text", payload_json="[" * 256 + "]" * 256)
    shop.enqueue("t", "wide", payload_json="[" + ",".join(['{"[": "]\\"["}'] * 300) + "]")
    shop.enqueue("t", "large", {"n": Decimal("1E+309"), "m": Decimal("1E+131071")})
    assert len(shop.claim("w", 9)) == 4
