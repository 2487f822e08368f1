"""The acceptance criteria, which of them a test names, and whether a run was of all tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tools import field_cases

if TYPE_CHECKING:
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


def cases(item: pytest.Item) -> set[str]:
    """Return the field cases that a test shows, by its name or by `case` markers."""
    marked = {str(name) for mark in item.iter_markers("case") for name in mark.args}
    return marked | field_cases.by_name(item.name)


def is_whole_suite(config: pytest.Config, root: Path) -> bool:
    """Tell whether this run collected every test: no path, expression or deselection given."""
    narrowed = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "failedfirst")
    if any(config.getoption(name, default=None) for name in narrowed):
        return False
    paths = {(config.invocation_params.dir / arg).resolve() for arg in config.args}
    return paths <= {root, root / "tests"}
