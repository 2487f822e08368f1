"""The project's criteria are in order, and for each rule one broken tree is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.criteria import ROOT
from tools.proofline import RULES, check, main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.criterion("ac-0044")

CRITERION = """\
---
id: {id}
status: {status}
---

# Title

## Criterion

Something that passes or fails.

## Verification

A test.
"""
DISCOVERY = """\
---
id: dcy-0001
status: confirmed
---

# Title

## Problem

One.

## Evidence

Two.

## Scope

Three.

## Out of Scope

- Four,
  continued
- Five
"""
REQUIREMENT = """\
---
id: req-0001
status: approved
discovery: dcy-0001
criteria:
  create:
    - ac-0001
  update: []
  retire: []
  satisfy: []
---

# Title

## Objective

One.

## Scope

Two.

## Constraints

Three.

## Non-Goals

Four.
"""
AC = ".proofline/criteria/ac-0001.md"
LINE = ".proofline/lines/line-0001/line-0001.md"
DCY = ".proofline/lines/line-0001/dcy-0001.md"
REQ = ".proofline/lines/line-0001/req-0001.md"
IDENTITIES = ".proofline/identities.json"


@pytest.fixture
def project(tmp_path):
    files = {
        "proofline.yaml": "schema_version: 1\nartifact_root: .proofline\n",
        IDENTITIES: '{\n  "schema_version": 1,\n  "next_line_number": 2,\n'
        '  "next_ac_number": 7\n}\n',
        AC: CRITERION.format(id="ac-0001", status="active"),
        LINE: "---\nid: line-0001\n---\n",
        DCY: DISCOVERY,
        REQ: REQUIREMENT,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def write(name: str, content: bytes | str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def remove(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def link(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        target = root / "elsewhere"
        (root / name).rename(target)
        (root / name).symlink_to(target)

    return change


def second_line(root: Path) -> None:
    folder = root / ".proofline/lines/line-0002"
    folder.mkdir()
    (folder / "line-0002.md").write_text("---\nid: line-0002\n---\n")
    (folder / "dcy-0002.md").write_text(DISCOVERY.replace("dcy-0001", "dcy-0002"))
    (folder / "req-0002.md").write_text(REQUIREMENT.replace("-0001\nst", "-0002\nst"))
    edit(".proofline/lines/line-0002/req-0002.md", "discovery: dcy-0001", "discovery: dcy-0002")(
        root
    )
    edit(IDENTITIES, "2", "3")(root)


BROKEN: list[tuple[str, str, Callable[[Path], None]]] = [
    ("config", "missing", remove("proofline.yaml")),
    ("config", "other root", edit("proofline.yaml", ".proofline", "elsewhere")),
    ("config", "other version", edit("proofline.yaml", "1", "2")),
    ("config", "another key", edit("proofline.yaml", "\n", "\nmore: 1\n")),
    ("config", "no YAML", write("proofline.yaml", "a: [")),
    ("tree", "no root", remove(".proofline")),
    ("tree", "root is a link", link(".proofline")),
    ("tree", "no criteria", remove(".proofline/criteria")),
    ("tree", "file is a link", link(AC)),
    ("tree", "folder is a link", link(".proofline/lines/line-0001")),
    ("tree", "unknown file", write(".proofline/notes.txt", "x\n")),
    ("tree", "unknown Markdown", write(".proofline/criteria/README.md", "x\n")),
    ("tree", "unknown folder", write(".proofline/lines/line-0001/more/ac-0001.md", "x\n")),
    ("tree", "file in another line", write(".proofline/lines/line-0001/req-0002.md", "x\n")),
    ("tree", "wrong digits", write(".proofline/criteria/ac-12345.md", "x\n")),
    ("tree", "marker not empty", write(".proofline/lines/.gitkeep", "x")),
    ("tree", "marker elsewhere", write(".proofline/lines/line-0001/.gitkeep", "")),
    ("identities-format", "missing", remove(IDENTITIES)),
    (
        "identities-format",
        "version",
        edit(IDENTITIES, '"schema_version": 1', '"schema_version": 2'),
    ),
    (
        "identities-format",
        "order",
        write(
            IDENTITIES,
            '{\n  "schema_version": 1,\n  "next_ac_number": 7,\n  "next_line_number": 2\n}\n',
        ),
    ),
    ("identities-format", "indent", edit(IDENTITIES, "  ", "    ")),
    ("identities-format", "no newline", edit(IDENTITIES, "}\n", "}")),
    ("identities-format", "two newlines", edit(IDENTITIES, "}\n", "}\n\n")),
    ("identities-format", "another key", edit(IDENTITIES, "1,", '1,\n  "more": 1,')),
    ("identities-format", "text for number", edit(IDENTITIES, "7", '"7"')),
    ("identities-number", "criterion used", edit(IDENTITIES, "7", "1")),
    ("identities-number", "line used", edit(IDENTITIES, "2", "1")),
    ("encoding", "not UTF-8", write(AC, b"---\nid: \xff\n---\n")),
    ("encoding", "no newline", edit(AC, "A test.\n", "A test.")),
    ("encoding", "carriage returns", edit(AC, "A test.\n", "A test.\r\n")),
    ("front-matter", "missing", edit(AC, "---\n", "")),
    ("front-matter", "no YAML", edit(AC, "status: active", "status: [")),
    ("front-matter", "no mapping", write(LINE, "---\n- id\n---\n")),
    ("front-matter", "not closed", write(LINE, "---\nid: line-0001\n")),
    ("fields", "missing", edit(AC, "status: active\n", "")),
    ("fields", "unknown", edit(AC, "status: active\n", "status: active\nowner: me\n")),
    ("fields", "unknown in a line", edit(LINE, "---\n", "---\nstatus: open\n")),
    ("fields", "missing in a requirement", edit(REQ, "discovery: dcy-0001\n", "")),
    ("id", "criterion", edit(AC, "ac-0001", "ac-0002")),
    ("id", "line", edit(LINE, "line-0001", "line-0002")),
    ("status", "criterion", edit(AC, "active", "approved")),
    ("status", "discovery", edit(DCY, "confirmed", "approved")),
    ("status", "requirement", edit(REQ, "approved", "confirmed")),
    ("line-body", "text", write(LINE, "---\nid: line-0001\n---\n\n# Title\n")),
    ("line-file", "no line", remove(LINE)),
    ("line-file", "no discovery", remove(DCY)),
    ("headings", "no title", edit(AC, "# Title\n", "Title\n")),
    ("headings", "two titles", edit(AC, "# Title\n", "# Title\n\n# Title\n")),
    ("headings", "missing", edit(AC, "## Verification\n", "")),
    ("headings", "order", edit(DCY, "## Evidence", "## Scope")),
    ("headings", "another", edit(AC, "A test.\n", "A test.\n\n## Notes\n\nMore.\n")),
    ("headings", "only in a fence", edit(AC, "## Criterion", "```\n## Criterion\n```")),
    ("headings", "requirement", edit(REQ, "## Constraints", "## Limits")),
    ("section", "empty", edit(AC, "Something that passes or fails.", "")),
    ("section", "no list", edit(DCY, "- Four,\n  continued\n- Five", "Four and five")),
    ("section", "ordered list", edit(DCY, "- Four,\n  continued\n- Five", "1. Four")),
    ("placeholder", "criterion", edit(AC, "A test.", "{{TODO}}")),
    ("placeholder", "discovery", edit(DCY, "Two.", "{{NEEDS_EVIDENCE: where}}")),
    ("placeholder", "requirement", edit(REQ, "Two.", "{{TODO}}")),
    ("criterion-detail", "version", edit(AC, "A test.", "A test since 1.2.3.")),
    ("criterion-detail", "tag", edit(AC, "A test.", "A test since v2.")),
    ("criterion-detail", "file", edit(AC, "A test.", "See test_claim.py.")),
    ("criterion-detail", "commit", edit(AC, "A test.", "Done in 92a9343.")),
    ("discovery", "another line's", edit(REQ, "dcy-0001", "dcy-0002")),
    ("discovery", "not confirmed", edit(DCY, "status: confirmed", "status: draft")),
    ("criteria-lists", "missing list", edit(REQ, "  satisfy: []\n", "")),
    ("criteria-lists", "unknown list", edit(REQ, "  satisfy: []\n", "  satisfy: []\n  drop: []\n")),
    ("criteria-lists", "no list", edit(REQ, "update: []", "update: ac-0001")),
    ("criteria-lists", "unknown criterion", edit(REQ, "update: []", "update: [ac-0005]")),
    ("criteria-lists", "no criterion", edit(REQ, "update: []", "update: [dcy-0001]")),
    ("criteria-lists", "named twice", edit(REQ, "update: []", "update: [ac-0001]")),
    ("created-active", "draft", edit(AC, "status: active", "status: draft")),
    (
        "created-once",
        "by none",
        write(".proofline/criteria/ac-0002.md", CRITERION.format(id="ac-0002", status="draft")),
    ),
    ("created-once", "by two", second_line),
]


def test_the_project_itself_is_in_order():
    assert check(ROOT) == []
    assert main([str(ROOT)]) == 0


def test_a_small_tree_is_in_order(project):
    assert check(project) == []
    (project / ".proofline/criteria/.gitkeep").touch()
    edit(IDENTITIES, "7", "70")(project)
    assert check(project) == []


def test_a_draft_may_hold_placeholders(project):
    draft = CRITERION.format(id="ac-0002", status="draft").replace("A test.", "{{TODO}}")
    write(".proofline/criteria/ac-0002.md", draft)(project)
    for name, status in ((REQ, "approved"), (DCY, "confirmed")):
        edit(name, f"status: {status}", "status: draft")(project)
    edit(REQ, "    - ac-0001\n", "    - ac-0001\n    - ac-0002\n")(project)
    assert check(project) == []


@pytest.mark.parametrize(
    ("rule", "breakage"),
    [pytest.param(rule, how, id=f"{rule}-{name}") for rule, name, how in BROKEN],
)
def test_a_broken_tree_is_refused_by_name(project, rule, breakage):
    breakage(project)
    assert rule in {finding.rule for finding in check(project)}
    assert main([str(project)]) == 1


def test_every_rule_has_a_broken_tree():
    assert {rule for rule, _, _ in BROKEN} == set(RULES)
