"""The checkers of SQL files name each kind of fault."""

from __future__ import annotations

import pytest

from tests.support.criteria import ROOT
from tools import lint_sql, parse_sql

pytestmark = pytest.mark.criterion("ac-0045")

FUNCTION = """
create or replace function trex.f(p_n integer) returns integer
language plpgsql
as $$
begin
    {body}
end;
$$;
"""


def write(folder, text):
    path = folder / "f.sql"
    path.write_text(text)
    return path


def test_the_projects_files_can_be_parsed():
    assert parse_sql.main([str(ROOT / "sql")]) == 0


def test_a_sound_function_has_no_problems(tmp_path):
    assert parse_sql.problems(write(tmp_path, FUNCTION.format(body="return p_n;"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "create tabel t ();",
        FUNCTION.format(body="retrun p_n;"),
        FUNCTION.format(body="if p_n > 0 then return 1; return 0;"),
        FUNCTION.format(body="select 1 form t;"),
        "do $$ begin raise notice 'x' end $$;",
    ],
    ids=["statement", "keyword", "block", "query", "do"],
)
def test_a_fault_is_named(tmp_path, text):
    path = write(tmp_path, "select 1;\n" + text)
    assert len(parse_sql.problems(path)) == 1
    assert parse_sql.main([str(tmp_path)]) == 1


def test_an_empty_folder_is_a_mistake(tmp_path):
    assert parse_sql.main([str(tmp_path)]) == 1


def test_psql_commands_and_variables_are_taken_out():
    text = '\\set x 1\nselect :\'x\', "y", a::text from :"t";\n\\if :{?x}\n\\endif\n'
    assert parse_sql.plain(text) == "--\nselect 'x', \"y\", a::text from t;\n--\n--\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("select 1 as one;\n", 0),
        ("SELECT 1 as one;\n", 1),
        ("select 1 as one " + "-- " + "x" * 100 + "\n;\n", 1),
        ("select\n  1 as one,\n        2 as two;\n", 1),
    ],
    ids=["sound", "upper case", "long line", "indent"],
)
def test_the_linter_finds_style_faults(tmp_path, monkeypatch, text, code):
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "sql").mkdir()
    write(tmp_path / "sql", text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert lint_sql.main(["sql"]) == code


def test_the_linter_skips_no_large_file(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "sql").mkdir()
    write(tmp_path / "sql", "select 1 as one;\n" * 1500 + "SELECT 2 as two;\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert lint_sql.main(["sql"]) == 1
