"""A dump restored into a new cluster, also of a newer version: everything flows on."""

from __future__ import annotations

import asyncio
import json
import subprocess
from datetime import timedelta
from decimal import Decimal

import pytest

from tests.conftest import VERSIONS
from tests.py.migrations.conftest import Tools
from tests.support.rig import FakeSink, assert_sound, movement, register, rows, run_once
from trex_client import migrate as m
from trex_client.errors import ClaimLost
from trex_client.postgres import PostgresClient

pytestmark = pytest.mark.criterion("ac-0029", "ac-0037", "ac-0065")

LEASE = timedelta(minutes=10)
WHO = {"actor": "test", "reason": "test"}


def contents(database):
    """Every row of every table of trex, as text."""
    tables = rows(
        database,
        "select relname from pg_class where relnamespace = 'trex'::regnamespace and relkind = 'r'",
    )
    return {
        table: sorted(rows(database, f'select t::text from trex."{table}" t'))
        for (table,) in tables
    }


@pytest.mark.parametrize("old", VERSIONS)
def test_i2_dump_and_restore(private_server, new_db, tmp_path, old):
    before = new_db(old)
    client = register(before)
    client.register_currency("EUR", 2, **WHO)
    client.enqueue_many([movement(n) for n in range(6)])
    client.enqueue("pay.out", "first", {}, ordering_key="o")
    client.enqueue("pay.out", "second", {}, ordering_key="o")
    client.enqueue("pay.out", "later", {}, delay=timedelta(days=1))
    raw = json.dumps({"id": "evt"}).encode()
    client.receive("stripe", "acct", "evt", "paid", "in_1", raw, {"id": "evt"})
    done, again, parked, *held = client.claim("lost", 5, lease=LEASE)
    client.complete(done.message_id, done.fence, balance=Decimal(7), version=1)
    client.retry(again.message_id, again.fence)
    client.fail(parked.message_id, parked.fence)
    (event,) = client.claim("lost", box="inbox", lease=LEASE)
    fences = [c.fence for c in (done, again, parked, *held, event)]

    server = private_server()
    server.create_roles()
    after = server.create_database()
    dump = tmp_path / "dump.sql"
    tools = Tools(server.embedded.bindir)
    subprocess.run(
        [tools._program("pg_dump"), "-d", before.dsn(), "-f", str(dump)], check=True, timeout=120
    )
    restored = tools.psql(after, "-q", "-v", "ON_ERROR_STOP=1", file=dump)
    assert restored.returncode == 0, restored.stderr

    assert contents(after) == contents(before)
    server.create_roles(after.dbname)
    assert m.check(after.dsn()) == ()
    client = PostgresClient(after.connect(), "inst")
    fresh = client.enqueue("pay.out", "fresh", {})
    assert fresh.message_id > max(c.message_id for c in (*held, event))
    assert client.enqueue("pay.out", "first", {}, ordering_key="o").status == "duplicate"

    worker = PostgresClient(after.connect("worker"), "inst")
    early = worker.claim("early", 50)
    assert {c.message_id for c in early}.isdisjoint(c.message_id for c in held)
    assert min(c.fence for c in early) > max(fences)
    for claim in early:
        worker.release(claim.message_id, claim.fence)
    after.clock.advance(LEASE)
    sink = FakeSink()

    async def deliver():
        while client.stats().ready + client.stats().due + client.stats().lease_ended:
            await run_once(after, sink)

    asyncio.run(deliver())
    for claim in held:
        with pytest.raises(ClaimLost):
            worker.complete(claim.message_id, claim.fence)
        assert client.status(claim.message_id).state == "delivered"
        assert client.status(claim.message_id).fence > max(fences)
    (taken,) = worker.claim("next", box="inbox")
    assert (taken.message_id, taken.fence > max(fences)) == (event.message_id, True)
    worker.complete(taken.message_id, taken.fence)
    stats = client.stats()
    assert (stats.deferred, stats.permanent, stats.leased, stats.waiting) == (1, 1, 0, 0)
    assert set(sink.effects.values()) == {1}
    assert_sound(after)
    after.close()
