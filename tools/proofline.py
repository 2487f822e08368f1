"""Check the `.proofline` folder, where the project keeps its acceptance criteria as files.

    python -m tools.proofline [FOLDER]

`RULES` lists what is checked. Each finding names the file, the rule and the reason.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = {
    "config": "proofline.yaml holds schema_version 1 and artifact_root .proofline, nothing else",
    "tree": "only the known files and folders, no symbolic links, .gitkeep empty",
    "identities-format": "identities.json has its three keys in order, two blanks, one newline",
    "identities-number": "the next numbers are higher than any used",
    "encoding": "files are UTF-8 and end with one newline",
    "front-matter": "each file begins with a YAML mapping between two --- lines",
    "fields": "front matter has exactly the fields of its kind",
    "id": "the id is the file's name",
    "status": "the status is one of its kind",
    "line-body": "a line's file has no body",
    "line-file": "a line's folder holds the line's own file, and a requirement has its discovery",
    "headings": "one first-level heading, then exactly the second-level headings of its kind",
    "section": "each section says something; Out of Scope is an unordered list",
    "placeholder": "no {{...}} once active, confirmed or approved",
    "criterion-detail": "a criterion names no version, tag, file or commit",
    "discovery": "a requirement names its line's discovery, confirmed before it is approved",
    "criteria-lists": "criteria has the lists create, update, retire, satisfy of existing ids",
    "created-active": "what an approved requirement creates is active, or retired since",
    "created-once": "each criterion is created by exactly one line",
}

FIELDS = {
    "ac": ["id", "status"],
    "line": ["id"],
    "dcy": ["id", "status"],
    "req": ["id", "status", "discovery", "criteria"],
}
STATUSES = {
    "ac": {"draft", "active", "retired"},
    "dcy": {"draft", "confirmed", "withdrawn"},
    "req": {"draft", "approved", "withdrawn"},
}
HEADINGS = {
    "ac": ["Criterion", "Verification"],
    "dcy": ["Problem", "Evidence", "Scope", "Out of Scope"],
    "req": ["Objective", "Scope", "Constraints", "Non-Goals"],
}
SETTLED = {"active", "confirmed", "approved"}
LISTS = ["create", "update", "retire", "satisfy"]

_IDENTITIES = re.compile(
    r'\{\n  "schema_version": 1,\n  "next_line_number": (\d+),\n  "next_ac_number": (\d+)\n\}\n'
)
_FOLDER = re.compile(r"criteria|lines|lines/line-\d{4}")
_FILE = re.compile(r"criteria/(ac-\d{4})\.md|lines/line-(\d{4})/((?:line|dcy|req)-\2)\.md")
_DETAIL = re.compile(
    r"\bv?\d+\.\d+(?:\.\d+)+\b"  # 1.2.3
    r"|\bv\d+\b"  # a tag: v2
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b"  # a commit
    r"|\b[\w-]+\.(?:py|sql|psql|md|json|ya?ml|toml|sh|csv|mjs|js|txt)\b"  # a file
)


@dataclass(frozen=True, order=True)
class Finding:
    """What is wrong: the file relative to the project, the rule in `RULES`, the reason."""

    path: str
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}: {self.reason}"


@dataclass(frozen=True)
class Artifact:
    """One Markdown file, read."""

    path: str
    kind: str
    name: str
    fields: dict[str, object]
    body: str

    @property
    def status(self) -> str:
        return str(self.fields.get("status", ""))


def check(root: Path) -> list[Finding]:
    """Return all findings in the project folder `root`, sorted."""
    findings = list(_config(root))
    base = root / ".proofline"
    artifacts: dict[str, Artifact] = {}
    if base.is_dir() and not base.is_symlink():
        findings += _tree(root, base)
        for path in sorted(base.rglob("*.md")):
            if path.is_symlink() or not _FILE.fullmatch(path.relative_to(base).as_posix()):
                continue
            found = _read(root, path)
            if isinstance(found, Artifact):
                artifacts[found.name] = found
                findings += _single(found)
            else:
                findings.append(found)
        findings += _identities(root, base)
        findings += _references(artifacts)
    else:
        findings.append(Finding(".proofline", "tree", "is no folder"))
    return sorted(set(findings))


def _config(root: Path) -> Iterator[Finding]:
    try:
        content = yaml.safe_load((root / "proofline.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError):
        yield Finding("proofline.yaml", "config", "can't be read")
        return
    if content != {"schema_version": 1, "artifact_root": ".proofline"}:
        yield Finding("proofline.yaml", "config", "must be schema_version 1, artifact_root")


def _tree(root: Path, base: Path) -> Iterator[Finding]:
    for folder in ("criteria", "lines"):
        if not (base / folder).is_dir():
            yield Finding(f".proofline/{folder}", "tree", "is missing")
    for path in sorted(base.rglob("*")):
        relative = path.relative_to(base).as_posix()
        shown = path.relative_to(root).as_posix()
        if path.is_symlink():
            yield Finding(shown, "tree", "is a symbolic link")
        elif path.is_dir():
            if not _FOLDER.fullmatch(relative):
                yield Finding(shown, "tree", "is no folder of the layout")
        elif relative in {"criteria/.gitkeep", "lines/.gitkeep"}:
            if path.stat().st_size:
                yield Finding(shown, "tree", "must be empty")
        elif relative != "identities.json" and not _FILE.fullmatch(relative):
            yield Finding(shown, "tree", "is no file of the layout")


def _identities(root: Path, base: Path) -> Iterator[Finding]:
    path = base / "identities.json"
    shown = path.relative_to(root).as_posix()
    try:
        match = _IDENTITIES.fullmatch(path.read_bytes().decode())
    except (OSError, UnicodeError):
        match = None
    if match is None:
        yield Finding(shown, "identities-format", "keys, order, indent or final newline are wrong")
        return
    used = {"line": [0], "ac": [0]}
    for entry in [*base.glob("criteria/ac-*.md"), *base.glob("lines/line-*")]:
        kind, _, number = entry.stem.partition("-")
        if number.isdigit():
            used[kind].append(int(number))
    for kind, following in (("line", int(match[1])), ("ac", int(match[2]))):
        if following <= max(used[kind]):
            yield Finding(shown, "identities-number", f"{kind}-{max(used[kind]):04d} is used")


def _read(root: Path, path: Path) -> Artifact | Finding:
    shown = path.relative_to(root).as_posix()
    try:
        text = path.read_bytes().decode()
    except UnicodeError:
        return Finding(shown, "encoding", "is not UTF-8")
    if not text.endswith("\n") or text.endswith("\n\n") or "\r" in text:
        return Finding(shown, "encoding", "must end with one newline, without carriage returns")
    match = re.fullmatch(r"---\n(.*?)^---\n(.*)", text, re.DOTALL | re.MULTILINE)
    try:
        fields = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError:
        fields = None
    if match is None or not isinstance(fields, dict):
        return Finding(shown, "front-matter", "no YAML mapping between --- lines")
    return Artifact(shown, path.stem.partition("-")[0], path.stem, fields, match[2])


def _single(artifact: Artifact) -> Iterator[Finding]:
    """Check one file by itself."""

    def finding(rule: str, reason: str) -> Finding:
        return Finding(artifact.path, rule, reason)

    if list(artifact.fields) != FIELDS[artifact.kind]:
        yield finding("fields", f"must be {', '.join(FIELDS[artifact.kind])}")
    if artifact.fields.get("id") != artifact.name:
        yield finding("id", "differs from the file's name")
    if artifact.kind == "line":
        if artifact.body.strip():
            yield finding("line-body", "must be empty")
        return
    if artifact.status not in STATUSES[artifact.kind]:
        yield finding("status", f"must be one of {', '.join(sorted(STATUSES[artifact.kind]))}")
    titles, sections = _sections(artifact.body)
    if len(titles) != 1 or [name for name, _ in sections] != HEADINGS[artifact.kind]:
        yield finding("headings", f"one title, then {', '.join(HEADINGS[artifact.kind])}")
    for name, text in sections:
        if not text.strip():
            yield finding("section", f"{name} is empty")
        elif name == "Out of Scope" and not _is_list(text):
            yield finding("section", "Out of Scope must be an unordered list")
    if artifact.status in SETTLED and "{{" in artifact.body:
        yield finding("placeholder", "is still there")
    if artifact.kind == "ac" and (match := _DETAIL.search(artifact.body)):
        yield finding("criterion-detail", f"names {match[0]}")


def _sections(body: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the first-level headings, and the second-level ones each with its text."""
    titles: list[str] = []
    sections: list[tuple[str, str]] = []
    fenced = False
    for line in body.splitlines():
        if line.startswith(("```", "~~~")):
            fenced = not fenced
        if not fenced and line.startswith("# "):
            titles.append(line[2:].strip())
        elif not fenced and line.startswith("## "):
            sections.append((line[3:].strip(), ""))
        elif sections:
            name, text = sections[-1]
            sections[-1] = (name, f"{text}{line}\n")
    return titles, sections


