"""Write examples/movements.csv again: `python examples/make_movements.py > examples/movements.csv`.

Two instances, 80 accounts, four currencies, the same file for the same seed. Deposits, withdrawals
and fees are single movements; a transfer is two, with one correlation.
"""

from __future__ import annotations

import csv
import random
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = (
    "idempotency_key", "instance", "account", "currency", "cash_delta", "correlation_id",
    "ordering_key", "memo",
)  # fmt: skip
ROWS = 1_200
# Decimals, and the usual size of a movement.
CURRENCIES = {
    "KRW": (0, Decimal(60_000)),
    "JPY": (0, Decimal(8_000)),
    "USD": (2, Decimal(75)),
    "BTC": (8, Decimal("0.02")),
}
CORNERS = {
    "KRW": ("1", "-1", "9007199254740993"),
    "JPY": ("1", "-1", "123456789012"),
    "USD": ("0.01", "-0.01", "90071992547409.93"),
    "BTC": ("0.00000001", "-0.00000001", "20999999.97690000"),
}


def amount(dice: random.Random, currency: str) -> Decimal:
    """A plausible amount, above zero."""
    decimals, usual = CURRENCIES[currency]
    size = Decimal(str(dice.lognormvariate(0, 1.2))) * usual
    step = Decimal(1).scaleb(-decimals)
    return max(step, size.quantize(step))


def movements(dice: random.Random) -> Iterator[tuple[str, str, str, Decimal, str, str]]:
    """Instance, account, currency, amount, correlation, memo, without end."""
    accounts = {
        name: [f"{name[0]}-{number:03d}" for number in range(1, 41)] for name in ("seoul", "berlin")
    }
    weights = {"seoul": (6, 3, 2, 2), "berlin": (1, 1, 6, 3)}
    for currency, values in CORNERS.items():
        for value in values:
            yield "seoul", "s-040", currency, Decimal(value), "", "corner"
    number = 0
    while True:
        number += 1
        instance = dice.choice(("seoul", "berlin"))
        currency = dice.choices(tuple(CURRENCIES), weights[instance])[0]
        size = amount(dice, currency)
        account, other = dice.sample(accounts[instance], 2)
        kind = dice.choices(("deposit", "withdrawal", "fee", "transfer"), (4, 3, 1, 3))[0]
        if kind == "transfer":
            transfer = f"transfer-{number:05d}"
            yield instance, account, currency, -size, transfer, f"to {other}"
            yield instance, other, currency, size, transfer, f"from {account}"
        else:
            signed = size if kind == "deposit" else -size
            yield instance, account, currency, signed, "", kind


def main() -> None:
    """Write the file to stdout."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    source = movements(random.Random(20260131))
    for number in range(1, ROWS + 1):
        instance, account, currency, value, correlation, memo = next(source)
        # berlin wants its movements posted in order, account by account.
        ordering = account if instance == "berlin" else ""
        writer.writerow((
            f"mv-{number:05d}", instance, account, currency, format(value, "f"),
            correlation, ordering, memo,
        ))  # fmt: skip


if __name__ == "__main__":
    main()
