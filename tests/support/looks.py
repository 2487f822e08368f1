"""Stops a session in the middle of a statement, between its look at a row and its lock on it.

    with stopped_at(admin, conn, 1) as go_on:
        call = Session(client, conn).start("claim", "w")
        assert waits(admin, call)      # it has seen delivery 1 and hasn't locked it
        other.complete(1, fence)
        go_on()
        assert call.outcome() == []

While a statement runs, only the rows it looks at can stop it, without a change of its text: a row
security policy of `trex.delivery` that waits at one message for an advisory lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

_LOCK = 7_420_002

_MAKE = f"""
create schema trex_look;
grant usage on schema trex_look to public;
create function trex_look.at(bigint) returns boolean language plpgsql volatile as $$
declare
    v_left integer;
begin
    if current_setting('trex_look.stop_at', true) = $1::text then
        v_left := current_setting('trex_look.left')::integer - 1;
        perform set_config('trex_look.left', v_left::text, false);
        if v_left = 0 then
            perform pg_advisory_xact_lock_shared({_LOCK});
        end if;
    end if;
    return true;
end
$$;
create policy look on trex.delivery using (trex_look.at(message_id));
alter table trex.delivery enable row level security, force row level security;
"""

_DROP = """
alter table trex.delivery no force row level security, disable row level security;
drop policy look on trex.delivery;
drop function trex_look.at(bigint);
drop schema trex_look;
"""


@contextmanager
def stopped_at(
    admin: psycopg.Connection[Any],
    conn: psycopg.Connection[Any],
    message_id: int,
    *,
    look: int = 1,
) -> Iterator[Callable[[], object]]:
    """Let the session `conn` stop where it looks at a delivery; what is yielded lets it go on.

    Args:
        admin: a superuser's session, in autocommit mode.
        look: which of its looks at this delivery, from 1.
    """
    admin.execute(_MAKE)
    for name, value in (("stop_at", message_id), ("left", look)):
        conn.execute("select set_config(%s, %s, false)", (f"trex_look.{name}", str(value)))
    admin.execute(f"select pg_advisory_lock({_LOCK})")

    def go_on() -> object:
        return admin.execute(f"select pg_advisory_unlock({_LOCK})")

    try:
        yield go_on
    finally:
        admin.execute("select pg_advisory_unlock_all()")
        # It waits for the statement that was stopped.
        admin.execute(_DROP)
