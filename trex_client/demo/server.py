"""Child process: a PostgreSQL server of its own. `python -m trex_client.demo.server`

It ends when stdin ends, unless the last line said `keep`: then on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from trex_client.demo.child import say
from trex_client.embedded import EmbeddedError, EmbeddedServer


def main() -> int:
    """Run the server."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: ended.set())
    try:
        with EmbeddedServer() as server:
            say(
                dsn=server.dsn(),
                version=server.binaries.full,
                bindir=str(server.bindir),
                pid=os.getpid(),
            )
            keep = False
            for line in sys.stdin:
                keep = line == "keep\n"
            while keep and not ended.wait(3600.0):
                pass
    except EmbeddedError as error:
        say(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
