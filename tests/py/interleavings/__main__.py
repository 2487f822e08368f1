"""Run schedules by hand: `python -m tests.py.interleavings NAME --schedule aabtb`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.py.interleavings.business import BUSINESS
from tests.py.interleavings.scenarios import SCENARIOS, random_scenario
from tests.support.databases import server_specs, start_server
from tests.support.interleavings import Explorer, Run, Scenario, ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios, or random-SEED; all if none is given")
    parser.add_argument("--schedule", help="only this one")
    parser.add_argument("--most", type=int, help="so many, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=1, help="for --most")
    parser.add_argument("--programs", type=int, default=0, help="so many random programs, too")
    parser.add_argument("--version", type=int, help="of PostgreSQL; all that are found by default")
    chosen = parser.parse_args(arguments)
    chosen_scenarios = [scenario(name) for name in chosen.names or [*SCENARIOS, *BUSINESS]]
    for spec in server_specs():
        if spec.binaries is None or chosen.version not in (None, spec.version):
            continue
        server = start_server(spec.binaries)
        try:
            template = server.create_database()
            server.load_schema(template.dbname)
            for made in chosen_scenarios:
                database = server.create_database(template.dbname)
                explorer = Explorer(database)
                if chosen.schedule:
                    print(explorer.replay(made, chosen.schedule).story())
                else:
                    explore(explorer, made.name, chosen.most, chosen.seed)
                database.close()
            database = server.create_database(template.dbname)
            explorer = Explorer(database)
            for number in range(chosen.programs):
                made = random_scenario(chosen.seed * 1_000_000 + number)
                explorer.explore(made, chosen.most or 10, chosen.seed)
                if number % 50 == 49:
                    print(f"\r{number + 1} programs, {explorer.runs} schedules", end="", flush=True)
            database.close()
        finally:
            if server.embedded is not None:
                server.embedded.close()


def scenario(name: str) -> Scenario:
    """The scenario of this name; `random-7` is made from its seed."""
    if name.startswith("random-"):
        return random_scenario(int(name.removeprefix("random-")))
    return (SCENARIOS | BUSINESS)[name]


def explore(explorer: Explorer, name: str, most: int | None, seed: int) -> None:
    """Explore one scenario and print its counters."""
    started = time.monotonic()

    def progress(run: Run) -> None:
        if run.explorer.runs % 200 == 0:
            print(f"\r{name}: {run.explorer.runs}", end="", flush=True)

    try:
        totals = explorer.explore(scenario(name), most, seed, progress)
    except ScheduleError as error:
        print(f"\r{error}", file=sys.stderr)
        totals = explorer.totals.get(name, Counter())
    seconds = time.monotonic() - started
    print(
        f"\rPostgreSQL {explorer.version} {name}: {totals['schedules']} schedules,"
        f" {totals['schedules'] / seconds:.0f}/s, {dict(totals)}"
    )


if __name__ == "__main__":
    main()
