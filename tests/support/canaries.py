"""What must never get out, and the search for it in all that a run of tests printed and logged.

`CANARY` is in payload and account of every movement of `tests.support.rig`, and in whatever else
holds a secret in `tests/py/security`. Searched for it, and for the servers' passwords, are: the
captured output of each test (`tests.support.whole_run`), the logs and metrics of workers, daemons
and commands when their test ends, and the log of each server before it is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trex_client.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "cAnArY4111111111111111"
_FORMS = {CANARY.lower(), CANARY.encode().hex(), "4111111111111111", "%63anary"}

passwords: set[str] = set()
"""Passwords of servers that were started."""
_watched: list[tuple[str, Callable[[], str]]] = []


def holds(text: str) -> bool:
    """Whether a text holds the canary, as it is or encoded, or a password."""
    lower = text.lower()
    return any(form in lower for form in _FORMS) or any(word in text for word in passwords)


def check(text: str, what: str) -> None:
    """Fail, without the text, if it holds what must not get out."""
    assert not holds(text), f"{what} shows a canary or a password"


def watch(what: str, read: Callable[[], str]) -> None:
    """Search what `read` returns when the test ends."""
    _watched.append((what, read))


def search_watched() -> None:
    """Search all that the test which ends has written."""
    watched = _watched.copy()
    _watched.clear()
    for what, read in watched:
        check(read(), what)


def watch_servers() -> None:
    """From now on, search the log of every server of our own before it is removed."""
    close = EmbeddedServer.close

    def searching(self: EmbeddedServer) -> None:
        there = self._root is not None and self.log.exists()
        text = self.log.read_text(encoding="utf-8", errors="replace") if there else ""
        close(self)
        check(text, "a server's log")

    EmbeddedServer.close = searching  # type: ignore[method-assign]
