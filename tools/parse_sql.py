"""Parse every SQL file with PostgreSQL's own parser, and every PL/pgSQL body with PL/pgSQL's.

sqlfluff sees nothing inside `$$`, and PostgreSQL compiles a body only when it is called.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pglast
from pglast import ast


def plain(text: str) -> str:
    """Return a file's SQL as a server sees it, line by line: psql's commands and variables gone."""
    lines = ["--" if line.startswith("\\") else line for line in text.split("\n")]
    return re.sub(r":(?:\"(\w+)\"|('\w+'))", r"\1\2", "\n".join(lines))


def problems(path: Path) -> list[str]:
    """Return what the parsers say about one file."""
    text = plain(path.read_text(encoding="utf-8")).encode()
    try:
        statements = pglast.parse_sql(text.decode())
    except pglast.parser.ParseError as error:
        return [f"{path}: {error.args[0]}"]
    found = []
    for raw in statements:
        if isinstance(raw.stmt, ast.CreateFunctionStmt | ast.DoStmt):
            start = raw.stmt_location or 0
            source = text[start : start + raw.stmt_len if raw.stmt_len else None].decode()
            if _language(raw.stmt) == "plpgsql":
                try:
                    # The parser knows no types of other schemas than these two.
                    pglast.parse_plpgsql(re.sub(r"\btrex(?=\.\w)", "public", source))
                except pglast.parser.ParseError as error:
                    line = text[:start].count(b"\n") + 1
                    found.append(f"{path}: statement after line {line}: {error.args[0]}")
    return found


def _language(statement: ast.CreateFunctionStmt | ast.DoStmt) -> str:
    options = statement.options if isinstance(statement, ast.CreateFunctionStmt) else statement.args
    for option in options or ():
        if option.defname == "language":
            return str(option.arg.sval)
    return "plpgsql" if isinstance(statement, ast.DoStmt) else "sql"


def main(folders: list[str]) -> int:
    """Check all `.sql` files below the folders; return the exit code."""
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*.sql"))
    found = [problem for path in paths for problem in problems(path)]
    for problem in found:
        print(problem)
    print(f"{len(paths)} files, {len(found)} problems")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
