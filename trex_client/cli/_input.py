"""What a command reads: a file, or stdin for `-`."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path


def is_stdin(path: Path) -> bool:
    """`-` stands for stdin."""
    return str(path) == "-"


def stdin() -> IO[bytes]:
    """The bytes of stdin; wrong usage when it is closed."""
    # Python's stand-in for a stream that was closed before it started.
    if sys.stdin is None:
        raise typer.BadParameter("there is no input: stdin is closed")
    return sys.stdin.buffer


def read_bytes(path: Path) -> bytes:
    """All of it; wrong usage when that isn't possible."""
    try:
        return stdin().read() if is_stdin(path) else path.read_bytes()
    except OSError:
        raise typer.BadParameter("the file can't be read", param_hint="FILE") from None


def read_text(path: Path) -> str:
    """All of it as text; wrong usage when that isn't possible."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("the file isn't UTF-8", param_hint="FILE") from None
