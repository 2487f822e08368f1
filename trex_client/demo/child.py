"""What the child processes share: settings from stdin, and no life without the parent."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1


def settings() -> dict[str, Any]:
    """Read the first line of stdin."""
    # A child that is stopped can't notice the end of stdin; the kernel can (Linux).
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    read: dict[str, Any] = json.loads(sys.stdin.readline())
    return read


def say(**values: Any) -> None:
    """Tell the parent something, in one line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def watch_parent() -> None:
    """End at once when stdin ends. Daemon thread."""

    def watch() -> None:
        while sys.stdin.readline():
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
