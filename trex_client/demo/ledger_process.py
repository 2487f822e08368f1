"""Child process: the ledger's HTTP front. `python -m trex_client.demo.ledger_process`

When stdin ends it says how often each of the keys it was told was posted to, and ends.
"""

from __future__ import annotations

import asyncio
import sys

from trex_client.demo.child import say, settings
from trex_client.demo.faults import PlannedFaults
from trex_client.ledger import LedgerServer


async def serve() -> None:
    """Answer until stdin ends."""
    given = settings()
    faults = PlannedFaults(
        calls=given["calls"],
        always=given["always"],
        hold_seconds=given["hold"],
        slow_seconds=0.3,
    )
    async with LedgerServer(given["dsn"], faults=faults, sessions=4) as server:
        say(adapter=server.adapter_config())
        await asyncio.to_thread(sys.stdin.read)
        say(calls={key: server.calls.get(key, 0) for key in given["keys"]})


if __name__ == "__main__":
    asyncio.run(serve())
