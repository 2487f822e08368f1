"""Write the generated pages again: `python -m tools.docs`; `--check` names those out of date.

docs/sql-reference.md comes from the `comment on function` texts, in the order of
`sql/functions.psql`; docs/cli.md from the commands; the last column of docs/field-cases.md from
the tests.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import cli_docs, field_cases

ROOT = Path(__file__).resolve().parents[1]
SQL = ROOT / "sql"
REFERENCE = ROOT / "docs" / "sql-reference.md"

_TOP = """\
# SQL reference

<!-- Written by `python -m tools.docs`; a test keeps it true. -->

Every public function, as its `comment on function` says, so `\\df+ trex.claim` shows the same.
Arguments have names: `select * from trex.claim('shop', 'w-1', p_limit => 10)`. Errors are
SQLSTATEs; what they mean and what a client does stands at [the end](#errors). Functions whose names
begin with `_` are nobody's to call.

What *claim*, *lease* and *fence* mean, and why it is so: [design.md](design.md).
"""

_ERRORS = """\
## Errors

| SQLSTATE | meaning | what a client does |
|---|---|---|
| `TX400` | invalid argument; the hint names it | a bug: no retry |
| `TX401` | no verified viewer | authenticate |
| `TX403` | instance unknown or not bound (can't be told apart), or not for buyers | configuration |
| `TX404` | unknown message, or somebody else's (can't be told apart) | no retry |
| `TX409` | claim lost | stop work on it, roll back |
| `TX410` | this claim has ended otherwise | stop |
| `TX412` | version conflict | read again, decide |
| `TX422` | key reused with other content | a bug: alert |
| `TX423` | not allowed in this state | stop |
| `TX425` | outcome unknown, needs `resolve` | park, alert |
| `TX501` | wrong isolation level, or work done before in the transaction | a bug |
| `TX503` | standby or read-only | reconnect to the primary |
| `TX901`, `TX902` | immutable fact touched, invariant violated | page somebody, stop the worker |
| `40001`, `40P01` | serialization failure, deadlock | retry the whole transaction |
| `08*`, `57P0*`, any error during COMMIT | unknown whether committed | repeat the same call |
"""

_ORDER = ("outbox", "inbox", "operation", "authority", "reconcile", "read", "operator")
_TITLES = {
    "outbox": "Outbox: write, claim, record",
    "inbox": "Inbox",
    "operation": "Operations",
    "authority": "Authority",
    "reconcile": "Reconcile",
    "read": "Read",
    "operator": "Operate",
}
_INCLUDE = re.compile(r"^\\ir functions/([a-z]+)/([a-z0-9_]+)\.sql$", re.MULTILINE)
_HEAD = re.compile(
    r"create or replace function trex\.(?P<name>[a-z0-9_]+)\((?P<parameters>.*?)\)\s*"
    r"returns (?P<returns>.*?)\s*language ",
    re.DOTALL,
)
_COMMENT = re.compile(
    r"comment on function trex\.(?P<name>[a-z0-9_]+)\(.*?\) is\s*'(?P<text>(?:[^']|'')*)'",
    re.DOTALL,
)
_GRANT = re.compile(
    r"grant execute on function trex\.(?P<name>[a-z0-9_]+)\(.*?\)\s*to (?P<roles>[a-z_, \n]+);",
    re.DOTALL,
)
_TYPE = re.compile(r"^create type trex\.([a-z_]+) as \((.*?)\);", re.DOTALL | re.MULTILINE)
_REASONS = re.compile(r"create domain trex\.reason .*?value in \((.*?)\)", re.DOTALL)
_LABEL = re.compile(r"  [a-z_]+(, [a-z_]+)*:")
_FIELDS = ("Arguments", "Returns", "Errors", "Locks", "Idempotent")


@dataclass(frozen=True, slots=True)
class Function:
    """A public function as its file says."""

    group: str
    name: str
    parameters: tuple[str, ...]
    returns: str
    summary: str
    fields: dict[str, list[str]]
    roles: tuple[str, ...]


def functions() -> list[Function]:
    """All public functions, in the order of `functions.psql`.

    Raises:
        ValueError: a file lacks a part; names the file.
    """
    text = (SQL / "functions.psql").read_text(encoding="utf-8")
    found = []
    for group, name in _INCLUDE.findall(text):
        if group != "internal" and not name.startswith("_"):
            path = SQL / "functions" / group / f"{name}.sql"
            found += _read(path, group)
    return found


def _read(path: Path, group: str) -> list[Function]:
    text = path.read_text(encoding="utf-8")
    comments = {m["name"]: m["text"].replace("''", "'") for m in _COMMENT.finditer(text)}
    grants = {
        m["name"]: tuple(role.strip() for role in m["roles"].split(","))
        for m in _GRANT.finditer(text)
    }
    found = []
    for head in _HEAD.finditer(text):
        name = head["name"]
        if name.startswith("_"):
            continue
        if name not in comments:
            raise ValueError(f"{path.name}: no comment on {name}")
        summary, fields = _parse(comments[name])
        parameters = tuple(
            " ".join(part.split()) for part in head["parameters"].split(",\n") if part.strip()
        )
        returns = " ".join(head["returns"].split())
        found.append(
            Function(group, name, parameters, returns, summary, fields, grants.get(name, ()))
        )
    if not found:
        raise ValueError(f"{path.name}: no public function")
    return found


def _parse(comment: str) -> tuple[str, dict[str, list[str]]]:
    """The summary, and the lines of each field; a line that goes on is joined."""
    summary: list[str] = []
    fields: dict[str, list[str]] = {}
    current: str | None = None
    for line in comment.splitlines():
        head, colon, rest = line.partition(":")
        if colon and head in _FIELDS:
            current = head
            fields[head] = [rest.strip()] if rest.strip() else []
        elif current is None:
            summary.append(line.strip())
        elif current == "Arguments" and (not fields[current] or _LABEL.match(line)):
            fields[current].append(line.strip())
        elif fields[current]:
            fields[current][-1] += " " + line.strip()
        else:
            fields[current].append(line.strip())
    return " ".join(summary), fields


def reference() -> str:
    """The text of docs/sql-reference.md."""
    known = functions()
    parts = [_TOP]
    for group in _ORDER:
        mine = [function for function in known if function.group == group]
        if mine:
            parts.append(f"## {_TITLES[group]}\n")
            parts.append("| | |\n|---|---|")
            parts += [f"| [`{f.name}`](#trex{f.name}) | {_cell(f.summary)} |" for f in mine]
            parts.append("")
            parts += [_section(function) for function in mine]
    parts.append(_types())
    parts.append(_reasons())
    parts.append(_ERRORS)
    return "\n".join(parts).rstrip() + "\n"


def _section(function: Function) -> str:
    inside = ",\n".join(f"    {parameter}" for parameter in function.parameters)
    call = f"trex.{function.name}(\n{inside}\n)" if inside else f"trex.{function.name}()"
    lines = [
        f"### trex.{function.name}\n",
        f"{function.summary}\n",
        f"```sql\n{call}\nreturns {function.returns}\n```\n",
    ]
    for name, content in function.fields.items():
        if name == "Arguments" and content != ["none"]:
            lines.append("- **Arguments**")
            lines += [f"  - {_argument(line)}" for line in content]
        elif name != "Arguments":
            lines.append(f"- **{name}** {_text(' '.join(content))}")
    if function.roles:
        roles = ", ".join(f"`{role}`" for role in function.roles)
        lines.append(f"- **Roles** {roles}")
    return "\n".join(lines) + "\n"


def _argument(line: str) -> str:
    """The names of parameters as code."""
    return re.sub(r"\bp_[a-z_]+", lambda match: f"`{match[0]}`", _text(line))


def _text(line: str) -> str:
    return line.replace("<", "&lt;").replace("*", "\\*")


def _cell(line: str) -> str:
    return _text(line).replace("|", "\\|")


def _types() -> str:
    lines = ["## Result types\n"]
    for path in sorted((SQL / "migrations").glob("*.sql")):
        for name, body in _TYPE.findall(path.read_text(encoding="utf-8")):
            columns = " ".join(body.split()).replace(" []", "[]")
            lines.append(f"- `trex.{name}`: {columns}")
    return "\n".join(lines) + "\n"


def _reasons() -> str:
    text = "".join(
        path.read_text(encoding="utf-8") for path in sorted((SQL / "migrations").glob("*.sql"))
    )
    match = _REASONS.search(text)
    if match is None:
        raise ValueError("no domain trex.reason")
    words = ", ".join(f"`{word}`" for word in re.findall(r"'([^']+)'", match[1]))
    return (
        "## Reason codes\n\nThe closed list of what may be stored as a reason (domain"
        f" `trex.reason`): {words}.\n"
    )


def pages() -> dict[Path, str]:
    """All generated pages and what they should say."""
    return {
        REFERENCE: reference(),
        cli_docs.TARGET: cli_docs.render(),
        field_cases.TARGET: field_cases.render(),
    }


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` name those that are out of date."""
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    stale = [
        path
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        name = path.relative_to(ROOT)
        if arguments:
            print(f"{name} is out of date: run make docs")
        else:
            path.write_text(pages()[path], encoding="utf-8")
            print(f"{name} written")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
