"""The one way from text to an exact number, and what a key is."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

# Python's own parser takes more: 1_000, digits of other scripts, blanks, NaN.
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_LONGEST: Final = 200
_BLANK: Final = " \u00a0\u1680\u2000-\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
_KEY: Final = re.compile(
    f"(?![{_BLANK}])[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,255}}(?<![{_BLANK}])"
).fullmatch


def is_key(value: object) -> bool:
    """Whether it is a key: 1 to 255 characters, no control character, no blank at either end."""
    return isinstance(value, str) and _KEY(value) is not None


def exact(value: object) -> Decimal:
    """Read an amount.

    Args:
        value: a finite `Decimal`, an `int`, or up to 200 characters in ASCII such as `-12.50`
            or `1e3`.

    Raises:
        ValueError: it is anything else, a `float` or `bool` too. The text is constant.
    """
    if isinstance(value, str) and len(value) <= _LONGEST and _NUMBER.fullmatch(value):
        return Decimal(value)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        number = Decimal(value)
        if number.is_finite():
            return number
    raise ValueError("not an exact number")
