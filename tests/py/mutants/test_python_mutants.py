"""Small faults in the Python core are found by its tests; the mutator can tell when they aren't.

`TREX_PYTHON_MUTANTS` is how many are drawn, `TREX_PYTHON_SEED` from which seed. They are of the
worker's decisions; with `TREX_PYTHON_REPORT=1` of the whole core, all its tests judge them, those
that need a server too, and docs/proof/python-mutants.md is written.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
import time

import pytest

from tests.support.counts import emit, scale
from tests.support.criteria import ROOT
from tools.mutate import Changer, functions, mutants

SAMPLE = scale("PYTHON_MUTANTS", 20)
SEED = scale("PYTHON_SEED", 20300101)
FULL = scale("PYTHON_REPORT", 0)
HERE = ["--only", "worker/delivery.py", "--tests", "tests/py/worker/test_decisions.py"]


def mutate(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutate", *arguments], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout[-20_000:]


@pytest.mark.criterion("ac-0064")
@pytest.mark.timeout(600 + 30 * SAMPLE)
def test_faults_in_the_core_are_found() -> None:
    started = time.monotonic()
    page = str(ROOT / "docs" / "proof" / "python-mutants.md")
    chosen = ["--server", "--report", page] if FULL else HERE
    code, said = mutate("--sample", str(SAMPLE), "--seed", str(SEED), *chosen)
    counts = re.search(r"^mutants (\{.*\}), score", said, re.MULTILINE)
    assert code == 0, said
    assert counts is not None, said
    seen: dict[str, int] = ast.literal_eval(counts[1])
    assert sum(seen.values()) == SAMPLE
    emit("python mutants", {"mutants": SAMPLE, **seen}, seconds=time.monotonic() - started,
         seed=SEED)  # fmt: skip


def test_a_core_that_nobody_tests_is_found() -> None:
    code, said = mutate(
        "--only", "memory.py:_backoff", "--sample", "6", "--tests",
        "tests/py/worker/test_decisions.py",
    )  # fmt: skip
    assert code == 1, said
    assert "not called by any test" in said


def test_every_change_is_another_function() -> None:
    known = functions("memory.py")
    place = next(place for place in known if place.name == "_settle")
    node = known[place][0]
    texts = {ast.unparse(node)}
    found = mutants({place: known[place]})
    for mutant in found:
        texts.add(ast.unparse(Changer(mutant.number).visit(copy.deepcopy(node))))
    assert len(found) > 40
    assert len(texts) == len(found) + 1


def test_a_planted_change_is_what_runs() -> None:
    code = (
        "import trex_client.memory as m\n"
        "from tools.mutate import *\n"
        "known = functions('memory.py')\n"
        "[one] = [x for x in mutants(known) if x.place.name == '_state'"
        " and x.change == 'Gt -> GtE' and 'lease_until' in line_of(x)]\n"
        "now = m.Clock()()\n"
        "before = m._state(None, now, None, now)\n"
        "plant(one, known)\n"
        "print(before, m._state(None, now, None, now))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert done.stdout.split() == ["lease_ended", "leased"]
