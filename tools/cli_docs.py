"""Write docs/cli.md from the commands themselves: `python -m tools.cli_docs [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer.main

from trex_client.cli import make_app
from trex_client.cli._exit import MEANINGS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "cli.md"

_TOP = """\
# The command `trex`

<!-- Written by `python -m tools.cli_docs`; a test keeps it true. -->

The database comes from `TREX_DSN`, `--dsn-file`, `--service`, or libpq's own variables (`PGHOST`,
`PGSERVICE`, `PGPASSFILE`, ...). Only `trex demo` has an argument for it, for a server without a
password: all processes of a machine can read arguments.
The instance is required, with `--instance` or `TREX_INSTANCE`; a malformed one is refused before
anything connects.

Results go to stdout: a table when a person looks, NDJSON when piped or with `--json`. Money is a
string with all its digits, a time ISO 8601 in UTC, a duration a number of seconds. Notes go to
stderr. `--print-sql` prints the call, quoted for psql, and connects to nothing.

Durations are typed as `500ms`, `30s`, `1h30m` or `7d`.
"""


def commands() -> list[tuple[str, Any]]:
    """All commands, with their groups' names, in the order of `--help`."""
    found: list[tuple[str, Any]] = []

    def walk(prefix: str, group: Any) -> None:
        for name, command in group.commands.items():
            if getattr(command, "commands", None):
                walk(f"{prefix}{name} ", command)
            elif not command.hidden:
                found.append((f"{prefix}{name}", command))

    walk("", typer.main.get_command(make_app()))
    return found


def render() -> str:
    """The text of docs/cli.md."""
    parts = [_TOP, "## Exit codes\n"]
    parts.append("| code | meaning |\n|---|---|")
    parts += [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    parts.append(
        "\nA call that reports several rows ends with the code of the first one that wasn't done;"
        " each row says its own status.\n"
    )
    parts.append("## Commands\n")
    for name, command in commands():
        parts.append(_command(name, command))
    return "\n".join(parts).rstrip() + "\n"


def _command(name: str, command: Any) -> str:
    text, _, examples = str(command.help).partition("\n\n\b\n")
    heading, *lines = examples.splitlines()
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([f"trex {name}", *(_argument(p) for p in arguments), "[options]"])
    shown = "\n".join(line.strip() for line in lines)
    rows = [
        f"| `{_names(p)}` | {_escaped(p.help or '')}{_default(p)} |" for p in [*arguments, *options]
    ]
    return "\n".join(
        [
            f"### trex {name}\n",
            f"    {usage}\n",
            f"{text}\n",
            "| | |\n|---|---|",
            *rows,
            f"\n{heading}\n",
            f"```sh\n{shown}\n```\n",
        ]
    )


def _argument(param: Any) -> str:
    name = param.name.upper() + ("..." if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.name).upper()
    names = [*param.opts, *param.secondary_opts]
    value = "" if param.is_flag else f" {param.metavar or names[0].strip('-').upper()}"
    return _escaped(", ".join(names) + value)


def _default(param: Any) -> str:
    notes = []
    if param.required:
        notes.append("required")
    elif param.default not in (None, False, "") and param.show_default:
        notes.append(f"default `{param.default}`")
    if getattr(param, "envvar", None):
        notes.append(f"or `{param.envvar}`")
    return f" ({', '.join(notes)})" if notes else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` say whether it is up to date."""
    text = render()
    if arguments == ["--check"]:
        current = TARGET.read_text(encoding="utf-8") if TARGET.is_file() else ""
        return 0 if current == text else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
