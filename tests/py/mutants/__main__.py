"""Run all mutants and write docs/proof/mutants.md: `python -m tests.py.mutants`.

With names: run those only, with every kill, and print what finds them.
"""

from __future__ import annotations

import sys
import time

from tests.py.mutants.kills import KILLS
from tests.py.mutants.mutants import MUTANTS
from tests.py.mutants.run import REPORT, PatchError, build, find, kill
from tests.support.databases import server_specs, start_server

HEAD = """# Mutants

Faults put into the SQL on purpose, one at a time, each in a database of its own, and the test that
found each one. Every test passes on the true schema first. Written by `python -m tests.py.mutants`;
continuous integration runs all of them and fails when one lives, when its patch no longer applies,
or when it meets an SQLSTATE that its entry in tests/py/mutants/mutants.py doesn't name.

| mutant | found by | how |
|---|---|---|
"""


def main(names: list[str]) -> None:
    spec = next(spec for spec in server_specs() if spec.binaries is not None)
    assert spec.binaries is not None
    server = start_server(spec.binaries)
    lines, alive = [], []
    started = time.monotonic()
    try:
        template = server.create_database()
        server.load_schema(template.dbname)
        for mutant in MUTANTS:
            if names and mutant.name not in names:
                continue
            if names:
                for kill_name in KILLS:
                    database = build(server, template.dbname, mutant)
                    try:
                        said: object = find(database, kill_name, mutant.codes)
                    except PatchError as error:
                        said = error
                    print(mutant.name, "|", kill_name, "|", said)
                    database.close()
                continue
            try:
                death = kill(server, template.dbname, mutant)
            except PatchError as error:
                print(f"DOESN'T APPLY: {error}")
                alive.append(mutant.name)
                continue
            if death is None:
                alive.append(mutant.name)
                print(f"ALIVE: {mutant.name}")
                continue
            how = death.how.replace("|", "\\|")
            how = how if len(how) <= 100 else how[:97] + "..."
            lines.append(f"| {mutant.name} | `{death.kill}` | {how} |")
            print(lines[-1])
    finally:
        if server.embedded is not None:
            server.embedded.close()
    print(f"{len(lines)} found, {len(alive)} alive, {time.monotonic() - started:.0f} s")
    if names or alive:
        sys.exit(bool(alive))
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
