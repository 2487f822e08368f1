"""Real daemons, a real server and a counting ledger under real faults: one effect for each key."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support.counts import emit, scale
from tests.support.processes import Daemon, daemons, proxy
from tests.support.rig import assert_sound, books, enqueue, register, rows, until
from trex_client import ledger
from trex_client.postgres import PostgresClient

pytestmark = pytest.mark.criterion("ac-0053")

KILLS = scale("KILLS", 60)
QUICK: dict[str, Any] = {
    "backoff_base": timedelta(milliseconds=20),
    "backoff_cap": timedelta(milliseconds=200),
}
SETTINGS = ("--lease", "1s", "--poll", "100ms", "-c", "16", "--batch", "32", "--drain", "5s")


@pytest.fixture
def ledger_db(new_db):
    database = new_db(migrated=False)
    ledger.install(database.dsn())
    return database


def finished(database):
    return lambda: not rows(database, "select 1 from trex.delivery where parked is null limit 1")


def assert_one_effect_each(database, server, number):
    """Every key has one effect; what isn't delivered is parked, and nothing is lost."""
    found = server.counts()
    assert (found.most_effects, found.imbalance, found.drift) == (1, 0, 0)
    receipts = rows(database, "select count(*) from trex.receipt")[0][0]
    parked = rows(database, "select count(*) from trex.delivery where parked is not null")[0][0]
    assert receipts + parked == number
    assert found.effects >= receipts
    assert_sound(database)
    return found


@pytest.mark.case("B9")
@pytest.mark.timeout(max(300, 5 * KILLS))
async def test_killed_workers(new_db, ledger_db, tmp_path):
    seed, number, started = 7, 600, time.monotonic()
    dice = random.Random(seed)
    database = new_db()
    client = register(database, max_attempts=1000, **QUICK)
    enqueue(client, number)
    faults = ledger.Faults(seed=seed, slow=1.0, slow_seconds=0.05, most_per_key=10)
    kills = 0
    async with ledger.LedgerServer(ledger_db.dsn(), faults=faults) as server:
        with daemons(tmp_path, database.dsn("worker"), server.adapter_config()) as group:
            running = [group.start(*SETTINGS) for _ in range(3)]
            # Kill while they are at work, the first time all of them: one of three may be idle, and
            # a killed one must leave calls without an answer.
            while kills < KILLS or not finished(database)():
                await asyncio.sleep(dice.uniform(0.05, 0.2))
                left = "select count(*) from trex.delivery"
                if kills < KILLS and rows(database, left)[0][0] < 200:
                    enqueue(client, 400, prefix=f"after{number}-")
                    number += 400
                busy = "select count(*) from trex.delivery where lease_until is not null"
                if kills < KILLS and rows(database, busy)[0][0] > 3:
                    victims = [dice.randrange(3)] if kills else [0, 1, 2]
                    for victim in victims:
                        running[victim].process.kill()
                    for victim in victims:
                        running[victim] = group.start(*SETTINGS)
                    kills += len(victims)
                    await asyncio.sleep(0.8)
            # The last one may have just been started: before it listens to signals it has no
            # exit code of its own.
            for daemon in running:
                await until(daemon.lines)
                daemon.signal(signal.SIGTERM)
            codes = [await daemon.ended() for daemon in running]
        found = assert_one_effect_each(database, server, number)
    expired = rows(database, "select count(*) from trex.outcome where kind = 'lease_expired'")
    print(f"seed {seed}: kills {kills}, lease_expired {expired}, {found}, {books(database)}")
    assert codes == [0, 0, 0]
    emit("daemons", {"kills": kills}, seconds=time.monotonic() - started, seed=seed)
    assert kills >= KILLS
    assert expired[0][0] > 0
    assert found.effects == number


