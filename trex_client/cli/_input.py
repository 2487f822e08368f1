"""What a command reads: a file, or stdin for `-`."""

from __future__ import annotations

import json
import sys
from typing import IO, TYPE_CHECKING, Any

import typer

from trex_client.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

KEY_TWICE = "an object has a key twice"


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


def load_json(text: str, **options: Any) -> tuple[Any, list[bool]]:
    """What JSON text says, and of each object, the outermost last, whether it has a key twice:
    jsonb keeps the last value without a word.

    Raises:
        ValueError, ArithmeticError, RecursionError: it says nothing.
    """
    twice: list[bool] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        twice.append(len(found) < len(pairs))
        return found

    return json.loads(text, object_pairs_hook=build, **options), twice


def refuse_twins(name: str, text: str) -> None:
    """Refuse JSON text with an object that has a key twice; what isn't JSON the call refuses.

    Raises:
        InvalidArgument: with `name`, and no text of the JSON.
    """
    try:
        twice = any(load_json(text, parse_int=str, parse_float=str)[1])
    except (ValueError, RecursionError):
        return
    if twice:
        raise InvalidArgument(f"{name}: {KEY_TWICE}")
