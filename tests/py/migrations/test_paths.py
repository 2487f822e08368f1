"""`trex migrate`, psql and plain yoyo end in the same schema, and go on from each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.py.migrations.conftest import MIGRATOR
from trex_client import migrate as m

pytestmark = pytest.mark.criterion("ac-0029", "ac-0037")


def by_python(database, tools, root):
    m.migrate(database.dsn(MIGRATOR), root=root)


def by_psql(database, tools, root):
    done = tools.psql(database, role=MIGRATOR, file=root / "replay.psql")
    assert done.returncode == 0, done.stderr


def by_yoyo(database, tools, root):
    database.connect().execute("create schema if not exists trex_yoyo authorization trex_owner")
    tools.yoyo(database, MIGRATOR, root)


PATHS = {"python": (by_python,), "psql": (by_psql,), "yoyo": (by_yoyo, by_python)}
DATA = """
insert into trex.quarantine (source, source_key, payload, imported_at)
select 'older', n::text, jsonb_build_object('n', n), clock_timestamp()
from generate_series(1, 100) as n
"""
LATER = """
alter table trex.quarantine add column later text not null default 'x';
create index later_idx on trex.quarantine (later);
"""


@pytest.mark.parametrize("path", ["psql", "yoyo"])
@pytest.mark.case("N10")
def test_all_paths_give_the_same_dump_twice(ready_db, second_db, tools, tree, path):
    for _ in range(2):
        by_python(ready_db, tools, tree.root)
        for step in PATHS[path]:
            step(second_db, tools, tree.root)
        assert tools.dump(second_db) == tools.dump(ready_db)
    assert "CREATE TABLE trex.message" in tools.dump(ready_db)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.case("N10")
def test_an_upgrade_with_data_equals_a_fresh_install(
    ready_db, second_db, tools, tree, tmp_path, path
):
    newer = tree.copy(tmp_path / "newer")
    newer.add("later", LATER)
    m.refresh(root=newer.root)
    for step in PATHS[path]:
        step(ready_db, tools, tree.root)
    ready_db.connect().execute(DATA)
    for step in PATHS[path]:
        step(ready_db, tools, newer.root)
    by_python(second_db, tools, newer.root)
    assert tools.dump(ready_db) == tools.dump(second_db)
    row = ready_db.connect().execute("select count(*), min(later) from trex.quarantine").fetchone()
    assert row == (100, "x")


def test_each_path_sees_what_another_applied(ready_db, tools, tree, tmp_path):
    by_psql(ready_db, tools, tree.root)
    dump = tools.dump(ready_db)
    by_yoyo(ready_db, tools, tree.root)
    report = m.migrate(ready_db.dsn(MIGRATOR), root=tree.root)
    assert (report.applied, report.marked, report.pending) == ((), (), ())
    assert tools.dump(ready_db) == dump


def test_lost_yoyo_marks_come_back(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    ready_db.connect().execute("delete from trex_yoyo._yoyo_migration")
    report = m.migrate(ready_db.dsn(MIGRATOR), root=tree.root)
    assert report.applied == ()
    assert report.marked == tuple(f.name for f in m.load_release(tree.root).migrations)
    by_yoyo(ready_db, tools, tree.root)


def test_the_row_of_a_migration_holds_its_name_and_checksum(ready_db, tree, tools):
    by_yoyo(ready_db, tools, tree.root)
    conn = ready_db.connect()
    rows = "select name, checksum from trex.schema_migration order by name"
    assert {checksum for _, checksum in conn.execute(rows)} == {None}
    by_psql(ready_db, tools, tree.root)
    expected = [(f.name, f.checksum) for f in m.load_release(tree.root).migrations]
    assert conn.execute(rows).fetchall() == expected


def test_after_plain_yoyo_a_replay_is_needed(ready_db, tree, tools, tmp_path):
    by_yoyo(ready_db, tools, tree.root)
    conn = ready_db.connect()
    assert m.schema_state(conn, root=tree.root).replay_needed
    with pytest.raises(m.SchemaOutdated):
        m.require_known_schema(conn, root=tree.root)
    assert m.check(ready_db.dsn(MIGRATOR), root=tree.root) != ()

    by_python(ready_db, tools, tree.root)
    assert not m.schema_state(conn, root=tree.root).replay_needed
    m.require_known_schema(conn, root=tree.root)
    assert m.check(ready_db.dsn(MIGRATOR), root=tree.root) == ()

    tree.add("later", LATER)
    m.refresh(root=tree.root)
    by_yoyo(ready_db, tools, tree.root)
    assert m.schema_state(conn, root=tree.root).replay_needed


def test_changed_missing_and_added_functions_are_named(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    conn = ready_db.connect()
    conn.execute("set role trex_owner")
    conn.execute("grant execute on function trex._function_digests() to trex_reader")
    conn.execute("create function trex.added() returns int language sql return 1")
    conn.execute("create or replace function trex._record_function_release(p_release text)"
                 " returns void language sql as $$ select 1 $$")  # fmt: skip
    assert m.schema_state(conn, root=tree.root).drifted == (
        "trex._function_digests()",
        "trex._record_function_release(text)",
        "trex.added()",
    )
    conn.execute("drop function trex.added()")
    by_psql(ready_db, tools, tree.root)
    # A grant to somebody whom the file doesn't mention stays until it is revoked by name.
    assert m.schema_state(conn, root=tree.root).drifted == ()


@pytest.mark.case("F1")
def test_eight_migrators_at_one_barrier_all_succeed(ready_db, tree, tools):
    barrier = threading.Barrier(8)

    def run(number):
        barrier.wait()
        if number % 4 == 3:
            return by_psql(ready_db, tools, tree.root)
        return m.migrate(ready_db.dsn(MIGRATOR), root=tree.root).applied

    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(run, range(8)))
    names = [f.name for f in m.load_release(tree.root).migrations]
    conn = ready_db.connect()
    assert len([r for r in reports if r]) <= len(names)
    assert [r[0] for r in conn.execute("select name from trex.schema_migration order by name")] == (
        names
    )
    assert m.check(ready_db.dsn(MIGRATOR), root=tree.root) == ()
    assert conn.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone() == (
        0,
    )


def test_live_sessions_go_on_while_the_schema_is_upgraded(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    tree.add("later", LATER)
    m.refresh(root=tree.root)
    done = threading.Event()

    def work(number):
        conn = ready_db.connect()
        calls = 0
        while not done.is_set() or calls < 20:
            conn.execute("select trex.schema_state()")
            conn.execute(
                "insert into trex.quarantine (source, source_key) values (%s, %s)",
                (f"live {number}", str(calls)),
            )
            calls += 1
        return calls

    with ThreadPoolExecutor(6) as pool:
        workers = [pool.submit(work, number) for number in range(3)]
        migrators = [
            pool.submit(m.migrate, ready_db.dsn(MIGRATOR), root=tree.root) for _ in range(3)
        ]
        try:
            applied = [name for run in migrators for name in run.result().applied]
        finally:
            done.set()
        calls = sum(worker.result() for worker in workers)
    assert applied == [tree.last]
    conn = ready_db.connect()
    assert conn.execute("select count(*) from trex.quarantine").fetchone() == (calls,)


def test_dry_run_writes_nothing(ready_db, tree):
    report = m.migrate(ready_db.dsn(MIGRATOR), root=tree.root, dry_run=True)
    assert report.pending == tuple(f.name for f in m.load_release(tree.root).migrations)
    assert report.pending == m.plan(ready_db.dsn(MIGRATOR), root=tree.root)
    row = ready_db.connect().execute("select to_regnamespace('trex')").fetchone()
    assert row == (None,)


def test_printed_sql_makes_the_same_functions(ready_db, tree, tools, tmp_path):
    script = tmp_path / "all.sql"
    script.write_text(m.print_sql(root=tree.root))
    done = tools.psql(ready_db, "-v", "ON_ERROR_STOP=1", role=MIGRATOR, file=script)
    assert done.returncode == 0, done.stderr
    with ready_db.connect() as conn:
        state = m.schema_state(conn, root=tree.root)
    assert (state.pending, state.replay_needed, state.drifted) == ((), False, ())


def test_progress_tells_each_step(ready_db, tree):
    steps = []
    m.migrate(ready_db.dsn(MIGRATOR), root=tree.root, progress=lambda *step: steps.append(step))
    names = [*(f.name for f in m.load_release(tree.root).migrations), "functions"]
    assert steps == [(name, i, len(names)) for i, name in enumerate(names, start=1)]
