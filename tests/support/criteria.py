"""Which acceptance criteria the tests name, and whether all of them are named and ran."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

ROOT = Path(__file__).resolve().parents[2]
"""The project's folder."""


def criteria(root: Path, *statuses: str) -> set[str]:
    """Return the ids of the criteria with one of these statuses, or of all if none is given."""
    found = set()
    for path in (root / ".proofline" / "criteria").glob("ac-*.md"):
        match = re.search(r"^status: (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        if not statuses or (match and match[1] in statuses):
            found.add(path.stem)
    return found


def named(item: pytest.Item) -> set[str]:
    """Return the ids that a test's `criterion` markers name."""
    return {str(name) for mark in item.iter_markers("criterion") for name in mark.args}


def complaints(root: Path, names: Iterable[set[str]]) -> list[str]:
    """Say what is wrong between the criteria in `root` and the ids that each test names."""
    counts = Counter(name for ids in names for name in ids)
    missing = criteria(root, "active") - counts.keys()
    unknown = counts.keys() - criteria(root)
    return [f"{name} is active and no test names it" for name in sorted(missing)] + [
        f"{name} is named by a test and is no criterion" for name in sorted(unknown)
    ]


def is_whole_suite(config: pytest.Config, root: Path = ROOT) -> bool:
    """Tell whether this run collected every test: no path, expression or deselection given."""
    narrowed = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "failedfirst")
    if any(config.getoption(name, default=None) for name in narrowed):
        return False
    paths = {(config.invocation_params.dir / arg).resolve() for arg in config.args}
    return paths <= {root, root / "tests"}
