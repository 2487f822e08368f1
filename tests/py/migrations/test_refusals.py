"""What a migrator refuses, by name, and that a refusal changes nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.py.migrations.conftest import MIGRATOR
from tests.py.migrations.test_paths import by_psql, by_python
from trex_client import migrate as m

pytestmark = pytest.mark.criterion("ac-0029", "ac-0037")

NOTHING = "select 1;"


def refused(error, tree, database=None):
    with pytest.raises(error) as caught:
        m.migrate(database.dsn(MIGRATOR) if database else "dbname=nobody", root=tree.root)
    return caught.value


def refused_by_psql(database, tree, tools, name):
    done = tools.psql(database, role=MIGRATOR, file=tree.root / "replay.psql")
    assert done.returncode == 3
    assert name in done.stderr


@pytest.mark.case("N1")
def test_a_duplicate_number_is_refused_naming_both(tree):
    first = tree.last
    second = tree.add("other", NOTHING, number=int(first[:4]))
    assert set(refused(m.DuplicateMigration, tree).files) == {first, second}


@pytest.mark.case("N1")
def test_a_recorded_number_with_another_name_is_refused(ready_db, tree, tools, tmp_path):
    branch = tree.copy(tmp_path / "branch")
    theirs = branch.add("theirs", NOTHING)
    by_python(ready_db, tools, branch.root)
    ours = tree.add("ours", NOTHING)
    m.refresh(root=tree.root)
    before = tools.dump(ready_db)
    assert set(refused(m.DuplicateMigration, tree, ready_db).files) == {ours, theirs}
    refused_by_psql(ready_db, tree, tools, theirs)
    assert tools.dump(ready_db) == before


@pytest.mark.case("N1")
def test_a_gap_among_the_files_is_refused(tree):
    name = tree.add("later", NOTHING, number=int(tree.last[:4]) + 2)
    assert refused(m.MigrationGap, tree).files == (name,)


@pytest.mark.case("N1")
def test_a_removed_file_is_refused(tree):
    removed = tree.last
    tree.add("later", NOTHING)
    tree.path(removed).unlink()
    assert refused(m.MigrationGap, tree).files == (tree.last,)


@pytest.mark.case("N1")
def test_a_file_below_the_last_recorded_one_is_refused(ready_db, tree, tools):
    skipped = tree.add("skipped", NOTHING)
    tree.add("later", NOTHING)
    m.refresh(root=tree.root)
    by_python(ready_db, tools, tree.root)
    conn = ready_db.connect()
    conn.execute("delete from trex.schema_migration where name = %s", (skipped,))
    assert refused(m.MigrationGap, tree, ready_db).files == (skipped,)
    refused_by_psql(ready_db, tree, tools, skipped)


@pytest.mark.case("N10")
def test_an_edited_file_is_refused(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    name = tree.last
    with tree.path(name).open("a") as file:
        file.write(" ")
    m.refresh(root=tree.root)
    assert refused(m.EditedMigration, tree, ready_db).files == (name,)
    refused_by_psql(ready_db, tree, tools, name)
    assert m.check(ready_db.dsn(MIGRATOR), root=tree.root) != ()


def test_a_released_file_is_frozen_before_any_connection(tree):
    sums = tree.root / "migrations" / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("# unreleased\n", "") + "# unreleased\n")
    assert m.check(root=tree.root) == ()
    name = tree.last
    with tree.path(name).open("a") as file:
        file.write(" ")
    assert refused(m.EditedMigration, tree).files == (name,)
    with pytest.raises(m.EditedMigration):
        m.refresh(root=tree.root)


def test_an_unknown_newer_schema_is_refused(ready_db, tree, tools, tmp_path):
    newer = tree.copy(tmp_path / "newer")
    name = newer.add("newer", NOTHING)
    by_python(ready_db, tools, newer.root)
    before = tools.dump(ready_db)
    assert refused(m.UnknownSchema, tree, ready_db).files == (name,)
    refused_by_psql(ready_db, tree, tools, name)
    with ready_db.connect() as conn, pytest.raises(m.UnknownSchema):
        m.require_known_schema(conn, root=tree.root)
    assert tools.dump(ready_db) == before


@pytest.mark.case("N2")
def test_a_program_refuses_a_partial_version(ready_db, tree, tools, tmp_path):
    by_python(ready_db, tools, tree.root)
    name = tree.add("later", NOTHING)
    with ready_db.connect() as conn, pytest.raises(m.SchemaOutdated) as caught:
        m.require_known_schema(conn, root=tree.root)
    assert caught.value.files == (name,)


def test_a_database_without_schema_is_refused_by_programs(empty_db):
    with empty_db.connect() as conn, pytest.raises(m.SchemaOutdated):
        m.require_known_schema(conn)


@pytest.mark.parametrize("name", ["1.kernel", "0002.Upper", "0002-dash", "0002."])
def test_a_malformed_name_is_refused(tree, name):
    tree.path(name).write_text("select 1;")
    assert refused(m.BadMigrationFile, tree).files == (name,)


def test_a_wrong_depends_line_is_refused(tree):
    name = tree.add("later", NOTHING)
    text = tree.path(name).read_text()
    for depends in ("-- depends:", "-- depends: 0099.nobody"):
        tree.path(name).write_text(text.replace(text.splitlines()[0], depends))
        assert refused(m.BadMigrationFile, tree).files == (name,)


def test_functions_psql_holds_only_includes_of_existing_files(tree):
    order = tree.root / "functions.psql"
    for line in (r"\ir functions/internal/nobody.sql", "select 1;", r"\ir ../../etc/passwd"):
        kept = order.read_text()
        order.write_text(f"{kept}{line}\n")
        refused(m.BadMigrationFile, tree)
        order.write_text(kept)


def test_a_file_that_does_not_record_itself_is_refused(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    name = tree.add("silent", NOTHING)
    depends = tree.path(name).read_text().splitlines()[0]
    tree.path(name).write_text(
        f"{depends}\nset local role trex_owner;\ncreate table trex.left_over ();\n"
    )
    m.refresh(root=tree.root)
    assert refused(m.BadMigrationFile, tree, ready_db).files == (name,)
    assert tools.psql(ready_db, role=MIGRATOR, file=tree.root / "replay.psql").returncode == 3
    row = ready_db.connect().execute("select to_regclass('trex.left_over')").fetchone()
    assert row == (None,)


@pytest.mark.case("N2")
def test_a_migration_that_fails_half_way_leaves_nothing_and_can_go_on(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    before = tools.dump(ready_db)
    good = tree.add("good", "create table trex.good ();")
    bad = tree.add("bad", "create table trex.half ();\nselect 1 / 0;")
    m.refresh(root=tree.root)

    # psql is all or nothing; the client keeps what was committed before.
    assert tools.psql(ready_db, role=MIGRATOR, file=tree.root / "replay.psql").returncode == 3
    assert tools.dump(ready_db) == before
    failure = refused(m.MigrationFailed, tree, ready_db)
    assert failure.files == (bad,)
    assert failure.code == "22012"
    conn = ready_db.connect()
    assert conn.execute("select to_regclass('trex.half')").fetchone() == (None,)
    state = m.schema_state(conn, root=tree.root)
    assert (good in state.applied, state.pending) == (True, (bad,))
    with pytest.raises(m.SchemaOutdated):
        m.require_known_schema(conn, root=tree.root)

    tree.path(bad).write_text(tree.path(bad).read_text().replace("1 / 0", "1 / 1"))
    m.refresh(root=tree.root)
    assert m.migrate(ready_db.dsn(MIGRATOR), root=tree.root).applied == (bad,)
    m.require_known_schema(conn, root=tree.root)


def test_a_failing_function_leaves_all_functions_as_they_were(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    before = tools.dump(ready_db)
    target = tree.root / "functions" / "operator" / "schema_state.sql"
    digests = tree.root / "functions" / "internal" / "_function_digests.sql"
    digests.write_text(digests.read_text().replace("parallel safe", "parallel unsafe"))
    target.write_text(target.read_text() + "\n\nselect nonsense from;\n")
    failure = refused(m.MigrationFailed, tree, ready_db)
    assert failure.files == ("functions/operator/schema_state.sql",)
    assert failure.line == len(target.read_text().splitlines())
    assert tools.dump(ready_db) == before


@pytest.mark.case("N5")
def test_a_lock_on_a_table_fails_fast_and_blocks_nobody_for_ever(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    name = tree.add("later", "alter table trex.quarantine add column later int;")
    m.refresh(root=tree.root)
    reader = ready_db.connect(autocommit=False)
    reader.execute("select count(*) from trex.quarantine")
    errors = []

    def run():
        try:
            m.migrate(ready_db.dsn(MIGRATOR), root=tree.root)
        except m.MigrationError as error:
            errors.append(error)

    migrator = threading.Thread(target=run)
    migrator.start()
    watch = ready_db.connect()
    while migrator.is_alive():
        waiting = watch.execute(
            "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock'"
            " and database = (select oid from pg_database where datname = current_database())"
        ).fetchone()
        if waiting != (0,):
            break
    assert migrator.is_alive(), "the migration never waited for the reader"
    # The reader stays open: a writer queued behind the ALTER goes on when that gives up.
    watch.execute(
        "insert into trex.quarantine (source, source_key, imported_at)"
        " values ('n5', '1', clock_timestamp())"
    )
    migrator.join()
    assert [type(e) for e in errors] == [m.MigrationLocked]
    assert errors[0].files == (name,)
    assert m.plan(ready_db.dsn(MIGRATOR), root=tree.root) == (name,)
    reader.rollback()
    assert m.migrate(ready_db.dsn(MIGRATOR), root=tree.root).applied == (name,)


@pytest.mark.case("F1")
def test_the_wait_for_another_migrator_is_bounded(ready_db, tree, tools):
    other = ready_db.connect(autocommit=False)
    other.execute("select pg_advisory_xact_lock(%s::int, %s::int)", m.LOCK_KEYS)
    with pytest.raises(m.MigrationLocked):
        m.migrate(ready_db.dsn(MIGRATOR), root=tree.root, lock_wait=0.1)
    done = tools.psql(ready_db, role=MIGRATOR, file=tree.root / "replay.psql", lock_wait="100ms")
    assert done.returncode == 3
    other.rollback()
    by_psql(ready_db, tools, tree.root)


@pytest.mark.parametrize("wait", [0, -1, float("nan"), float("inf"), 86_401])
def test_the_wait_must_be_finite(wait):
    with pytest.raises(ValueError):
        m.migrate("dbname=nobody", lock_wait=wait)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=/nowhere dbname=x password=s3cret",
        "postgresql://u:s3cret@[broken/x",
        "host=/nowhere password='s3cret",
        "s3cret",
    ],
)
def test_errors_never_show_the_dsn(dsn):
    with pytest.raises(m.MigrationUnreachable) as caught:
        m.migrate(dsn)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_errors_never_show_data(ready_db, tree, tools):
    by_python(ready_db, tools, tree.root)
    conn = ready_db.connect()
    conn.execute(
        "insert into trex.quarantine (source, source_key, account, imported_at)"
        " values ('s', 'k', 'c4nary', clock_timestamp())"
    )
    tree.add("check", "alter table trex.quarantine add check (account <> 'c4nary');")
    m.refresh(root=tree.root)
    failure = refused(m.MigrationFailed, tree, ready_db)
    assert failure.code == "23514"
    assert "c4nary" not in str(failure)
    assert failure.__suppress_context__
    conn.execute("select 1")


@pytest.mark.case("F1")
def test_a_lost_connection_leaves_nothing_and_can_be_repeated(ready_db, tree):
    name = tree.add("slow", "create table trex.half ();\nselect pg_sleep(60);")
    watch = ready_db.connect()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(m.migrate, ready_db.dsn(MIGRATOR), root=tree.root)
        killed = None
        while killed is None and not run.done():
            killed = watch.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and wait_event = 'PgSleep'"
            ).fetchone()
        with pytest.raises(m.MigrationUnreachable):
            run.result()
    assert m.plan(ready_db.dsn(MIGRATOR), root=tree.root) == (name,)
    tree.path(name).write_text(tree.path(name).read_text().replace("60", "0"))
    assert m.migrate(ready_db.dsn(MIGRATOR), root=tree.root).applied == (name,)
