"""The sessions that trex opens itself are READ COMMITTED, whatever the default of the role, the
database or PGOPTIONS is. A caller's connection keeps the caller's.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

SETTING: Final = "default_transaction_isolation"

# A pooler names a process that isn't the one that works. What is set there others would get, so
# there nothing is set.
_SET: Final = f"""
select case when pg_catalog.pg_backend_pid() = %s
    then pg_catalog.set_config('{SETTING}', 'read committed', false) end
"""


def read_committed(conn: psycopg.Connection[Any]) -> bool:
    """Set the level of a new connection in autocommit mode; False behind a pooler."""
    cursor = conn.execute(_SET, (conn.info.backend_pid,), prepare=False)
    return cursor.fetchone() != (None,)


async def read_committed_async(conn: psycopg.AsyncConnection[Any]) -> bool:
    """As `read_committed`."""
    cursor = await conn.execute(_SET, (conn.info.backend_pid,), prepare=False)
    return await cursor.fetchone() != (None,)