async def test_a_worker_that_stood_still_past_its_lease(new_db, ledger_db, tmp_path):
    database = new_db()
    client = register(database, max_attempts=1000, **QUICK)
    enqueue(client, 40)
    faults = ledger.Faults(slow=1.0, slow_seconds=0.3, most_per_key=100)
    async with ledger.LedgerServer(ledger_db.dsn(), faults=faults) as server:
        with daemons(tmp_path, database.dsn("worker"), server.adapter_config()) as group:
            frozen = group.start(*SETTINGS)
            await until(lambda: server.calls)
            frozen.signal(signal.SIGSTOP)
            held = rows(
                database, "select count(*) from trex.delivery where lease_until is not null"
            )[0][0]
            other = group.start(*SETTINGS)
            await until(finished(database))
            frozen.signal(signal.SIGCONT)
            await until(
                lambda: any(line["event"] == "claim_lost" for line in frozen.lines()), seconds=20
            )
            for daemon in (frozen, other):
                daemon.signal(signal.SIGTERM)
                assert await daemon.ended() == 0
        found = assert_one_effect_each(database, server, 40)
    assert held >= 1
    assert found.effects == 40
    assert rows(database, "select count(*) from trex.stale_report")[0][0] >= 1


async def test_a_server_that_crashes_and_restarts(private_server, ledger_db, tmp_path):
    server_process = private_server()
    database = server_process.create_database()
    server_process.load_schema(database.dbname)
    client = register(database, max_attempts=1000, **QUICK)
    enqueue(client, 800)
    faults = ledger.Faults(slow=1.0, slow_seconds=0.02, most_per_key=10)
    async with ledger.LedgerServer(ledger_db.dsn(), faults=faults) as server:
        with daemons(tmp_path, database.dsn("worker"), server.adapter_config()) as group:
            running = [group.start(*SETTINGS) for _ in range(2)]
            await until(lambda: len(server.calls) > 20)
            # kill -9 of one backend: the server restarts all of them by itself.
            (victim,) = rows(
                database,
                "select pid from pg_stat_activity where usename = 'trex_test_worker' limit 1",
            )
            os.kill(victim[0], signal.SIGKILL)
            await asyncio.sleep(1.0)
            await until(lambda: reachable(database))
            await asyncio.sleep(0.5)
            server_process.embedded.restart("immediate")
            await until(finished(database))
            for daemon in running:
                daemon.signal(signal.SIGTERM)
                assert await daemon.ended() == 0
            events = [line["event"] for daemon in running for line in daemon.lines()]
        found = assert_one_effect_each(database, server, 800)
    assert found.effects == 800
    assert events.count("connection_lost") >= 2
    assert rows(database, "select epoch from trex.epoch")[0][0] >= 2


def reachable(database):
    try:
        return rows(database, "select 1")
    except Exception:
        return False


async def test_connections_to_the_server_are_cut_and_stalled(new_db, ledger_db, tmp_path):
    database = new_db()
    if database.server.embedded is None:
        pytest.skip("needs a server of its own")
    client = register(database, max_attempts=1000, **QUICK)
    enqueue(client, 500)
    async with (
        ledger.LedgerServer(ledger_db.dsn()) as server,
        proxy(database.server.embedded.port) as between,
    ):
        direct = database.dsn("worker", tcp=True)
        dsn = direct.replace(f"port={database.server.embedded.port}", f"port={between.port}")
        assert dsn != direct
        with daemons(tmp_path, dsn, server.adapter_config()) as group:
            daemon = group.start(*SETTINGS)
            for round_number in range(8):
                await until(lambda: between.writers)
                await asyncio.sleep(0.3)
                between.stalled = round_number % 2 == 1
                await asyncio.sleep(0.2)
                between.cut()
                between.stalled = False
            await until(finished(database))
            daemon.signal(signal.SIGTERM)
            assert await daemon.ended() == 0
        found = assert_one_effect_each(database, server, 500)
    assert between.cuts >= 4
    assert found.effects == 500


