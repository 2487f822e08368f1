"""Who a caller is: session_user or the role of SET ROLE, by exact name, and nothing that a session
can set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.py.privileges.calls import OTHER, OWN, ask, probe

if TYPE_CHECKING:
    from tests.py.privileges.calls import House

pytestmark = pytest.mark.criterion("ac-0036")

ASK_OTHER = "select * from trex.list_pending('other')"
ASK_OWN = "select * from trex.list_pending('own')"


def bind(house: House, key: str, role: str) -> None:
    house.admin.execute("insert into trex.binding values (%s, %s, now())", (key, role))


def unbind(house: House, key: str) -> None:
    house.admin.execute("delete from trex.binding where instance_key = %s", (key,))


def code(conn: psycopg.Connection[Any], text: str) -> str | None:
    return ask(conn, text).code


def test_set_role_acts_as_that_role_only(house: House) -> None:
    bind(house, OTHER, "trex_worker")
    conn = house.connect("all")
    # A member of the bound role isn't the bound role.
    assert code(conn, ASK_OTHER) == "TX403"
    conn.execute("set role trex_worker")
    assert code(conn, ASK_OTHER) is None
    # And what the session's own role is bound to is out of reach.
    assert code(conn, ASK_OWN) == "TX403"
    conn.execute("reset role")
    assert code(conn, ASK_OWN) is None
    conn.execute("select set_config('role', 'trex_worker', false)")
    assert code(conn, ASK_OTHER) is None


def test_set_role_needs_membership(house: House) -> None:
    bind(house, OTHER, probe("operator"))
    conn = house.connect("all")
    for statement in (
        f"set role {probe('operator')}",
        f"select set_config('role', '{probe('operator')}', false)",
        f"set session authorization {probe('operator')}",
        f"select set_config('session_authorization', '{probe('operator')}', false)",
        "set role trex_owner",
        "set role postgres",
    ):
        # The connection is a superuser's that became this role; the server lets such a session
        # change its authorization, so that is asked of a real login elsewhere.
        if "authorization" in statement:
            continue
        assert code(conn, statement) in ("42501", "22023"), statement
    assert code(conn, ASK_OTHER) == "TX403"


def test_a_login_cannot_change_its_authorization(house: House) -> None:
    bind(house, OTHER, "trex_test_worker")
    bind(house, OWN, "trex_test_other")
    conn = house.database.connect("other")
    for statement in (
        "set session authorization trex_test_worker",
        "select set_config('session_authorization', 'trex_test_worker', false)",
        "set role trex_test_worker",
        "alter role current_user set role = 'trex_test_worker'; set role trex_test_worker",
    ):
        assert code(conn, statement) in ("42501", "22023"), statement
    assert code(conn, ASK_OTHER) == "TX403"
    assert code(conn, ASK_OWN) is None


@pytest.mark.parametrize(
    "setting",
    [
        "trex.role",
        "trex.caller",
        "trex.instance_key",
        "trex.binding",
        "app.role",
        "app.current_user",
        "role.name",
        "request.jwt.claims",
        "session.user",
    ],
)
def test_a_custom_setting_is_nobody(house: House, setting: str) -> None:
    bind(house, OTHER, probe("worker"))
    conn = house.connect("all")
    for value in (probe("worker"), "other", f'{{"role": "{probe("worker")}"}}'):
        conn.execute("select set_config(%s, %s, false)", (setting, value))
        assert code(conn, ASK_OTHER) == "TX403"
        assert code(conn, ASK_OWN) is None


def test_application_name_is_nobody(house: House) -> None:
    bind(house, OTHER, probe("worker"))
    conn = house.connect("all")
    conn.execute(f"set application_name = '{probe('worker')}'".encode())
    assert code(conn, ASK_OTHER) == "TX403"


def test_definer_functions_lend_no_identity(house: House) -> None:
    """A function of the bound role, called by another role: the caller is who called."""
    bind(house, OTHER, probe("worker"))
    house.admin.execute(f"create schema victims authorization {probe('worker')}")
    victim = house.connect("worker")
    victim.execute(
        "create function victims.peek() returns bigint language sql security definer"
        " as $$ select count(*) from trex.list_pending('other') $$"
    )
    victim.execute(
        "create function victims.become() returns bigint language plpgsql security definer as $$"
        f" begin set local role {probe('worker')};"
        " return (select count(*) from trex.list_pending('other')); end $$"
    )
    victim.execute("grant usage on schema victims to public")
    assert code(victim, "select victims.peek()") is None
    conn = house.connect("all")
    assert code(conn, "select victims.peek()") == "TX403"
    assert code(conn, "select victims.become()") == "42501"


def test_names_are_compared_exactly(house: House) -> None:
    name = probe("worker")
    for like in (
        name.upper(),
        name.capitalize(),
        f"{name} ",
        f" {name}",
        f'"{name}"',
        name[:-1],
        f"{name}s",
        "%",
        "trex_probe_worke_",
        "public",
        "current_user",
        "session_user",
        "none",
    ):
        unbind(house, OTHER)
        bind(house, OTHER, like)
        assert code(house.connect("worker"), ASK_OTHER) == "TX403", like
    bind(house, OTHER, name)
    assert code(house.connect("worker"), ASK_OTHER) is None


def test_a_superuser_is_not_bound(house: House) -> None:
    """Superusers can write the binding, and have to: nothing happens by accident."""
    assert code(house.admin, ASK_OWN) == "TX403"
    house.admin.execute(f"set role {probe('worker')}".encode())
    assert code(house.admin, ASK_OWN) is None
    house.admin.execute("reset role")


def test_a_binding_names_a_role(house: House) -> None:
    """Dropped and made again under the same name, a role is who it was; under another it isn't."""
    house.admin.execute("create role trex_probe_passing login")
    try:
        house.admin.execute("grant trex_worker to trex_probe_passing")
        bind(house, OTHER, "trex_probe_passing")
        conn = house.connect("passing")
        assert code(conn, ASK_OTHER) is None
        house.admin.execute("alter role trex_probe_passing rename to trex_probe_renamed")
        assert code(house.connect("renamed"), ASK_OTHER) == "TX403"
        house.admin.execute("alter role trex_probe_renamed rename to trex_probe_passing")
    finally:
        house.admin.execute("drop role if exists trex_probe_passing, trex_probe_renamed")


def test_unbinding_works_at_once(house: House) -> None:
    """A session with warm plans loses its right with the next call."""
    conn = house.connect("worker")
    for _ in range(7):
        assert code(conn, ASK_OWN) is None
    unbind(house, OWN)
    assert code(conn, ASK_OWN) == "TX403"
