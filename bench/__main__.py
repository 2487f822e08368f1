"""`python -m bench`: trex beside the floor, interleaved in one run; medians of the repetitions."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from rich.console import Console

from bench import floor, load, report
from bench.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("drain", "enqueue", "latency", "held")
MODES = ("floor", "two", "exchange")


@dataclass(frozen=True)
class Scale:
    """How long and how much."""

    reps: int
    secs: float
    rows: int
    latency_secs: float
    held_secs: float
    batches: tuple[int, ...] = (1, 10, 100)
    workers: tuple[int, ...] = (1, 4)


FULL = Scale(reps=3, secs=2, rows=100_000, latency_secs=30, held_secs=60)
QUICK = Scale(reps=1, secs=0.5, rows=20_000, latency_secs=3, held_secs=6)
# Rows a second that no floor here reaches: it must not run out of rows before its time is over.
FLOOR_GUESS = {1: 3_000, 10: 20_000, 100: 60_000}


class Bench:
    """The measurements of one run."""

    def __init__(self, place: Place, scale: Scale, note: Callable[[str], None]) -> None:
        self.place = place
        self.scale = scale
        self._note = note

    def _trex_loaded(self, name: str) -> None:
        self.place.with_trex(name)
        queue = load.Trex(self.place.dsn(name, "bench_app"))
        for _ in range(self.scale.rows // 1000):
            queue.enqueue([load.payload()] * 1000)
        queue.conn.close()

    def _floor_loaded(self, name: str) -> None:
        floor.load(self.place.dsn(name), json.dumps(load.payload()), self.scale.rows)

    def _trex(self, name: str, role: str = "bench_worker", mode: str = "two") -> load.Open:
        dsn = self.place.dsn(name, role)
        return lambda: load.Trex(dsn, mode)

    def drain(self) -> list[dict[str, Any]]:
        """Claim and complete preloaded messages: the floor, two calls, one exchange."""
        floors = self.place.template("floor_t", self._floor_loaded)
        trexes = self.place.template("trex_t", self._trex_loaded)
        cells: list[dict[str, Any]] = [
            {"batch": batch, "workers": workers, **{mode: [] for mode in MODES}}
            for batch in self.scale.batches
            for workers in self.scale.workers
        ]
        for rep in range(self.scale.reps):
            for cell in cells:
                batch, workers = cell["batch"], cell["workers"]
                for mode in MODES:
                    self._note(
                        f"drain {rep + 1}/{self.scale.reps}: batch {batch}, {workers} w, {mode}"
                    )
                    template = floors if mode == "floor" else trexes
                    name = self.place.fresh("measured", template)
                    cell[mode].append(self._drain_once(name, mode, batch, workers))
        return cells

    def _drain_once(self, name: str, mode: str, batch: int, workers: int) -> dict[str, float]:
        before = self.place.cpu()
        if mode == "floor":
            most = int(self.scale.rows * 0.9)
            rows = min(most, int(self.scale.secs * FLOOR_GUESS[batch]))
            rate = floor.drain(self.place, name, batch, workers, rows)
            count = rows // batch // workers * batch * workers
        else:
            job = (
                load.consume,
                {
                    "opened": self._trex(name, mode=mode),
                    "limit": batch,
                    "secs": self.scale.secs,
                    "until_empty": True,
                    "timed": False,
                },
            )
            windows = load.together([job] * workers)
            rate, count = load.rate(windows), sum(window.count for window in windows)
        return {"rate": rate, "cpu_us": 1e6 * (self.place.cpu() - before) / max(1, count)}

    def enqueue(self) -> list[dict[str, Any]]:
        """One message a transaction with 1 and 4 connections, and a thousand with one."""
        body = json.dumps(load.payload())
        shapes = [(1, 1), (1, 4), (1000, 1)]
        cells: list[dict[str, Any]] = [
            {"size": size, "clients": clients, "floor": [], "trex": []} for size, clients in shapes
        ]
        for rep in range(self.scale.reps):
            for cell in cells:
                size, clients = cell["size"], cell["clients"]
                self._note(f"enqueue {rep + 1}/{self.scale.reps}: {size} a call, {clients} conn")
                name = self.place.fresh("measured")
                floor.load(self.place.dsn(name), body, 0)
                secs = self.scale.secs
                cell["floor"].append(
                    {"rate": floor.enqueue(self.place, name, body, size, clients, secs)}
                )
                name = self.place.fresh("measured", self.place.template("empty_t", self._empty))
                job = (
                    load.produce,
                    {"opened": self._trex(name, "bench_app"), "size": size, "secs": secs},
                )
                cell["trex"].append({"rate": load.rate(load.together([job] * clients))})
        return cells

    def _empty(self, name: str) -> None:
        self.place.with_trex(name)

    def latency(self) -> dict[str, Any]:
        """One idle worker, single messages: milliseconds from enqueue's start to the claim.

        An idle machine is slow to wake up, and for everybody: the floor's table is the measure.
        """
        waits: dict[str, list[float]] = {"trex": [], "floor": []}
        for rep in range(self.scale.reps):
            for mode in waits:
                self._note(f"latency {rep + 1}/{self.scale.reps}: {mode}")
                waits[mode] += self._latency_once(mode, self.scale.latency_secs / self.scale.reps)
        return {
            mode: {"count": len(ms), "p50_ms": _at(ms, 0.5), "p99_ms": _at(ms, 0.99)}
            for mode, ms in ((mode, sorted(ms)) for mode, ms in waits.items())
        }

    def _latency_once(self, mode: str, secs: float) -> list[float]:
        worker: dict[str, Any] = {"limit": 1, "secs": secs + 1, "until_empty": False, "timed": True}
        worker["opened"], producing = self._pair("two" if mode == "trex" else mode)
        producer = {"opened": producing, "rate": 0, "secs": secs}
        took = load.together([(load.consume, worker), (load.pace, producer)])[0]
        return [1e3 * (at - since) for at, since in took.events[5:]]

    def _pair(self, mode: str) -> tuple[load.Open, load.Open]:
        """What opens a worker and a producer of a fresh database."""
        name = self.place.fresh("measured")
        if mode != "floor":
            self.place.with_trex(name)
            return self._trex(name, mode=mode), self._trex(name, "bench_app")
        dsn = self.place.dsn(name)
        floor.load(dsn, "{}", 0)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(load.Least.wake)

        def least() -> load.Queue:
            return load.Least(dsn)

        return least, least

    def held(self, rate: int = 2000, workers: int = 2, batch: int = 10) -> dict[str, Any]:
        """A steady load while an old transaction keeps vacuum from removing anything."""
        made: dict[str, Any] = {"rate": rate, "workers": workers, "batch": batch}
        for mode in ("exchange", "two", "floor"):
            self._note(f"held snapshot: {mode}")
            made[mode] = self._held_once(mode, rate, workers, batch)
        return made

    def _held_once(self, mode: str, rate: int, workers: int, batch: int) -> dict[str, Any]:
        secs = self.scale.held_secs
        working, producing = self._pair(mode)
        worker = {
            "opened": working,
            "limit": batch,
            "secs": secs,
            "until_empty": False,
            "timed": True,
        }
        producer = {"opened": producing, "rate": rate, "secs": secs}
        with psycopg.connect(self.place.dsn("measured")) as old:
            old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            old.execute("select count(*) from pg_class")
            jobs = [(load.consume, worker)] * workers
            *took, source = load.together([*jobs, (load.pace, producer)])
        events = [(at - source.start, at - since) for window in took for at, since in window.events]
        last = secs - min(10.0, secs / 2)
        late = sorted(1e3 * wait for at, wait in events if last <= at < secs)
        return {
            "produced": source.count / (source.end - source.start),
            "last": len(late) / (secs - last),
            "p50_ms": _at(late, 0.5),
            "p99_ms": _at(late, 0.99),
            "left": source.count - len(events),
            "per_second": [
                sum(1 for at, _ in events if second <= at < second + 1)
                for second in range(int(secs))
            ],
        }


def _at(ordered: list[float], quantile: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else None


def main() -> int:
    """Parse the command line, measure, show."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; noisy")
    parser.add_argument("--json", action="store_true", help="all figures as JSON on stdout")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--postgresql", type=int, metavar="N", help="major version (newest)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the held snapshot")
    options = parser.parse_args()
    parts = options.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only: some of {','.join(PARTS)}")
    notes = Console(stderr=True)
    with Place(options.postgresql) as place, notes.status("") as status:

        def note(text: str) -> None:
            status.update(text)
            if not notes.is_terminal:
                print(text, file=sys.stderr, flush=True)

        bench = Bench(place, QUICK if options.quick else FULL, note)
        result: dict[str, Any] = {"machine": place.describe(), "quick": options.quick}
        for part in PARTS:
            if part in parts:
                result[part] = getattr(bench, part)()
    if options.plot and "held" in result:
        options.plot.write_text(report.svg(result["held"]), encoding="utf-8")
    if options.json:
        print(json.dumps(result))
    else:
        report.show(result, Console(width=None if sys.stdout.isatty() else 100))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