async def test_a_slow_and_lying_ledger(new_db, ledger_db, tmp_path):
    database = new_db()
    client = register(database, max_attempts=1000, **QUICK)
    enqueue(client, 400)
    faults = ledger.Faults(
        seed=11, unavailable=0.1, in_progress=0.05, cut_before=0.05, timeout_after_commit=0.05,
        cut_after_commit=0.1, lying=0.1, garbage=0.05, posted_twice=0.1, slow=0.1, refused=0.05,
        conflict=0.05, hold_seconds=3.0,
    )  # fmt: skip
    async with ledger.LedgerServer(ledger_db.dsn(), faults=faults) as server:
        config = server.adapter_config(read_timeout=0.5)
        with daemons(tmp_path, database.dsn("worker"), config) as group:
            daemon = group.start(*SETTINGS)
            await until(finished(database))
            daemon.signal(signal.SIGTERM)
            assert await daemon.ended() == 0
        found = assert_one_effect_each(database, server, 400)
    print(found, server.fault_counts, books(database))
    assert set(server.fault_counts) >= {
        "unavailable", "in_progress", "cut_before", "timeout_after_commit", "cut_after_commit",
        "lying", "garbage", "posted_twice", "slow",
    }  # fmt: skip
    parked = dict(rows(database, "select parked, count(*) from trex.delivery group by 1"))
    assert parked["permanent"] > 0
    assert parked["conflict"] > 0
    assert "dead_letter" not in parked
    assert found.effects == rows(database, "select count(*) from trex.receipt")[0][0]


# three crash points on a real process; the kill comes from inside the ledger, at an exact moment

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lookup": ("lookup", {"policy": "lookup"}),
    "idempotent": ("idempotent", {"policy": "idempotent", "lookup": None}),
    "neither": ("at_most_once", {"policy": "at_most_once", "lookup": None}),
}


class KillingLedger(ledger.LedgerServer):
    """Kills the daemon while it calls: before the posting, or after it and before the answer."""

    victim: Daemon | None = None
    when = "before"

    async def _call_post(self, values):
        if self.victim is not None and self.when == "before":
            await self._kill()
        answer = await super()._call_post(values)
        if self.victim is not None and self.when == "after":
            await self._kill()
        return answer

    async def _kill(self):
        victim, self.victim = self.victim, None
        assert victim is not None
        victim.process.kill()
        await victim.ended()
        if self.when == "before":
            raise ConnectionResetError


@pytest.mark.criterion("ac-0033")
@pytest.mark.parametrize("when", ["before", "after", "timeout with late success"])
@pytest.mark.parametrize("kind", KINDS)
async def test_three_crash_points(new_db, ledger_db, tmp_path, kind, when):
    policy, changes = KINDS[kind]
    database = new_db()
    client = register(database, max_attempts=50, **QUICK)
    (message_id,) = enqueue(client, 1, effect_policy=policy)
    async with KillingLedger(ledger_db.dsn()) as server:
        config = {**server.adapter_config(read_timeout=0.4), **changes}
        config = {name: value for name, value in config.items() if value is not None}
        with daemons(tmp_path, database.dsn("worker"), config) as group:
            if when == "timeout with late success":
                server.faults = ledger.Faults(timeout_after_commit=1.0, most_per_key=1)
            first = group.start(*SETTINGS)
            server.when = when
            if when in {"before", "after"}:
                server.victim = first
                await until(lambda: first.process.poll() is not None)
                group.start(*SETTINGS)
            await until(lambda: client.status(message_id).state in {"delivered", "unknown"})
            await asyncio.sleep(0.5)
        status = client.status(message_id)
        found = server.counts()
        calls = sum(server.calls.values())
        applied = 0 if when == "before" else 1
        if kind == "neither":
            assert (status.state, calls) == ("unknown", 1)
            assert found.effects == applied
            client.resolve(
                message_id, "delivered" if applied else "abandon", evidence="books", actor="ann",
                reason="looked",
            )  # fmt: skip
        else:
            assert status.state == "delivered"
            assert (found.effects, found.most_effects) == (1, 1)
            if kind == "lookup" and applied:
                assert (status.confirmed_by, calls) == ("lookup", 1)
            if kind == "idempotent":
                assert (status.confirmed_by, status.duplicate) == ("same_key", bool(applied))
        assert len(server.calls) == 1
    assert_sound(database)


