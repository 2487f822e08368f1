"""How much a harness does, and what it has seen.

`scale` reads the number of rounds from the environment, so that CI runs few and `make prove` many.
`emit` prints what was seen and, in a `make prove` run, adds it to the report.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def scale(name: str, rounds: int) -> int:
    """Return `TREX_<NAME>` if it is set, else `rounds`."""
    return int(os.environ.get(f"TREX_{name}", rounds))


def emit(harness: str, counts: Mapping[str, int], *, seconds: float, **more: object) -> None:
    """Say what a harness has seen.

    Args:
        harness: its name in the report.
        counts: what it counted; the first is what its rate is told in.
        seconds: how long it took.
        more: such as the seed or the server's version.
    """
    line = json.dumps(
        {"harness": harness, "seconds": round(seconds, 2), "counts": dict(counts), **more}
    )
    print(line)
    log = os.environ.get("TREX_PROVE_LOG")
    if log:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
