"""Every role x every function x own, somebody else's and unknown instance; every role x every table
x every verb."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.py.privileges.calls import (
    LABELS,
    MAY,
    NO_INSTANCE,
    OTHER,
    OWN,
    UNBOUND,
    UNKNOWN,
    ask,
    call_text,
    functions,
    probe,
    tables,
)

if TYPE_CHECKING:
    from tests.py.privileges.calls import House

pytestmark = pytest.mark.criterion("ac-0036")

BROKEN = ("0", "2", "4", "XX", "TX400", "TX501", "TX503")
"""Answers to a permitted call that would mean that the call is wrong."""


def test_every_function_for_every_role(house: House) -> None:
    every = list(functions(house.admin))
    assert {name for name, _ in every} == set(MAY)
    before = house.fingerprint(OTHER)
    counts = {"refused": 0, "answered": 0, "not bound": 0}
    wrong = []
    for label in LABELS:
        conn = house.connect(label)
        for name, parameters in every:
            answers = {
                key: ask(conn, call_text(name, parameters, key, house.values[key]))
                for key in (OWN, OTHER, UNKNOWN)
            }
            where = f"{name} as {label}"
            if label not in MAY[name]:
                codes = {answer.code for answer in answers.values()}
                assert codes == {"42501"}, f"{where}: {answers}"
                counts["refused"] += 3
                continue
            own = answers[OWN].code or ""
            if own in ("TX403", "42501") or own.startswith(BROKEN):
                wrong.append(f"{where}: {answers[OWN]}")
            counts["answered"] += 1
            if name in NO_INSTANCE | UNBOUND:
                continue
            if answers[OTHER].code != "TX403":
                wrong.append(f"{where}, not bound: {answers[OTHER]}")
            # Nobody can tell apart what isn't theirs and what isn't there.
            assert answers[OTHER] == answers[UNKNOWN], where
            assert answers[OTHER].detail is None
            counts["not bound"] += 2
    print(counts)
    assert wrong == []
    assert counts["refused"] > 700
    assert counts["answered"] > 80
    assert counts["not bound"] > 150
    assert house.fingerprint(OTHER) == before


def test_somebody_elses_messages_are_not_there(house: House) -> None:
    """The own instance, with the ids and fences of another's."""
    before = house.fingerprint(OTHER)
    conn = house.connect("all")
    asked = 0
    for name, parameters in functions(house.admin):
        takes = [p for p in parameters if p in ("p_message_id", "p_message_ids")]
        if not takes:
            continue
        theirs = ask(conn, call_text(name, parameters, OWN, house.values[OTHER]))
        missing = {k: 10**12 + v for k, v in house.values[OTHER].items()}
        nowhere = ask(conn, call_text(name, parameters, OWN, missing))
        assert theirs == nowhere, name
        if theirs.code is None:
            assert any(b"not_found" in row for row in theirs.rows), f"{name}: {theirs}"
        else:
            assert theirs.code == "TX404", f"{name}: {theirs}"
        asked += 1
    assert asked > 15
    assert house.fingerprint(OTHER) == before


def test_no_role_reaches_a_table(house: House) -> None:
    counts = 0
    views = {
        row[0]
        for row in house.sql(
            "select relname from pg_class where relnamespace = 'trex'::regnamespace"
            " and relkind = 'v'"
        )
    }
    for label in (*LABELS, "all"):
        conn = house.connect(label)
        for table in tables(house.admin):
            column = house.sql(
                "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
                " and attidentity = '' and not attisdropped order by attnum limit 1",
                f"trex.{table}",
            )[0][0]
            for statement in (
                f"select from trex.{table}",
                f"select count(*) from trex.{table}",
                f"insert into trex.{table} default values",
                f"update trex.{table} set {column} = {column}",
                f"update trex.{table} set {column} = default",
                f"delete from trex.{table}",
                f"truncate trex.{table}",
                f"lock table trex.{table} in access share mode",
                f"select from trex.{table} for update",
                f"copy trex.{table} to stdout",
                f"analyze trex.{table}; select 1 / 0",
                f"create table pg_temp.mine () inherits (trex.{table})",
                f"create trigger mine after insert on trex.{table} execute function now()",
                f"create index on trex.{table} ({column})",
                f"create rule mine as on insert to trex.{table} do nothing",
                f"alter table trex.{table} disable trigger all",
                f"drop table trex.{table}",
            ):
                answer = ask(conn, statement)
                expected = {"42501", "22012"} if "analyze" in statement else {"42501"}
                if table in views:
                    # Refused for what it is, before anybody asks for rights.
                    expected |= set() if statement.startswith("select") else {"55000", "42809"}
                assert answer.code in expected, f"{statement} as {label}: {answer}"
                counts += 1
    print(f"{counts} refusals")
    assert counts > 2000


