"""`python -m bench.million`: a million events in the inbox, and a reconciliation of all of them.

    receive    events a second; the cost of a look-up of a known id at each tenth of the way
    reconcile  killed after a third, gone on with to its end: time, rows a second, memory

Numbers are printed. What is asserted: the look-up costs the same all the way, and the run that was
killed ends with the counts of one that wasn't.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from bench.place import INSTANCE, Place
from trex_client.model import Report
from trex_client.postgres import PostgresClient

RECEIVE = """
select count(*) from (
    select trex.receive(
        %s, 'stripe', 'acct_main', 'evt_' || n, 'invoice.paid', 'in_' || n,
        convert_to('{"id": "evt_' || n || '"}', 'UTF8'), jsonb_build_object('id', 'evt_' || n)
    )
    from generate_series(%s::integer, %s::integer) n
) s
"""
KNOWN = """
explain (analyze, buffers, format json)
select trex.receive(
    %s, 'stripe', 'acct_main', 'evt_' || %s::integer, 'invoice.paid', 'in', '{}', '{}'
)
"""


def receive(place: Place, name: str, count: int) -> dict[str, Any]:
    """Fill the inbox; between the tenths, look up ids that are known."""
    lookups = []
    seconds = 0.0
    with psycopg.connect(place.dsn(name, "bench_app"), autocommit=True) as conn:
        for tenth in range(10):
            start = time.monotonic()
            first = tenth * count // 10
            for batch in range(first, first + count // 10, 1000):
                conn.execute(RECEIVE, (INSTANCE, batch + 1, batch + 1000))
            seconds += time.monotonic() - start
            lookups.append(max(buffers(conn, (n * 7919) % (first + 1) + 1) for n in range(1, 6)))
    assert lookups[-1] <= lookups[0] + 8, lookups
    return {"events_per_second": round(count / seconds), "buffers_of_a_known_id": lookups}


def buffers(conn: psycopg.Connection[Any], number: int) -> int:
    """Pages that one repeated event touches, warm."""
    for _ in range(2):
        row = conn.execute(KNOWN, (INSTANCE, number)).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def handle(place: Place, name: str) -> int:
    """Complete all events but every thousandth, which is refused for good; return how many."""
    refused = 0
    with psycopg.connect(place.dsn(name, "bench_worker"), autocommit=True) as conn:
        client = PostgresClient(conn, INSTANCE)
        reports: list[Report] = []
        while True:
            claims = client.exchange(reports, "bench", 1000, box="inbox").claims
            if not claims:
                return refused
            reports = [
                Report(c.message_id, c.fence, "completed" if c.message_id % 1000 else "permanent")
                for c in claims
            ]
            refused += sum(report.result == "permanent" for report in reports)


class Run:
    """`trex reconcile run` as a process; `peak`: MiB that it and its backend had at most."""

    def __init__(self, dsn: str, *more: str) -> None:
        command = [sys.executable, "-c", "from trex_client.cli import main; main()"]
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [*command, "reconcile", "run", "--reason", "bench", *more],
            env={**os.environ, "TREX_DSN": dsn, "TREX_INSTANCE": INSTANCE, "TREX_ACTOR": "bench"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.peak = {"client": 0.0, "backend": 0.0}

    def watch(self, conn: psycopg.Connection[Any], until: int | None = None) -> None:
        """Wait for its end, or until it has looked at so many rows; then kill it."""
        query = (
            "select pid from pg_stat_activity where application_name = 'trex' and pid <> %s",
            (conn.info.backend_pid,),
        )
        while self.process.poll() is None:
            self._measure("client", self.process.pid)
            for (pid,) in conn.execute(*query).fetchall():
                self._measure("backend", pid)
            row = conn.execute(
                "select examined from trex.reconcile_run order by run_id desc limit 1"
            ).fetchone()
            if until is not None and row is not None and row[0] >= until:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
            time.sleep(0.05)
        self.seconds = time.monotonic() - self.start

    def _measure(self, what: str, pid: int) -> None:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        if found := re.search(r"RssAnon:\s+(\d+)", status):
            self.peak[what] = max(self.peak[what], round(int(found[1]) / 1024, 1))

    def report(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.read()))


def reconcile(place: Place, name: str, count: int, refused: int) -> dict[str, Any]:
    """A run that is killed after a third and gone on with; then one that isn't."""
    dsn = place.dsn(name)
    with psycopg.connect(dsn, autocommit=True, application_name="bench") as conn:
        killed = Run(dsn)
        killed.watch(conn, count // 3)
        assert killed.process.returncode == -signal.SIGKILL, "it was over before it was killed"
        row = conn.execute(
            "select run_id, state, examined from trex.reconcile_run order by run_id desc limit 1"
        ).fetchone()
        assert row is not None
        run_id, state, examined = row
        assert state == "running"
        rest = Run(dsn, "--run", str(run_id))
        rest.watch(conn)
        resumed = rest.report()
        whole = Run(dsn)
        whole.watch(conn)
        straight = whole.report()
    assert resumed["run_id"] == run_id
    for count_of in ("examined", "found"):
        assert resumed[count_of] == straight[count_of], (resumed, straight)
    assert (resumed["found"], resumed["fresh"], straight["fresh"]) == (refused, refused, 0)
    assert resumed["state"] == straight["state"] == "findings"
    return {
        "examined": straight["examined"],
        "found": straight["found"],
        "killed_after_rows": examined,
        "seconds_to_the_kill": round(killed.seconds, 1),
        "seconds_of_the_rest": round(rest.seconds, 1),
        "seconds_of_a_whole_run": round(whole.seconds, 1),
        "rows_per_second": round(straight["examined"] / whole.seconds),
        "peak_mib": whole.peak,
    }


def main() -> int:
    """Measure; print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50,000 events, for a first look")
    parser.add_argument("--pg", type=int, default=None, help="major version of PostgreSQL")
    asked = parser.parse_args()
    count = 50_000 if asked.quick else 1_000_000
    with Place(asked.pg) as place:
        name = place.fresh("million")
        place.with_trex(name)
        with psycopg.connect(place.dsn(name), autocommit=True) as conn:
            PostgresClient(conn, INSTANCE).bind("postgres", actor="bench", reason="measure")
        print(json.dumps({"receive": receive(place, name, count)}), flush=True)
        refused = handle(place, name)
        print(json.dumps({"reconcile": reconcile(place, name, count, refused)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
