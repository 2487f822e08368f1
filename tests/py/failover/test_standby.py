"""A worker on a standby changes nothing and says so, and works once the standby is promoted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.py.failover.clusters import PRIMARY, caught_up, from_backup, prepare, promote
from tests.support.rig import FakeSink, Job, job
from tests.support.rig import until as later
from trex_client.postgres import PostgresClient
from trex_client.worker import Exit, Plan
from trex_client.worker.run import is_ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Server

pytestmark = [pytest.mark.criterion("ac-0046"), pytest.mark.criterion("ac-0065")]


def state(dsn: str) -> Any:
    with psycopg.connect(dsn) as conn:
        return conn.execute("select d::text from trex.delivery d order by message_id").fetchall()


def told(made: Job) -> set[tuple[str, str | None]]:
    return {(line["event"], line.get("result")) for line in made.lines}


async def test_f5_a_worker_on_a_standby(private_server: Callable[..., Server]) -> None:
    primary = private_server(None, **PRIMARY)
    dbname = prepare(primary)
    with psycopg.connect(primary.dsn(dbname), autocommit=True) as conn:
        client = PostgresClient(conn, "shop")
        for number in range(5):
            client.enqueue("pay.out", f"k{number}", {"n": number})
    standby = await asyncio.to_thread(from_backup, primary, standby=True)
    try:
        standby.start()
        caught_up(primary, standby)
        dsn = standby.dsn(dbname)
        before = state(dsn)
        sink = FakeSink()
        made = job(
            standby.dsn(dbname, "trex_test_worker"), sink, key="shop", plan=Plan(), poll=0.05,
            level="info",
        )  # fmt: skip
        running = asyncio.create_task(made.worker.run())
        await later(lambda: ("alert", "not_primary") in told(made))
        await asyncio.sleep(1.0)
        assert not is_ready(made.worker)
        assert len(made.lines) < 60
        assert (state(dsn), sink.calls) == (before, {})
        assert primary.embedded is not None
        primary.embedded.kill9()
        await asyncio.to_thread(promote, standby)
        await later(lambda: len(sink.effects) == 5)
        await later(lambda: not state(dsn))
        assert is_ready(made.worker)
        made.worker.stop()
        assert await running is Exit.OK
        assert set(sink.effects.values()) == {1}
    finally:
        standby.close()
