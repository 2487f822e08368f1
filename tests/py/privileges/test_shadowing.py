"""A caller's own tables, functions, operators and types, named like ours and PostgreSQL's, change
nothing; nor do the caller's settings; and what callers write is data, whatever it looks like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.py.privileges.calls import OTHER, OWN, ask, call_text, functions, probe, tables
from tests.support.criteria import ROOT

if TYPE_CHECKING:
    from tests.py.privileges.calls import House, Said

pytestmark = pytest.mark.criterion("ac-0036")

TYPES = (
    "text bigint integer boolean timestamptz interval numeric jsonb bytea name smallint oid"
    " double precision"
)


def shadow(house: House) -> tuple[psycopg.Connection[Any], int]:
    """A session that finds its own things first, and how many of them there are."""
    house.admin.execute(f"create schema evil authorization {probe('all')}")
    conn = house.connect("all")
    made = 0

    def make(text: str) -> bool:
        nonlocal made
        try:
            conn.execute(text.encode())
        except psycopg.Error:
            return False  # of a kind that can't be made: pseudo-types, special syntax
        made += 1
        return True

    for table in tables(house.admin):
        columns = house.sql(
            "select string_agg(format('%%I text', attname), ', ') from pg_attribute"
            " where attrelid = %s::regclass and attnum > 0 and not attisdropped",
            f"trex.{table}",
        )[0][0]
        assert make(f"create temp table {table} ({columns})")
        assert make(f"create table evil.{table} ({columns})")
        assert make(f"insert into evil.{table} default values")
    words: set[str] = set()
    for path in (ROOT / "sql" / "functions").rglob("*.sql"):
        words |= set(re.findall(r"\b([a-z_][a-z0-9_]*)\(", path.read_text(encoding="utf-8")))
    for name, arguments, result in house.sql(
        """
        select proname, oidvectortypes(proargtypes), prorettype::regtype::text
        from pg_proc
        where pronamespace = 'pg_catalog'::regnamespace and proname = any(%s)
            and prokind in ('f', 'a') and not proretset
        """,
        list(words),
    ):
        make(
            f"create function evil.{name}({arguments}) returns {result} language plpgsql"
            " as 'begin raise exception ''shadowed function''; end'"
        )
    operators = house.sql(
        """
        select o.oid, o.oprname, o.oprleft::regtype::text, o.oprright::regtype::text,
            o.oprresult::regtype::text
        from pg_operator o
        where o.oprnamespace = 'pg_catalog'::regnamespace
            and o.oprname = any('{=,<>,<,<=,>,>=,~,!~,||,+,-,*,/,%%,<<,>>,&,|,->,->>,?,@>}')
            and o.oprleft <> 0 and o.oprleft::regtype::text = any(%s)
            and o.oprright::regtype::text = any(%s)
        """,
        *[
            [*TYPES.split(), "timestamp with time zone", "double precision", "text[]", "bigint[]"]
            for _ in range(2)
        ],
    )
    for number, name, left, right, result in operators:
        assert make(
            f"create function evil.op{number}(a {left}, b {right}) returns {result} language"
            " plpgsql as 'begin raise exception ''shadowed operator''; end'"
        )
        assert make(
            f"create operator evil.{name} (function = evil.op{number}, leftarg = {left},"
            f" rightarg = {right})"
        )
    for name in ("text", "jsonb", "bytea", "timestamptz", "name", "tid", "regclass"):
        make(f"create domain evil.{name} as pg_catalog.{name} check (value is null)")
        make(f"create domain pg_temp.{name} as pg_catalog.{name} check (value is null)")
    make('create collation evil."C" from "POSIX"')
    conn.execute("set search_path = evil, pg_temp, pg_catalog, trex")
    return conn, made


def answers(house: House, conn: psycopg.Connection[Any]) -> dict[str, Said]:
    found = {}
    for name, parameters in functions(house.admin):
        for key in (OWN, OTHER):
            text = call_text(name, parameters, key, house.values[key])
            found[f"{name} {key}"] = ask(conn, text)
    return found


@pytest.mark.case("N7")
def test_shadowed_names_change_nothing(house: House) -> None:
    clean = answers(house, house.connect("all"))
    conn, made = shadow(house)
    print(f"{made} things in the way")
    assert made > 300
    # They are in the way of this session's own statements.
    for text in ("select 1 = 1", "select length('a'::pg_catalog.text)", "select 'a'::text"):
        assert ask(conn, text).code in ("P0001", "23514"), text
    assert ask(conn, "select from message").code is None
    evil = answers(house, conn)
    assert {k: v for k, v in evil.items() if v != clean[k]} == {}
    assert sum(1 for said in evil.values() if said.code is None) > 40


@pytest.mark.case("N7")
def test_shadowed_names_for_real_work(house: House) -> None:
    """Not rolled back: a message through its life, and the trigger guards of the tables."""
    conn, _ = shadow(house)

    def call(text: str, *values: Any) -> Any:
        row = conn.execute(text.encode(), values).fetchone()
        return row[0] if row else None

    message_id = call("select message_id from trex.enqueue(%s, 't', 'k', '{}')", OWN)
    fence = None
    while fence is None:
        found = conn.execute(b"select message_id, fence from trex.claim('own', 'w', 100)")
        fence = dict(found.fetchall()).get(message_id)
    assert call("select status from trex.complete(%s, %s, %s)", OWN, message_id, fence) == (
        "recorded"
    )
    assert house.sql("select fence from trex.receipt where message_id = %s", message_id) == [
        (fence,)
    ]
    assert house.sql("select count(*) from evil.receipt") == [(1,)]
    assert house.sql("select count(*) from evil.message") == [(1,)]


HOSTILE = (
    "set datestyle = 'German'",
    "set intervalstyle = 'sql_standard'",
    "set timezone = 'Pacific/Chatham'",
    "set bytea_output = 'escape'",
    "set extra_float_digits = -15",
    "set array_nulls = off",
    "set transform_null_equals = on",
    "set standard_conforming_strings = off",
    "set backslash_quote = on",
    "set escape_string_warning = on",
    "set quote_all_identifiers = on",
    "set xmloption = 'document'",
    "set default_transaction_isolation = 'read committed'",
    "set client_min_messages = 'debug5'",
    "set enable_indexscan = off; set enable_nestloop = off; set enable_sort = off",
    "set plan_cache_mode = 'force_custom_plan'",
    "set work_mem = '64kB'",
    "set client_encoding = 'LATIN1'",
    "set lc_numeric = 'C'; set lc_monetary = 'C'",
    "set constraint_exclusion = on",
    "set row_security = off",
    "set check_function_bodies = off",
    "set session.mine = 'x'; set trex.role = 'trex_owner'; set trex.instance_key = 'other'",
    "set default_tablespace = ''; set temp_tablespaces = ''",
    "set from_collapse_limit = 1; set join_collapse_limit = 1",
    "set synchronous_commit = off",
    "set plpgsql.extra_errors = 'shadowed_variables'",
    "set statement_timeout = '1min'; set lock_timeout = '1min'",
)


@pytest.mark.case("N7")
def test_settings_change_nothing(house: House) -> None:
    clean = answers(house, house.connect("all"))
    taken = 0
    for setting in HOSTILE:
        conn = house.connect("all")
        try:
            conn.execute(setting.encode())
        except psycopg.Error:
            continue  # not for everybody, or not in this version
        taken += 1
        found = answers(house, conn)
        wrong = {k: v for k, v in found.items() if v != clean[k]}
        assert wrong == {}, setting
    print(f"{taken} of {len(HOSTILE)} settings taken")
    assert taken >= 22


NASTY = (
    "x'; DROP TABLE trex.message; --",
    "'; select pg_sleep(10); --",
    "a%sb",
    "a%Ib",
    "%L%I%s",
    '"q"',
    "$1",
    "$$; drop schema trex cascade; $$",
    "\\'; drop schema trex cascade; --",
    "{a,b}",
    "{}",
    "NULL",
    "null",
    "(1,2)",
    "%",
    "_%",
    "E'\\\\x'",
    "../../etc/passwd",
    "<script>",
    "ключ",
    "キー",
    "😀" * 100,
    "x" * 255,
)
TOO_LONG = "x" * 10_240


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
@pytest.mark.case("N8")
def test_words_are_data(house: House, text: str) -> None:
    conn = house.connect("all")
    words = (OWN, text, text, text, text)
    with conn.transaction():
        row = conn.execute(
            "select message_id from trex.enqueue(%s, 'topic', %s, '{}', p_account => %s,"
            " p_currency => 'EUR', p_cash_delta => 1, p_correlation_id => %s,"
            " p_ordering_key => %s)",
            words,
        ).fetchone()
    assert row is not None
    message_id = row[0]
    claimed = conn.execute(
        "select message_id, fence, idempotency_key, correlation_id, ordering_key, account"
        " from trex.claim(%s, %s, 10, null, 'outbox', %s)",
        (OWN, text, text),
    ).fetchall()
    assert [(c[0], *c[2:]) for c in claimed] == [(message_id, text, text, text, text)]
    conn.execute(
        "select trex.complete(%s, %s, %s, p_reference => %s, p_balance => 1, p_version => 1)",
        (OWN, message_id, claimed[0][1], text),
    )
    status = conn.execute(
        "select message_id, reference from trex.status(%s, null, %s)", (OWN, text)
    ).fetchall()
    assert status == [(message_id, text)]
    cash = conn.execute(
        "select account from trex.pending_cash_delta(%s, %s)", (OWN, text)
    ).fetchall()
    assert cash == []
    conn.execute("select trex.pause(%s, %s, %s)", (OWN, text, text))
    audit = house.sql(
        "select actor, reason from trex.audit where instance_key = %s and action = 'pause'", OWN
    )
    assert audit == [(text, text)]
    received = conn.execute(
        "select status from trex.receive(%s, 'psp', %s, %s, %s, %s, 'raw', '{}', %s)",
        (OWN, text, text, text, text, text),
    ).fetchall()
    assert received == [("received",)]
    assert len(tables(house.admin)) > 15


NO_NAMES = [text for text in NASTY if text.lower() != "null" and not text.isalpha()]


@pytest.mark.parametrize("text", [*NO_NAMES, TOO_LONG], ids=range(len(NO_NAMES) + 1))
def test_words_that_are_no_names(house: House, text: str) -> None:
    """Instances, topics and providers have a narrow alphabet; nothing of what was given comes
    back."""
    conn = house.connect("all")
    before = house.fingerprint(OWN)
    for statement, values in (
        ("select * from trex.claim(%s, 'w')", [text]),
        ("select * from trex.list_pending(%s)", [text]),
        ("select * from trex.register_instance(%s, 'me', 'why')", [text]),
        ("select * from trex.enqueue(%s, %s, 'k', '{}')", [OWN, text]),
        ("select * from trex.receive(%s, %s, 'a', 'e', 't', null, 'raw', '{}')", [OWN, text]),
        ("select * from trex.enqueue(%s, 't', 'k', '{}', p_effect_policy => %s)", [OWN, text]),
        ("select * from trex.claim(%s, 'w', p_box => %s)", [OWN, text]),
        ("select * from trex.record(%s, '{1}', '{1}', array[%s])", [OWN, text]),
        ("select * from trex.register_currency(%s, 2, 'me', 'why')", [text]),
    ):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(statement, values)
        assert caught.value.sqlstate == "TX400", statement
        shown = str(caught.value) + str(caught.value.diag.context)
        assert len(text) < 5 or text not in shown.replace(statement, ""), statement
    assert house.fingerprint(OWN) == before


def test_long_words_are_refused(house: House) -> None:
    conn = house.connect("all")
    for parameter in ("p_account", "p_correlation_id", "p_ordering_key"):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(
                f"select trex.enqueue('own', 't', 'k', '{{}}', {parameter} => %s)".encode(),
                (TOO_LONG,),
            )
        assert caught.value.sqlstate == "TX400"


@pytest.mark.case("N8")
def test_no_function_makes_statements() -> None:
    """No dynamic SQL anywhere: nothing to inject into."""
    bodies = 0
    for path in (ROOT / "sql" / "functions").rglob("*.sql"):
        for body in re.findall(r"as \$\$(.*?)\$\$", path.read_text(encoding="utf-8"), re.DOTALL):
            code = re.sub(r"--[^\n]*|'(?:[^']|'')*'", "", body)
            assert not re.search(r"\bexecute\b|\bquery_to_xml|\bdblink", code), path
            bodies += 1
    assert bodies > 60