def _is_list(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0].startswith("- ") and all(line.startswith(("- ", "  ")) for line in lines)


def _references(artifacts: dict[str, Artifact]) -> Iterator[Finding]:
    """Check what files say of each other."""
    created: dict[str, list[str]] = {}
    for artifact in artifacts.values():
        if artifact.kind in {"dcy", "req"}:
            number = artifact.name.partition("-")[2]
            if f"line-{number}" not in artifacts:
                yield Finding(artifact.path, "line-file", f"line-{number} has no file of its own")
        if artifact.kind == "req":
            yield from _requirement(artifact, artifacts, created)
    for artifact in artifacts.values():
        if artifact.kind == "ac" and len(created.get(artifact.name, [])) != 1:
            by = ", ".join(created.get(artifact.name, [])) or "none"
            yield Finding(artifact.path, "created-once", f"created by {by}")


def _requirement(
    artifact: Artifact, artifacts: dict[str, Artifact], created: dict[str, list[str]]
) -> Iterator[Finding]:
    number = artifact.name.partition("-")[2]
    discovery = artifacts.get(f"dcy-{number}")
    if discovery is None:
        yield Finding(artifact.path, "line-file", f"dcy-{number} is missing")
    if artifact.fields.get("discovery") != f"dcy-{number}":
        yield Finding(artifact.path, "discovery", f"must be dcy-{number}")
    elif discovery and artifact.status == "approved" and discovery.status != "confirmed":
        yield Finding(artifact.path, "discovery", "approved before its discovery is confirmed")
    lists = artifact.fields.get("criteria")
    if (
        not isinstance(lists, dict)
        or list(lists) != LISTS
        or not all(isinstance(ids, list) for ids in lists.values())
    ):
        yield Finding(artifact.path, "criteria-lists", f"must be the lists {', '.join(LISTS)}")
        return
    every = [str(name) for ids in lists.values() for name in ids]
    for name in sorted(set(every)):
        if name not in artifacts or artifacts[name].kind != "ac":
            yield Finding(artifact.path, "criteria-lists", f"{name} is no criterion")
        if every.count(name) > 1:
            yield Finding(artifact.path, "criteria-lists", f"{name} is named twice")
    for name in map(str, lists["create"]):
        created.setdefault(name, []).append(artifact.name)
        known = artifacts.get(name)
        if artifact.status == "approved" and known and known.status not in {"active", "retired"}:
            yield Finding(artifact.path, "created-active", f"{name} is not active")


def main(arguments: list[str]) -> int:
    """Check the folder named by the first argument, or this one; return the exit code."""
    root = Path(arguments[0] if arguments else ".")
    findings = check(root)
    for finding in findings:
        print(finding)
    files = len(list((root / ".proofline").rglob("*.md")))
    print(f"{files} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
