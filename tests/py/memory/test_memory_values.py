"""Values: canonical jsonb text, keys and amounts, as PostgreSQL has them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from trex_client.errors import InvalidArgument
from trex_client.memory import _amount, _is_key, _is_slug, _is_text, canonical_json


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("null", "null"),
        (' [ 1,2 , {"a":true} ] ', '[1, 2, {"a": true}]'),
        ("{}", "{}"),
        ("[]", "[]"),
        ('{"b":1,"aa":2,"a":3}', '{"a": 3, "b": 1, "aa": 2}'),
        ('{"é":1,"zz":2,"z":3}', '{"z": 3, "zz": 2, "é": 1}'),
        ('{"a":1,"a":2}', '{"a": 2}'),
        ("1e2", "100"),
        ("1.50e1", "15.0"),
        ("1.50", "1.50"),
        ("1e-3", "0.001"),
        ("-0", "0"),
        ("-0.0", "0.0"),
        ("0e9", "0"),
        ("123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        (r'"\u00e9\/\ud83d\ude00"', '"é/😀"'),
        (r'"\b\f\n\r\t\u0001\"\\\u007f"', '"\\b\\f\\n\\r\\t\\u0001\\"\\\\\x7f"'),
    ],
)
def test_json_text_becomes_jsonb_text(given: str, text: str) -> None:
    assert canonical_json(payload_json=given) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"b": [1, True, None], "a": Decimal("1.10")}, '{"a": 1.10, "b": [1, true, null]}'),
        ((), "[]"),
        (1.5, "1.5"),
        (1e16, "10000000000000000"),
        (Decimal("-0.00"), "0.00"),
        ("", '""'),
    ],
)
def test_data_becomes_jsonb_text(given: Any, text: str) -> None:
    assert canonical_json(given) == text


@pytest.mark.parametrize(
    "given",
    ["", "nope", "[1,]", "01", "NaN", "[Infinity]", r'"\u0000"', r'"\ud800"', '"\ud800"', '"\x01"',
     "1e131072", "1e-16384", "0e2147483648", r'{"a": "\u0000", "a": 1}', "[" * 100_000],
)  # fmt: skip
def test_what_jsonb_refuses_is_an_invalid_argument(given: str) -> None:
    with pytest.raises(InvalidArgument):
        canonical_json(payload_json=given)


@pytest.mark.parametrize(
    "given",
    [{1: 2}, {"a": float("nan")}, Decimal("Infinity"), "a\x00b", "\udc00",
     {"\ud800": 1}, object(), {1, 2}, b"x"],
)  # fmt: skip
def test_data_that_is_no_json_is_an_invalid_argument(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        canonical_json(given)


def test_exactly_one_payload() -> None:
    with pytest.raises(InvalidArgument):
        canonical_json()
    with pytest.raises(InvalidArgument):
        canonical_json({}, "{}")


@pytest.mark.parametrize("value", ["a", "a b", "é" * 255, "a\u2028b", "🐍"])
def test_keys(value: str) -> None:
    assert _is_key(value)


@pytest.mark.parametrize(
    "value",
    ["", "a" * 256, " a", "a ", "a\n", "a\tb", "a\x00", "\ud800", "\u00a0a", "a\ufeff", "\u200b",
     "a\x7fb", 1, None],
)  # fmt: skip
def test_no_keys(value: object) -> None:
    assert not _is_key(value)


def test_slugs_and_texts() -> None:
    assert _is_slug("a" * 63)
    assert not any(map(_is_slug, ["", "A", "a" * 64, "-a", "a\n", "é"]))
    assert _is_text(" x ")
    assert not any(map(_is_text, ["", "  \u3000", "a\nb", "x" * 1001]))


@pytest.mark.parametrize(
    ("value", "exponent", "amount"),
    [
        (1, 2, "1.00"),
        (Decimal("1.1000"), 2, "1.10"),
        (Decimal("-0.00"), 0, "0"),
        (Decimal("1.001"), 2, None),
        (Decimal("9" * 36 + ".99"), 2, "9" * 36 + ".99"),
        (10**36, 2, None),
        (Decimal("1E+5"), 0, "100000"),
        (Decimal("1E+999999"), 0, None),
        (Decimal("1E-999999"), 0, None),
        (Decimal("-0.000000000000000001"), 18, "-0.000000000000000001"),
    ],
)
def test_amounts(value: Decimal | int, exponent: int, amount: str | None) -> None:
    result = _amount(value, exponent)
    assert (None if result is None else format(result, "f")) == amount
