"""Run the code blocks of a page and compare what they print with what the page says.

    python -m tools.tour README.md            name the blocks that print something else
    python -m tools.tour --write README.md    write what they print into the page

Blocks run in their order, on a PostgreSQL of their own, in the root of the project: `sh` with bash,
`sql` with psql (database `shop`, as superuser, or as a comment `<!-- psql ARGUMENTS -->` before the
block says), `python` each in a process of its own. A `text` block after one is its output. A block
without one must succeed. Blocks that set things up with make are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trex_client.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"(?:^<!-- psql (?P<psql>[^\n]*) -->\n)?"
    r"^```(?P<kind>sh|sql|python)\n(?P<code>.*?)^```\n"
    r"(?P<between>\n```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
_NOT_RUN = re.compile(r"^\s*(make|pip|npm|git|apt-get) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: its line, what runs it, its code, and the output that the page shows."""

    line: int
    kind: str
    code: str
    psql: str
    output: str | None
    span: tuple[int, int]

    @property
    def runs(self) -> bool:
        """Whether it is run at all."""
        return self.kind != "sh" or _NOT_RUN.search(self.code) is None


class Failed(Exception):  # noqa: N818
    """A block that should succeed did not."""


def blocks(text: str) -> list[Block]:
    """All code blocks of a page."""
    return [
        Block(
            text.count("\n", 0, match.start("code")),
            match["kind"],
            match["code"],
            match["psql"] or "-d shop",
            match["output"],
            match.span("output") if match["output"] is not None else (0, 0),
        )
        for match in _BLOCK.finditer(text)
    ]


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """A server of its own, and the variables that lead there and to our programs."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory(prefix="trex-tour-") as home:
        programs = (
            Path(sys.executable).parent,
            server.bindir,
            "/usr/local/bin",
            "/usr/bin",
            "/bin",
        )
        yield {
            "PATH": os.pathsep.join(str(folder) for folder in programs),
            "PYTHONPATH": str(ROOT),
            "HOME": home,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PGHOST": str(server.socket_dir),
            "PGPORT": str(server.port),
            "PGUSER": "postgres",
            "PGDATABASE": "postgres",
            "PSQL_PAGER": "cat",
            "PGTZ": "UTC",
        }


def run(block: Block, variables: dict[str, str]) -> str:
    """Run a block and return what it prints, errors included.

    Raises:
        Failed: it failed, and the page shows no output that could say so.
    """
    code, words = block.code, ["bash", "-e", "-o", "pipefail"]
    if block.kind == "sh":
        code = code.replace(".venv/bin/trex", "trex")
    elif block.kind == "sql":
        stop = "-v ON_ERROR_STOP=1" if block.output is None else ""
        words = ["bash", "-c", f"psql -X -q {stop} -v SHOW_CONTEXT=never {block.psql} -f -"]
    else:
        words = [sys.executable, "-"]
    done = subprocess.run(
        words,
        input=code,
        env=variables,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0 and block.output is None:
        raise Failed(f"line {block.line}: exit code {done.returncode}\n{done.stdout}")
    printed = re.sub(r"^psql:<stdin>:\d+: ", "", done.stdout, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"


def outputs(text: str) -> list[tuple[Block, str]]:
    """Blocks with an output on the page, and what they print now.

    Raises:
        Failed: a block failed.
    """
    found = []
    with environment() as variables:
        for block in blocks(text):
            if block.runs:
                printed = run(block, variables)
                if block.output is not None:
                    found.append((block, printed))
    return found


def rewritten(text: str) -> str:
    """The page with what its blocks print now."""
    for block, printed in reversed(outputs(text)):
        start, end = block.span
        text = text[:start] + printed + text[end:]
    return text


def main(arguments: list[str]) -> int:
    """Compare or write."""
    write = arguments[:1] == ["--write"]
    wrong = 0
    for name in arguments[1:] if write else arguments:
        path = Path(name)
        text = path.read_text(encoding="utf-8")
        if write:
            path.write_text(rewritten(text), encoding="utf-8")
            continue
        for block, printed in outputs(text):
            if printed != block.output:
                wrong += 1
                print(f"{name}:{block.line}: prints\n{printed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