def test_no_role_reaches_a_sequence(house: House) -> None:
    rows = house.sql(
        "select relname from pg_class where relnamespace = 'trex'::regnamespace and relkind = 'S'"
    )
    assert len(rows) >= 2
    for label in (*LABELS, "all"):
        conn = house.connect(label)
        for (sequence,) in rows:
            for statement in (
                f"select nextval('trex.{sequence}')",
                f"select setval('trex.{sequence}', 1)",
                f"select last_value from trex.{sequence}",
            ):
                assert ask(conn, statement).code == "42501", f"{statement} as {label}"


def test_no_role_changes_the_schema(house: House) -> None:
    for label in (*LABELS, "all"):
        conn = house.connect(label)
        for statement in (
            "create table trex.mine (a integer)",
            "create function trex.mine() returns integer language sql as 'select 1'",
            (
                "create or replace function trex._now() returns timestamptz language sql"
                " as 'select now()'"
            ),
            "alter function trex._now() cost 2",
            "drop function trex._now()",
            "alter schema trex rename to mine",
            "create type trex.mine as (a integer)",
            "alter type trex.enqueued add attribute mine integer",
            "grant execute on function trex._now() to public; select trex._now()",
            "set role trex_owner",
            "alter default privileges for role trex_owner grant select on tables to public",
            "reassign owned by trex_owner to current_user",
            "comment on schema trex is 'mine'",
            "alter database current set role = 'trex_owner'",
        ):
            code = ask(conn, statement).code
            assert code in ("42501", "3D000"), f"{statement} as {label}: {code}"


def test_no_role_passes_its_rights_on(house: House) -> None:
    acl = "select nspacl::text from pg_namespace where nspname = 'trex'"
    before = house.sql(acl)
    for label in (*LABELS, "all"):
        conn = house.connect(label)
        # Without the grant option this is a warning or a refusal.
        with contextlib.suppress(psycopg.Error):
            conn.execute("grant usage on schema trex to public")
        for name, _ in functions(house.admin):
            with contextlib.suppress(psycopg.Error):
                conn.execute(f"grant execute on function trex.{name} to public".encode())
    assert house.sql(acl) == before
    assert may_public(house) == []


def may_public(house: House) -> list[Any]:
    return house.sql(
        """
        select p.oid::regprocedure::text
        from pg_proc p cross join lateral aclexplode(p.proacl) a
        where p.pronamespace = 'trex'::regnamespace and a.grantee = 0
        """
    )


def test_no_role_calls_an_internal_function(house: House) -> None:
    rows = house.sql(
        """
        select p.oid::regprocedure::text, r.rolname
        from pg_proc p, pg_roles r
        where p.pronamespace = 'trex'::regnamespace and p.proname ~ '^_'
            and r.rolname = any(%s) and has_function_privilege(r.oid, p.oid, 'execute')
        """,
        [probe(label) for label in (*LABELS, "all")],
    )
    assert rows == []
    internal = house.sql(
        "select count(*) from pg_proc p where p.pronamespace = 'trex'::regnamespace"
        " and p.proname ~ '^_'"
    )
    assert internal[0][0] > 30


def test_public_has_nothing(house: House) -> None:
    rows = house.sql(
        """
        select o.kind, o.name, a.privilege_type
        from (
            select 'relation' as kind, c.relname::text as name,
                coalesce(c.relacl, acldefault(
                    case c.relkind when 'S' then 's'::"char" else 'r'::"char" end, c.relowner
                )) as acl
            from pg_class c
            where c.relnamespace = 'trex'::regnamespace and c.relkind in ('r', 'v', 'm', 'S', 'p')
            union all
            select 'function', p.oid::regprocedure::text,
                coalesce(p.proacl, acldefault('f', p.proowner))
            from pg_proc p where p.pronamespace = 'trex'::regnamespace
            union all
            select 'schema', n.nspname, coalesce(n.nspacl, acldefault('n', n.nspowner))
            from pg_namespace n where n.nspname = 'trex'
            union all
            select 'column', a.attrelid::regclass || '.' || a.attname, a.attacl
            from pg_attribute a join pg_class c on c.oid = a.attrelid
            where c.relnamespace = 'trex'::regnamespace and a.attacl is not null
        ) o
        cross join lateral aclexplode(o.acl) a
        where a.grantee = 0
        """
    )
    assert rows == []


def test_new_functions_are_nobodys(house: House) -> None:
    """What the owner creates later isn't PUBLIC's either."""
    house.admin.execute("set role trex_owner")
    house.admin.execute("create function trex.later() returns integer language sql as 'select 1'")
    house.admin.execute("reset role")
    for label in (*LABELS, "all"):
        assert ask(house.connect(label), "select trex.later()").code == "42501"


def test_a_view_over_a_table_gives_nothing(house: House) -> None:
    """Creating a view needs no right on the table; reading it does."""
    house.admin.execute(f"create schema mine authorization {probe('all')}")
    conn = house.connect("all")
    conn.execute("create view mine.v as select * from trex.message")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select * from mine.v")
    assert caught.value.sqlstate == "42501"
