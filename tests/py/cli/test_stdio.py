"""Streams that are closed, full or the wrong ones end a command with a sentence and its code."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.py.cli.conftest import PROGRAM, Outcome, Trex, clean_environment

if TYPE_CHECKING:
    from pathlib import Path

ENQUEUE = "enqueue post k1 --payload {}"


def shell(trex: Trex, arguments: str, streams: str) -> Outcome:
    """Run the command with redirections of a shell."""
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(PROGRAM)} {arguments} {streams}"],
        capture_output=True,
        text=True,
        env=clean_environment(**trex.environment),
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def said_once(done: Outcome) -> bool:
    lines = [line for line in done.err.splitlines() if line.strip()]
    return "internal error" not in done.err and "Error [" not in done.err and len(lines) < 8


@pytest.mark.parametrize(
    ("arguments", "streams", "code", "word"),
    [
        (ENQUEUE, "> /dev/full", 1, "output"),
        ("pending --json", "> /dev/full", 0, ""),
        ("--help", "> /dev/full", 1, "output"),
        ("enqueue post k1 --payload-file -", "<&-", 2, "stdin"),
        ("import - --topic post", "<&-", 2, "stdin"),
        ("record -", "<&-", 2, "stdin"),
        ("inbox backfill - --provider p --account a", "<&-", 2, "stdin"),
        (ENQUEUE, "2>&-", 0, ""),
        ("complete 999 1", "2>/dev/full", 4, ""),
        ("complete 999 1", "2>&-", 4, ""),
    ],
)
def test_broken_streams(trex: Trex, arguments: str, streams: str, code: int, word: str) -> None:
    done = shell(trex, arguments, streams)
    assert done.code == code, done.err
    assert word in done.err
    assert said_once(done), done.err


def test_a_full_place_for_refused_rows(trex: Trex, tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("topic,idempotency_key,cash_delta\npost,k1,x\npost,k2,\n")
    done = trex.process("import", str(file), "--reject", "/dev/full")
    assert (done.code, done.out) == (1, "")
    assert "--reject" in done.err
    assert said_once(done)
