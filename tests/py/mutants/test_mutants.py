"""Every fault of the list is found, by a test that passes on the true schema.

`python -m tests.py.mutants` writes it to docs/proof/mutants.md.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import SOME_VERSIONS
from tests.py.mutants.kills import KILLS, Rig
from tests.py.mutants.mutants import MUTANTS
from tests.py.mutants.run import REPORT, PatchError, find, kill, patched
from tests.support.counts import emit

if TYPE_CHECKING:
    from tests.support.databases import Database, Server

pytestmark = pytest.mark.criterion("ac-0064")


def test_the_true_schema_passes(pg_db: Database) -> None:
    admin = pg_db.connect()
    for function in KILLS.values():
        function(Rig(pg_db, admin))


@pytest.mark.parametrize("version", SOME_VERSIONS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(request: pytest.FixtureRequest, mutant: Any, version: int) -> None:
    server: Server = request.getfixturevalue(f"server_{version}")
    template = request.getfixturevalue(f"template_{version}").template_dbname
    started = time.monotonic()
    death = kill(server, template, mutant)
    assert death, f"{mutant.name} lives: {mutant.kills} found nothing"
    seconds = time.monotonic() - started
    emit(
        "mutants", {"mutants": 1}, seconds=seconds, mutant=mutant.name, found_by=death.kill,
        version=version,
    )  # fmt: skip


def test_every_kill_is_needed() -> None:
    assert {name for mutant in MUTANTS for name in mutant.kills} == set(KILLS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_patches_apply() -> None:
    for mutant in MUTANTS:
        assert patched(mutant)


def test_the_report_names_every_mutant() -> None:
    text = REPORT.read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert f"| {mutant.name} | `{mutant.kills[0]}`" in text, mutant.name


def test_no_mutation_is_no_death(pg_db: Database) -> None:
    assert find(pg_db, "late_complete") is None


def test_an_sqlstate_counts_only_where_it_is_named(pg_db: Database) -> None:
    pg_db.connect().execute("alter table trex.delivery add check (lease_until is null)")
    with pytest.raises(PatchError, match=r"late_complete: SQLSTATE 23514: .* no SQLSTATE"):
        find(pg_db, "late_complete")
    with pytest.raises(PatchError, match=r"race_of_two_ends: SQLSTATE 23514: .*TX902"):
        find(pg_db, "race_of_two_ends", ("TX902",))
    death = find(pg_db, "late_complete", ("23514",))
    assert death is not None
    assert death.how.startswith("SQLSTATE 23514: ")
