"""Pages say what is: generated ones are up to date, code blocks print what they show, links lead
somewhere.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from contextlib import nullcontext
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import typer

from tools import cli_docs, docs, field_cases, tour
from trex_client.demo import faults, source

pytestmark = pytest.mark.criterion("ac-0054")

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CASES = [
    f"{area}{number}"
    for area, numbers in {
        "A": (1, 2, 5, 6, 7, 8),
        "B": (3, 4, 5, 6, 7, 9, 11, 12),
        "C": (1, 2, 3, 5, 6, 7),
        "D": (1, 3, 4, 5, 6),
        "E": (1, 2, 3, 4, 5),
        "F": (1, 2, 3, 5),
        "G": (1, 2, 3, 5, 6, 9),
        "H": (1, 3, 4, 5, 8, 9),
        "I": (1, 2, 3, 5, 7),
        "J": (1, 3, 4, 5, 6, 7),
        "K": (1, 2, 3, 4, 5, 6, 7, 9, 13, 16, 17, 18),
        "L": (1, 3),
        "M": (2, 3, 5, 6),
        "N": (1, 2, 3, 5, 7, 8, 9, 10),
        "O": (1, 2, 4, 6, 8),
    }.items()
    for number in numbers
]
# Whatever is wrong with a command line: Typer keeps its name to itself.
USAGE = cast("type[Exception]", typer.BadParameter.__mro__[1])
WITH_BLOCKS = ["README.md", "docs/sql-without-python.md", "docs/operations.md"]


def name_of(page):
    return str(page.relative_to(ROOT))


def test_generated_pages_are_up_to_date():
    stale = [
        name_of(path)
        for path, text in docs.pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run: make docs"


def test_every_public_function_is_in_the_reference(pg_db):
    known = {function.name for function in docs.functions()}
    found = pg_db.connect().execute(
        "select proname from pg_proc where pronamespace = 'trex'::regnamespace"
        " and proname !~ '^_'"
    ).fetchall()  # fmt: skip
    assert known == {name for (name,) in found}


def test_the_reference_says_what_the_database_says(pg_db):
    rows = pg_db.connect().execute(
        "select p.proname, obj_description(p.oid, 'pg_proc'), array("
        " select grantee::regrole::text from aclexplode(p.proacl)"
        " where grantee <> p.proowner order by 1)"
        " from pg_proc as p where p.pronamespace = 'trex'::regnamespace and p.proname !~ '^_'"
    ).fetchall()  # fmt: skip
    functions = {function.name: function for function in docs.functions()}
    for name, comment, roles in rows:
        function = functions[name]
        assert " ".join(comment.split()).startswith(function.summary), name
        assert set(function.fields) == {"Arguments", "Returns", "Errors", "Locks", "Idempotent"}, (
            name
        )
        assert sorted(function.roles) == roles, name


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_code_blocks_print_what_the_page_shows(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    found = tour.outputs(text)
    assert found
    for block, printed in found:
        assert printed == block.output, (
            f"{name}:{block.line}: run python -m tools.tour --write {name}"
        )


def test_the_readme_shows_the_demo_as_it_is():
    """Which movements are refused is decided by the seed; so are the totals."""
    entries = source.read(ROOT / "examples" / "movements.csv")
    plan = faults.deal(entries, seed=1)
    table = {
        cells[0]: cells
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("│")
        for cells in [[cell.strip() for cell in line.strip("│").split("│")]]
    }
    assert set(table) == {entry.account[1] for entry in entries}
    for currency, cells in table.items():
        mine = [entry for entry in entries if entry.account[1] == currency]
        given = sum((entry.amount for entry in mine), Decimal(0))
        parked = sum(
            (e.amount for e in mine if e.wire_key in plan.cards and plan.cards[e.wire_key].always),
            Decimal(0),
        )
        accounts = len({entry.account for entry in mine})
        assert cells[1:5] == [str(len(mine)), str(given), str(parked), str(given - parked)]
        assert Decimal(cells[5]) == 0
        assert cells[6:] == [str(accounts), str(accounts)]


def test_what_the_pages_tell_to_type_exists():
    commands = dict(cli_docs.commands())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = "\n".join(
            re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
        )
        for target in re.findall(r"\bmake ([a-z-]+)", code):
            assert target in targets, f"{name_of(page)}: make {target}"
        for line in re.findall(r"(?<![./\w-])trex ([a-z][^\n]*)", code):
            words = line.split()
            name = words[0] if words[0] in commands else " ".join(words[:2])
            assert name in commands, f"{name_of(page)}: trex {line}"
            known = {
                option
                for param in commands[name].params
                for option in (*param.opts, *param.secondary_opts)
            }
            for option in re.findall(r"(?:^| )(--?[a-z][a-z-]*)", line):
                assert option in known, f"{name_of(page)}: trex {line}"


def typed(text, suffix):
    """Command lines of `trex` that a file tells to type, as words. In prose and programs: those
    between backticks; a mere name of a command is none.
    """
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if suffix == ".md" else []
    spans = re.findall(r"`(trex [^`\n]+)`", text)
    if suffix == ".sh":
        blocks = [re.sub(r"(?m)^\s*#.*", "", text)]
    found = []
    for code in [*blocks, *spans]:
        for line in code.replace("\\\n", " ").splitlines():
            for match in re.finditer(r"(?<![/\w.-])(?:\.venv/bin/)?trex ([a-z].*)", line):
                words = shlex.split(match[1], comments=True)
                end = [n for n, word in enumerate(words) if re.match(r"[|<>&;]|[0-9]>", word)]
                words = words[: min(end, default=len(words))]
                if code in blocks or any(word.startswith("-") for word in words):
                    found.append(words)
    return found


def typed_files():
    kept = [*PAGES, *(ROOT / "ops").iterdir(), *(ROOT / "examples").rglob("*.*")]
    return [path for path in kept if path.suffix in (".md", ".yaml", ".py", ".sh", ".mjs", ".toml")]


@cache
def known_commands():
    return dict(cli_docs.commands())


def complete(words):
    """Parse as the program would, without running anything."""
    commands = known_commands()
    name = words[0] if words[0] in commands else " ".join(words[:2])
    rest = words[len(name.split()) :]
    commands[name].make_context(name, rest)


def test_command_lines_can_be_typed_as_they_are(monkeypatch):
    monkeypatch.setenv("TREX_ACTOR", "me")
    monkeypatch.setenv("TREX_INSTANCE", "till")
    wrong = []
    seen = 0
    for path in typed_files():
        for words in typed(path.read_text(encoding="utf-8"), path.suffix):
            seen += 1
            try:
                complete(words)
            except (KeyError, USAGE) as error:
                wrong.append(f"{name_of(path)}: trex {shlex.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)
    assert seen > 30


def test_examples_of_every_help_can_be_typed_as_they_are(monkeypatch):
    monkeypatch.setenv("TREX_ACTOR", "me")
    monkeypatch.setenv("TREX_INSTANCE", "till")
    for name, command in cli_docs.commands():
        examples = command.help.partition("Examples")[2].partition(":\n")[2]
        lines = typed(f"```sh\n{examples}\n```", ".md")
        assert lines, name
        for words in lines:
            complete(words)


def test_a_command_line_without_a_required_option_is_noticed():
    (words,) = typed("say `trex instance register --no-wake` now", ".md")
    with pytest.raises(USAGE):
        complete(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^a-z0-9_ -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_promise_no_more_than_is_true(page):
    text = page.read_text(encoding="utf-8").lower()
    assert "exactly once" not in text
    assert "exactly-once" not in text


@pytest.mark.criterion("ac-0066")
def test_every_field_case_is_on_its_page_and_has_a_test():
    assert len(CASES) == 88
    assert field_cases.ids() == CASES
    assert set(field_cases.by_case()) == set(CASES)
    text = field_cases.TARGET.read_text(encoding="utf-8")
    assert all(text.count(f"\n| {case} | ") == 1 for case in CASES)


@pytest.mark.criterion("ac-0066")
def test_a_case_is_named_by_its_test(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "def test_a1_x(): ...\n\n@pytest.mark.case('B2', 'C3')\nasync def test_y(): ...\n"
        "def test_a_z(): ...\ndef helper_d4_x(): ...\n"
    )
    found = {
        case: [name for _, name in tests] for case, tests in field_cases.by_case(tmp_path).items()
    }
    assert found == {"A1": ["test_a1_x"], "B2": ["test_y"], "C3": ["test_y"]}


def test_the_tour_notices_a_wrong_output(tmp_path, monkeypatch):
    monkeypatch.setattr(tour, "environment", lambda: nullcontext({"PATH": os.environ["PATH"]}))
    page = tmp_path / "page.md"
    page.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    assert tour.main([str(page)]) == 1
    assert tour.main(["--write", str(page)]) == 0
    assert tour.main([str(page)]) == 0
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(tour.Failed):
        tour.main([str(page)])


def test_decisions_are_numbered_without_gaps():
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    for name in names:
        text = (ROOT / "docs" / "decisions" / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {int(name[:4])}. ")
        assert "\nStatus: " in text


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in text, page.name


def test_the_scripts_are_shell():
    for script in (ROOT / "examples").rglob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
