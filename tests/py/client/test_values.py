"""What the client refuses before anything is sent, and how values travel. No database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from trex_client import api
from trex_client._calls import Calls, encode_json, is_too_deep, render
from trex_client.errors import InvalidArgument
from trex_client.model import Movement, Report
from trex_client.postgres import AsyncPostgresClient, PostgresClient

CALLS = Calls("shop")


class Untouchable:
    """A connection that fails the test when it is touched."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


BAD_KEYS = [
    None, "", " ", "shop ", " shop", "Shop", "-shop", "a" * 64, "sh\0op", "shop\n", "shöp", "a/b",
    b"shop", 7, True, ["shop"], object(), "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS)
@pytest.mark.parametrize("client", [PostgresClient, AsyncPostgresClient])
def test_bad_instance_keys_are_refused_before_the_connection(client: Any, key: object) -> None:
    with pytest.raises(InvalidArgument):
        client(Untouchable(), key)


def test_the_clients_have_every_method_of_the_api() -> None:
    conn: Any = Untouchable()
    client: api.Trex = PostgresClient(conn, "a")
    for name in dir(api.Trex):
        if not name.startswith("_"):
            assert hasattr(client, name)
            assert hasattr(AsyncPostgresClient, name)


TEXT = ["a\0b", "\ud800", 7, b"x", None, True]


@pytest.mark.parametrize("bad", TEXT)
def test_text_that_cannot_travel(bad: Any) -> None:
    for call in (
        lambda: CALLS.enqueue(bad, "k", 1),
        lambda: CALLS.enqueue("t", bad, 1),
        lambda: CALLS.claim(bad),
        lambda: CALLS.pause(actor=bad, reason="r"),
        lambda: CALLS.resolve(1, "resend", evidence=bad, actor="a", reason="r"),
        lambda: CALLS.record([Report(1, 1, bad)]),
        lambda: CALLS.enqueue_many([Movement(bad, "k", 1)]),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize("bad", [True, 1.0, "1", None, 2**63, -(2**63), Decimal(1)])
def test_numbers_that_are_no_bigint(bad: Any) -> None:
    for call in (
        lambda: CALLS.complete(bad, 1),
        lambda: CALLS.complete(1, bad),
        lambda: CALLS.extend([bad], [1]),
        lambda: CALLS.record([Report(bad, 1, "completed")]),
        lambda: CALLS.list_pending(after=bad),
        lambda: CALLS.claim("w", bad),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize(
    "bad",
    [
        1.5, True, "1", float("nan"), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"),
        Decimal("1E38"), Decimal("1E-1001"),
    ],
)  # fmt: skip
def test_amounts_are_exact_and_finite(bad: Any) -> None:
    for call in (
        lambda: CALLS.enqueue("t", "k", 1, account="a", currency="USD", cash_delta=bad),
        lambda: CALLS.complete(1, 1, balance=bad, version=1),
        lambda: CALLS.record([Report(1, 1, "completed", balance=bad, version=1)]),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize(
    ("good", "text"),
    [
        (Decimal("9E37"), "9" + "0" * 37), (Decimal("-1E-1000"), "-0." + "0" * 999 + "1"),
        (Decimal("-0E-2000"), "0"), (Decimal("1.50"), "1.50"), (7, "7"),
    ],
)  # fmt: skip
def test_amounts_travel_in_plain_digits(good: Any, text: str) -> None:
    _, values = CALLS.complete(1, 1, balance=good, version=1)
    assert text in values


@pytest.mark.parametrize("bad", [30, 1.5, "30s", True, timedelta.max, timedelta.min])
def test_durations_are_timedeltas(bad: Any) -> None:
    for call in (
        lambda: CALLS.claim("w", lease=bad),
        lambda: CALLS.retry(1, 1, delay=bad),
        lambda: CALLS.postpone(1, 1, bad),
        lambda: CALLS.record([Report(1, 1, "retry", delay=bad)]),
        lambda: CALLS.purge(bad, actor="a", reason="r"),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize(
    "bad",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001 - naive on purpose
        "2026-01-01T00:00:00Z",
        0,
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_times_are_aware(bad: Any) -> None:
    with pytest.raises(InvalidArgument):
        CALLS.claim("w", due_after=bad)


@pytest.mark.parametrize("bad", [None, "abc", b"ab", 7, iter([1])])
def test_batches_are_sequences(bad: Any) -> None:
    for call in (
        lambda: CALLS.record(bad),
        lambda: CALLS.exchange(bad, "w"),
        lambda: CALLS.enqueue_many(bad),
        lambda: CALLS.extend(bad, [1]),
        lambda: CALLS.redrive(bad, actor="a", reason="r"),
    ):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(InvalidArgument):
        CALLS.record([{"message_id": 1}])  # type: ignore[list-item]


def test_exactly_one_payload() -> None:
    for values in ({}, {"payload": {}, "payload_json": "{}"}):
        with pytest.raises(InvalidArgument):
            CALLS.enqueue("t", "k", **values)  # type: ignore[arg-type]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "bad",
    [
        {1: 2}, {None: 1}, {"a": float("nan")}, [float("inf")], Decimal("NaN"),
        Decimal("-Infinity"), {1, 2}, b"x", "\0", {"\0": 1}, "\ud800", {"\udfff": 1}, 10**5000,
        object(),         datetime.now(UTC), nested(100_000), circular(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_payloads_that_are_no_json(bad: Any) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        CALLS.enqueue("t", "k", {"deep": [bad]})
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None


def test_json_is_exact() -> None:
    payload = {
        "d": Decimal("1.50"),
        "e": Decimal("1E+2"),
        "f": 0.1,
        "g": 1e16,
        "i": 10**30,
        "b": [True, False, None],
        "s": 'q"\\\n\u2028é𝄞',
        "t": (1, {}, [], ""),
    }
    text = encode_json(payload)
    assert '"d":1.50' in text
    assert '"i":1000000000000000000000000000000' in text
    back = json.loads(text, parse_float=Decimal)
    assert back["s"] == payload["s"]
    assert back["e"] == 100
    assert back["f"] == Decimal("0.1")
    assert back["b"] == [True, False, None]
    assert back["t"] == [1, {}, [], ""]


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("[" * 256 + "]" * 256, False), ("[" * 257 + "]" * 257, True),
        ('{"a":' * 256 + "1" + "}" * 256, False), ('{"a":' * 257 + "1" + "}" * 257, True),
        ("[" + "[],{}," * 300 + "[]]", False), (f'["{"[" * 300}"]', False),
        ('["\\"' + "[" * 300 + '"]', False), ("[" * 300, True),
    ],
)  # fmt: skip
def test_levels_are_counted_and_not_brackets(text: str, deep: bool) -> None:
    assert is_too_deep(text) is deep


def test_a_refused_movement_is_named() -> None:
    movements = [Movement("t", "k", 1), Movement("t", "k2", {1: 2})]
    with pytest.raises(InvalidArgument) as refusal:
        CALLS.enqueue_many(movements)
    assert "movement 2: payload" in str(refusal.value)
    assert refusal.value.__context__ is None


def test_rendered_calls_quote_every_value() -> None:
    text = render(CALLS.enqueue("t", "it's", {"a": 'x"\\'}, account="'; drop table x; --"))
    assert "'it''s'::text" in text
    assert "'''; drop table x; --'::text" in text
    assert "%s" not in text
    assert text.count(";") == 3
    assert text.endswith("::text) as r;")
    assert "=> null::interval, " in text
    assert "X" not in text.replace("TX", "")
