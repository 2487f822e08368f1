"""Which tests show which case of docs/field-cases.md; the page's last column is written from it.

A test names its case by its own name (`test_a1_...`) or by `@pytest.mark.case("A1")`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "field-cases.md"

_ROW = re.compile(r"^\| (?P<id>[A-Z][0-9]+) \|(?P<text>.*\|)[^|]*\|$", re.MULTILINE)
_NAME = re.compile(r"test_(?P<id>[a-z][0-9]+)_")


def by_name(name: str) -> set[str]:
    """The case in a test function's name, as a set of none or one."""
    match = _NAME.match(name)
    return {match["id"].upper()} if match else set()


def ids(root: Path = ROOT) -> list[str]:
    """The cases of the page, in its order; none where there is no page."""
    page = root / "docs" / "field-cases.md"
    return [m["id"] for m in _ROW.finditer(page.read_text("utf-8"))] if page.is_file() else []


def by_case(folder: Path = ROOT / "tests" / "py") -> dict[str, list[tuple[Path, str]]]:
    """The test functions of each case, by file and name."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for case in sorted(by_name(node.name) | _marked(node)):
                    found.setdefault(case, []).append((path, node.name))
    return found


def _marked(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        str(argument.value)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.case"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


def render() -> str:
    """The page with its last column as the tests are."""
    found = by_case()

    def row(match: re.Match[str]) -> str:
        links = [
            f"[`{name}`]({Path('..') / path.relative_to(ROOT)})"
            for path, name in found.get(match["id"], [])
        ]
        return f"| {match['id']} |{match['text']} {' '.join(links) or '-'} |"

    return _ROW.sub(row, TARGET.read_text("utf-8"))
