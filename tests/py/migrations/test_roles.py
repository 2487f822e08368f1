"""After roles.sql a plain role does everything; what it lacks before that is named."""

from __future__ import annotations

import pytest
from psycopg import sql

from tests.conftest import VERSIONS
from tests.py.migrations.conftest import MIGRATOR, Tools, make_migrator
from trex_client import migrate as m

pytestmark = pytest.mark.criterion("ac-0029", "ac-0037")

ROLES = ("trex_adopter", "trex_app", "trex_operator", "trex_owner", "trex_reader", "trex_worker")


@pytest.fixture(params=VERSIONS)
def bare(request, private_server):
    """A server that never saw trex, a DBA without superuser who owns a database, and a login."""
    server = private_server(request.param)
    with server.admin() as conn:
        for name, rights in (("plain_dba", "createrole createdb"), (MIGRATOR, "")):
            server._create_login(conn, name, ())
            conn.execute(sql.SQL(f"alter role {name} nosuperuser {rights}"))
    database = server.create_database()
    with server.admin() as conn:
        conn.execute(
            sql.SQL("alter database {} owner to plain_dba").format(sql.Identifier(database.dbname))
        )
    return database


@pytest.mark.case("N2", "N3")
def test_each_missing_right_is_named_and_then_it_goes_on(bare, tree):
    with pytest.raises(m.MissingRight):
        m.migrate(bare.dsn(MIGRATOR), root=tree.root)
    m.apply_roles(bare.dsn("plain_dba"))
    with pytest.raises(m.MissingRight):
        m.migrate(bare.dsn(MIGRATOR), root=tree.root)
    m.apply_roles(bare.dsn("plain_dba"), MIGRATOR)
    dba = bare.connect("plain_dba")
    revoke = sql.SQL("revoke create on database {} from trex_owner")
    dba.execute(revoke.format(sql.Identifier(bare.dbname)))
    with pytest.raises(m.MissingRight):
        m.migrate(bare.dsn(MIGRATOR), root=tree.root)
    assert bare.connect().execute("select to_regnamespace('trex')").fetchone() == (None,)
    m.apply_roles(bare.dsn("plain_dba"), MIGRATOR)
    m.migrate(bare.dsn(MIGRATOR), root=tree.root)
    assert m.check(bare.dsn(MIGRATOR), root=tree.root) == ()


@pytest.mark.parametrize("bare", [VERSIONS[0]], indirect=True)
@pytest.mark.case("N3")
def test_psql_alone_and_a_dba_without_superuser_are_enough(bare, tree):
    tools = Tools(bare.server.embedded.bindir)
    root = tree.root
    for _ in range(2):
        done = tools.psql(
            bare, role="plain_dba", file=root / "roles.sql", migrator=MIGRATOR, database=bare.dbname
        )
        assert done.returncode == 0, done.stderr
        done = tools.psql(bare, role=MIGRATOR, file=root / "replay.psql")
        assert done.returncode == 0, done.stderr
    assert m.check(bare.dsn(MIGRATOR), root=tree.root) == ()


@pytest.mark.parametrize("bare", [VERSIONS[0]], indirect=True)
def test_a_role_of_that_name_that_can_log_in_is_refused(bare):
    bare.connect().execute("create role trex_app login")
    with pytest.raises(m.MigrationError) as caught:
        m.apply_roles(bare.dsn("plain_dba"))
    assert caught.value.files == ("roles.sql",)
    made = bare.connect().execute("select 1 from pg_roles where rolname = 'trex_owner'").fetchone()
    assert made is None


def test_roles_have_no_rights_of_their_own(ready_db):
    rows = ready_db.connect().execute(
        "select rolname from pg_roles where rolname = any(%s) and not (rolsuper or rolbypassrls"
        " or rolcreaterole or rolcreatedb or rolreplication or rolcanlogin) order by rolname",
        (list(ROLES),),
    )
    assert tuple(r[0] for r in rows) == ROLES


@pytest.mark.case("N3")
def test_everything_belongs_to_trex_owner_whoever_migrates(ready_db, new_db, pg_server):
    by_superuser = new_db(pg_server.version, migrated=False)
    make_migrator(by_superuser)
    for database, role in ((ready_db, MIGRATOR), (by_superuser, None)):
        m.migrate(database.dsn(role))
        rows = database.connect().execute(
            """
            select distinct o.owner::regrole::text
            from (
                select c.relowner, c.relnamespace from pg_class as c
                union all select p.proowner, p.pronamespace from pg_proc as p
                union all select t.typowner, t.typnamespace from pg_type as t
                union all select n.nspowner, n.oid from pg_namespace as n
            ) as o (owner, namespace)
            where o.namespace in (to_regnamespace('trex'), to_regnamespace('trex_yoyo'))
            """
        )
        assert rows.fetchall() == [("trex_owner",)]


def test_nobody_else_reads_the_books(ready_db):
    m.migrate(ready_db.dsn(MIGRATOR))
    rows = ready_db.connect().execute(
        "select c.relname, r.rolname"
        " from pg_class as c cross join unnest(%s::text[]) as r (rolname)"
        " where c.relnamespace in ('trex'::regnamespace, 'trex_yoyo'::regnamespace)"
        " and c.relkind in ('r', 'v', 'm', 'p')"
        " and has_table_privilege(r.rolname, c.oid, 'insert,update,delete,truncate')",
        ([r for r in ROLES if r != "trex_owner"],),
    )
    assert rows.fetchall() == []


@pytest.mark.parametrize("role", ["app", "worker", "operator", "reader"])
def test_programs_of_every_role_may_ask_for_the_state(pg_db, role):
    m.require_known_schema(pg_db.connect(role))
