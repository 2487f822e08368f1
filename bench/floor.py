"""The floor: the least SQL that a queue with leases needs, driven by pgbench (in C, prepared).

No owner, no fence, no check of who deletes, no receipt, nothing kept.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from pathlib import Path

    from bench.place import Place

TABLE = """
create table q (
    id bigint generated always as identity primary key,
    state int not null default 0,
    lease timestamptz,
    payload jsonb not null
);
create index q_ready on q (id) where state = 0;
"""
CLAIM = """
with c as (
    update q set state = 1, lease = now() + '30 s'
    where id = any(array(
        select id from q where state = 0 order by id limit {batch} for update skip locked
    ))
    returning id
)
select array_agg(id) as ids from c \\gset
delete from q where id = any(:ids::bigint[]);
"""


def load(dsn: str, payload: str, rows: int) -> None:
    """Make the table, with so many rows."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TABLE)
        conn.execute(
            "insert into q (payload) select %s::jsonb from generate_series(1, %s)", (payload, rows)
        )


def drain(place: Place, dbname: str, batch: int, workers: int, rows: int) -> float:
    """Claim and delete; returns rows a second. `rows`: so many in all, fewer than there are."""
    script = CLAIM.format(batch=batch)
    return batch * _pgbench(place, dbname, script, workers, "-t", str(rows // batch // workers))


def enqueue(place: Place, dbname: str, payload: str, size: int, clients: int, secs: float) -> float:
    """Insert `size` rows in each transaction; returns rows a second."""
    script = f"insert into q (payload) values ('{payload}');"
    if size > 1:
        script = (
            f"insert into q (payload) select '{payload}'::jsonb from generate_series(1, {size});"
        )
    return size * _pgbench(place, dbname, script, clients, "-T", str(max(1, round(secs))))


def _pgbench(place: Place, dbname: str, script: str, clients: int, *options: str) -> float:
    command: list[str | Path] = [
        place.server.bindir / "pgbench",
        *("-n", "-M", "prepared", "-f", "-", "-c", str(clients), "-j", str(min(2, clients))),
        *options,
        place.dsn(dbname),
    ]
    answer = subprocess.run(command, input=script, text=True, capture_output=True, check=True)
    rate = re.search(r"tps = ([\d.]+)", answer.stdout)
    if rate is None:
        raise RuntimeError(answer.stdout + answer.stderr)
    return float(rate[1])
