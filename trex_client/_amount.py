"""The one way from text to an exact number."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

# Python's own parser takes more: 1_000, digits of other scripts, blanks, NaN.
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_LONGEST: Final = 200


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
