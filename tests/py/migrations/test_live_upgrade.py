"""Every earlier schema is upgraded with its data, and under living workers of its time."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import signal
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from tests.py.migrations.conftest import MIGRATOR, Tree
from tests.py.migrations.test_paths import PATHS, by_python
from tests.support.http_sink import http_sink, ok
from tests.support.processes import ROOT, daemons
from tests.support.rig import assert_sound, books, movement, register, until
from trex_client import migrate as m
from trex_client.postgres import PostgresClient

pytestmark = pytest.mark.criterion("ac-0029", "ac-0037")

# With which migration a folder of functions, or an internal one, came.
CAME_WITH = {
    "inbox": 2, "_event_key": 2,
    "operation": 3, "_guard_entity": 3, "_check_machine": 3, "_effect_machine": 3,
    "_operation": 3, "_overdue": 3,
    "authority": 4, "_guard_authority": 4, "_authority": 4,
    "reconcile": 5, "_reconcile": 5,
}  # fmt: skip
LATEST = max(CAME_WITH.values())
EARLIER = range(1, LATEST)


def older(tree: Tree, number: int, to: Path) -> Tree:
    """The release whose last migration had this number: its migrations, and functions that need no
    later one."""
    old = tree.copy(to)
    for path in (old.root / "migrations").glob("0*.sql"):
        if int(path.name[:4]) > number:
            path.unlink()
    order = old.root / "functions.psql"
    order.write_text(
        "".join(
            line
            for line in order.read_text().splitlines(keepends=True)
            if not line.startswith("\\ir")
            or max(CAME_WITH.get(word, 1) for word in re.findall(r"\w+", line)) <= number
        )
    )
    m.refresh(root=old.root)
    return old


HOT = (
    "alter table trex.message add column later text;",
    "alter table trex.delivery add column later integer not null default 0;",
    "create index later on trex.receipt (confirmed_by);",
)


def newer(tree: Tree, number: int, to: Path) -> Tree:
    """A later release: one more migration of a table that is always in use, changed functions."""
    new = tree.copy(to)
    new.add(f"later_{number}", HOT[number])
    for name in ("enqueue", "enqueue_many", "claim", "exchange", "record", "extend"):
        path = new.root / "functions" / "outbox" / f"{name}.sql"
        path.write_text(path.read_text().replace("\nbegin\n", f"\nbegin\n    -- {number}\n", 1))
    m.refresh(root=new.root)
    return new


def migrate(database, tools, root: Path, path: str) -> None:
    """Run it until no lock is in its way any more."""
    while True:
        if path == "python":
            try:
                m.migrate(database.dsn(MIGRATOR), root=root)
            except m.MigrationLocked:
                continue
            return
        done = tools.psql(database, role=MIGRATOR, file=root / "replay.psql")
        if done.returncode == 0:
            return
        assert "lock timeout" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("number", "path"), list(zip(EARLIER, itertools.cycle(PATHS), strict=False))
)
def test_every_earlier_version_is_upgraded_with_its_data(
    ready_db, second_db, tools, tree, tmp_path, number, path
):
    old = older(tree, number, tmp_path / "old")
    for step in PATHS[path]:
        step(ready_db, tools, old.root)
    client = register(ready_db)
    client.enqueue_many([movement(n) for n in range(6)])
    done, again, parked, *_ = client.claim("w", 4)
    client.complete(done.message_id, done.fence, balance=Decimal(7), version=1)
    client.retry(again.message_id, again.fence)
    client.fail(parked.message_id, parked.fence)
    before = books(ready_db)
    for step in PATHS[path]:
        step(ready_db, tools, tree.root)
    by_python(second_db, tools, tree.root)
    assert tools.dump(ready_db) == tools.dump(second_db)
    assert books(ready_db) == before
    assert client.redrive([parked.message_id], actor="t", reason="t")[0].status == "redriven"
    claims = client.claim("w", 10)
    assert min(c.fence for c in claims) > max(c.fence for c in (done, again, parked))
    assert client.complete(claims[0].message_id, claims[0].fence).status == "recorded"
    assert_sound(ready_db)


def program(tree: Tree, folder: Path) -> dict[str, str]:
    """The environment of a client as it was installed with this release."""
    shutil.copytree(
        ROOT / "trex_client", folder / "trex_client", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(tree.root, folder / "trex_client" / "_sql")
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


@pytest.mark.case("F2")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [1, LATEST])
async def test_workers_and_clients_go_on_while_their_schema_is_upgraded(
    ready_db, tools, tree, tmp_path, number
):
    """Daemons and enqueuers of the old release live through the later migrations and three more
    releases; nothing is lost, sent twice or complained about."""
    old = older(tree, number, tmp_path / "old")
    by_python(ready_db, tools, old.root)
    register(ready_db)
    old_program = program(old, tmp_path / "old_program")
    releases = [tree]
    for later in range(3):
        releases.append(newer(releases[-1], later, tmp_path / f"new{later}"))
    new_program = program(releases[-1], tmp_path / "new_program")
    enqueued = 0
    over = asyncio.Event()

    async def enqueue():
        nonlocal enqueued
        client = PostgresClient(ready_db.connect("app"), "inst")
        while not over.is_set():
            await asyncio.to_thread(
                client.enqueue_many, [movement(enqueued), movement(enqueued + 1)]
            )
            enqueued += 2
            await asyncio.sleep(0.02)

    async with http_sink(ok(b'{"ok": true}')) as sink:
        # Long enough for a machine that has other things to do: a time-out is sent again.
        times = {f"{name}_timeout": 120 for name in ("connect", "pool", "write", "read", "total")}
        config = {"kind": "http", "url": sink.url, **times}
        with daemons(tmp_path, ready_db.dsn("worker"), config) as group:
            running = [group.start("--poll", "50ms", **old_program) for _ in "12"]
            await until(
                lambda: all(any(x["event"] == "connected" for x in d.lines()) for d in running)
            )
            writer = asyncio.create_task(enqueue())
            await until(lambda: len(sink.requests) > 50)
            for release, path in zip(releases, ("python", "psql") * 2, strict=True):
                await asyncio.to_thread(migrate, ready_db, tools, release.root, path)
                seen = len(sink.requests)
                await until(lambda: len(sink.requests) > seen + 50)  # noqa: B023
            # Started again, the old program is refused by name; the new one works.
            refused = group.start(**old_program)
            assert await refused.ended(60) == 11
            fresh = group.start(**new_program)
            await until(lambda: any(x["event"] == "connected" for x in fresh.lines()), 600)
            over.set()
            await writer
            await until(lambda: len(sink.requests) >= enqueued, 600)
            while (await asyncio.to_thread(books, ready_db))["delivered"] < enqueued:
                await asyncio.sleep(0.1)
            for daemon in (*running, fresh):
                daemon.signal(signal.SIGTERM)
                assert await daemon.ended(60) == 0
            told = Counter(
                (line["event"], line.get("result"))
                for daemon in (*running, fresh)
                for line in daemon.lines()
            )
    # Not one retry, lost connection or lost claim.
    assert {event for event, _ in told} == {"started", "connected", "draining", "stopped"}, told
    calls = Counter(request.headers["idempotency-key"] for request in sink.requests)
    assert set(calls.values()) == {1}
    assert len(calls) == enqueued == books(ready_db)["delivered"]
    assert_sound(ready_db)
