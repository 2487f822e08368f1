"""The SQL tests under `tests/sql`: one behaviour a file, folder = function.

A file is a list of blocks with a blank line between them, run on a fresh database with
`helpers.sql`, each statement in a transaction of its own. A block is one statement with a `$$`
body, or statements that end their lines with `;`. Comments at its top say how to run it:

    -- expect: TX400       each statement must fail with this SQLSTATE, constant text, no DETAIL
    -- expect: no rows     each statement must return none
    -- as: worker          through this login of the tests (see TEST_ROLES), not as superuser
    -- clock: 31 seconds   move the clock first (it stands still from the start)
    -- criterion: ac-0029  what the file verifies

A statement may return rows of anything, but a boolean must be true, and there must be a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).resolve().parents[2] / "sql"
FILES = sorted(ROOT.glob("*/*.sql"))
_DIRECTIVE = re.compile(r"-- (expect|as|clock|criterion): (.+)")
_TEXTS = {
    "invalid argument",
    "access denied",
    "not found",
    "claim lost",
    "already ended otherwise",
    "key reused with other content",
    "no verified viewer",
    "version conflict",
    "transition forbidden",
    "wrong isolation level, or a transaction with work done before",
    "standby or read-only",
    "immutable fact touched",
    "invariant violated",
}


@dataclass
class Block:
    """Statements of one block, the line it starts at and what its comments say."""

    line: int
    statements: list[str]
    said: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> list[Block]:
    """Return the blocks of a file."""
    blocks = []
    line = 1
    for chunk in re.split(r"(\n{2,})", path.read_text(encoding="utf-8")):
        lines = [text for text in chunk.split("\n") if text and not text.startswith("--")]
        said = dict(_DIRECTIVE.findall(chunk))
        if lines or said:
            body = "\n".join(lines)
            statements = (
                [body] if "$$" in body else re.findall(r".+?;(?:\n|$)", body + "\n", re.DOTALL)
            )
            assert body.strip() in ("", "".join(statements).strip()), f"{path}: a block without ;"
            blocks.append(Block(line, statements, said))
        line += chunk.count("\n")
    return blocks


def criteria_of(path: Path) -> list[str]:
    """Return the acceptance criteria that a file says it verifies."""
    return [name for block in read(path) for name in block.said.get("criterion", "").split()]


def parameters() -> list[object]:
    return [
        pytest.param(
            path,
            id=f"{path.parent.name}/{path.stem}",
            marks=[pytest.mark.criterion(name) for name in criteria_of(path)],
        )
        for path in FILES
    ]


def run(database, path: Path) -> int:
    """Run one file; return how many statements said something."""
    admin = database.connect()
    admin.execute((ROOT / "helpers.sql").read_text(encoding="utf-8"))
    database.clock.freeze()
    connections: dict[str | None, psycopg.Connection] = {None: admin}
    checks = 0
    for block in read(path):
        role = block.said.get("as")
        if role not in connections:
            connections[role] = database.connect(role)
        if "clock" in block.said:
            amount, unit = block.said["clock"].split()
            database.clock.advance(timedelta(**{unit: float(amount)}))
        for statement in block.statements:
            where = f"{path.relative_to(ROOT)}:{block.line}: {statement}"
            checks += check(connections[role], statement, block.said.get("expect"), where)
    return checks


def check(conn: psycopg.Connection, statement: str, expected: str | None, where: str) -> int:
    if expected is not None and expected != "no rows":
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(statement)
        error = caught.value
        assert error.sqlstate == expected, f"{where}: {error.sqlstate}: {error}"
        if expected.startswith("TX"):
            assert error.diag.message_primary in _TEXTS, where
            assert error.diag.message_detail is None, where
        return 1
    cursor = conn.execute(statement)
    if cursor.description is None:
        return 0
    rows = cursor.fetchall()
    if expected == "no rows":
        assert rows == [], where
        return 1
    assert rows, f"{where}: no rows"
    values = [value for row in rows for value in row]
    assert False not in values, f"{where}: {rows}"
    return sum(value is True for value in values)


@pytest.mark.parametrize("path", parameters())
def test_sql_file(pg_db, path):
    assert run(pg_db, path) > 0, f"{path} checks nothing"


def test_every_public_function_has_its_folder(new_db):
    conn = new_db().connect()
    rows = conn.execute(
        "select p.proname from pg_proc as p"
        " where p.pronamespace = 'trex'::regnamespace and p.proname !~ '^_'"
    ).fetchall()
    functions = {name for (name,) in rows}
    folders = {path.parent.name for path in FILES} - {"catalog", "schema"}
    assert functions == folders


def test_a_failed_check_fails(new_db, tmp_path):
    conn = new_db().connect()
    for statement, expected in (
        ("select false", None),
        ("select 1 where false", None),
        ("select 1", "no rows"),
        ("select 1", "TX400"),
        ("select trex._raise('TX404', null)", "TX400"),
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(conn, statement, expected, statement)