# signals and exit codes


@pytest.mark.criterion("ac-0046")
@pytest.mark.case("B9")
async def test_exit_codes_say_why(new_db, ledger_db, tmp_path):
    database = new_db()
    client = register(database)
    enqueue(client, 3)
    faults = ledger.Faults(slow=1.0, slow_seconds=20.0)
    async with ledger.LedgerServer(ledger_db.dsn(), faults=faults) as server:
        config = server.adapter_config(read_timeout=60, total_timeout=60)
        with daemons(tmp_path, database.dsn("worker"), config) as group:
            left = group.start("--drain", "300ms", "--http", "127.0.0.1:0")
            await until(lambda: len(server.calls) == 3)
            left.signal(signal.SIGTERM)
            assert await left.ended() == 13
            assert client.stats().leased == 3
            server.faults = ledger.Faults()
            enqueue(client, 1, prefix="n")
            server.faults = faults
            twice = group.start("--drain", "60s")
            await until(lambda: len(server.calls) == 4)
            twice.signal(signal.SIGTERM)
            await until(lambda: any(line["event"] == "draining" for line in twice.lines()))
            twice.signal(signal.SIGTERM)
            assert await twice.ended(5) == 130
            stranger = group.start(TREX_DSN=database.dsn("other"))
            assert await stranger.ended() == 3
            nobody = group.start(TREX_INSTANCE="")
            assert await nobody.ended() == 2
            longer = group.start("--lease", "20h")
            assert await longer.ended() == 2
            nothing = group.start("--correlation", "nobody", command="process")
            assert await nothing.ended() == 4
            shown = [daemon.lines() for daemon in (left, twice)]
    assert shown[0][-1]["exit_code"] == 13
    assert shown[1][-1]["exit_code"] == 130


@pytest.mark.criterion("ac-0047")
@pytest.mark.case("O2")
async def test_a_killed_backfill_is_run_again(new_db, ledger_db, tmp_path):
    database = new_db()
    client = register(database, lease_default=timedelta(seconds=1), **QUICK)
    enqueue(client, 300)
    faults = ledger.Faults(slow=1.0, slow_seconds=0.05)
    async with ledger.LedgerServer(ledger_db.dsn(), faults=faults) as server:
        with daemons(tmp_path, database.dsn("worker"), server.adapter_config()) as group:
            first = group.start("-c", "8", "--json", command="backfill")
            await until(lambda: len(server.calls) > 30)
            first.process.kill()
            await first.ended()
            # Leases of the killed run end after a second; the next runs take the rows over.
            async with asyncio.timeout(60):
                while not finished(database)():
                    pair = [group.start("-c", "8", "--json", command="backfill") for _ in "12"]
                    for run in pair:
                        assert await run.ended(60) in {0, 12}
        found = assert_one_effect_each(database, server, 300)
    assert found.effects == 300


@pytest.mark.case("B5")
async def test_a_namesake_cannot_finish_what_it_did_not_claim(new_db):
    database = new_db()
    client = register(database)
    enqueue(client, 3)
    worker = PostgresClient(database.connect("worker"), "inst")
    old = worker.claim("same-name", 3)
    database.clock.advance(60)
    namesake = PostgresClient(database.connect("worker"), "inst")
    new = namesake.claim("same-name", 3)
    assert [claim.fence for claim in new] > [claim.fence for claim in old]
    for claim in old:
        assert worker.complete(claim.message_id, claim.fence, on_lost="report").status == (
            "claim_lost"
        )
    assert books(database)["delivered"] == 0
