"""Run the extension plpgsql_check over every function of a migrated database.

On each server of this machine that has the extension. Warnings count as well, such as a parameter
that a body never uses.
"""

from __future__ import annotations

import sys

import psycopg

from trex_client.embedded import EmbeddedServer, ServerBinaries, find_servers
from trex_client.migrate import apply_roles, migrate

_CHECK = """
    select distinct p.oid::regprocedure::text, c.lineno, c.level, c.message, c.detail, c.hint
    from pg_proc as p
    join pg_language as l on l.oid = p.prolang and l.lanname = 'plpgsql'
    left join (
        select distinct tgfoid, tgrelid, tgoldtable, tgnewtable from pg_trigger
    ) as t on t.tgfoid = p.oid
    cross join lateral plpgsql_check_function_tb(
        funcoid => p.oid,
        relid => coalesce(t.tgrelid, 0),
        oldtable => t.tgoldtable,
        newtable => t.tgnewtable,
        fatal_errors => false,
        other_warnings => true,
        extra_warnings => true,
        security_warnings => true,
        performance_warnings => false
    ) as c
    where p.pronamespace = 'trex'::regnamespace
    -- The check runs what looks constant, and so meets our own refusals.
    and c.sqlstate not like 'TX%'
    order by 1, 2
"""
_COUNT = """
    select count(*)
    from pg_proc as p
    join pg_language as l on l.oid = p.prolang and l.lanname = 'plpgsql'
    where p.pronamespace = 'trex'::regnamespace
"""


def check(binaries: ServerBinaries) -> int | None:
    """Check on one server; return the number of problems, or None if it lacks the extension."""
    with EmbeddedServer(binaries, settings={"fsync": "off"}) as server:
        dsn = server.dsn()
        with psycopg.connect(dsn, autocommit=True) as conn:
            has = "select 1 from pg_available_extensions where name = 'plpgsql_check'"
            if conn.execute(has).fetchone() is None:
                return None
            apply_roles(dsn)
            migrate(dsn)
            conn.execute("create extension plpgsql_check")
            rows = conn.execute(_CHECK).fetchall()
            count = conn.execute(_COUNT).fetchone()
    for function, line, level, *texts in rows:
        print(f"{function}: line {line}: {level}: {'; '.join(text for text in texts if text)}")
    checked = count[0] if count else 0
    print(f"{binaries}: {checked} functions, {len(rows)} problems")
    return len(rows) if checked else 1


def main() -> int:
    """Check on all servers; return the exit code."""
    results = [check(binaries) for binaries in find_servers()]
    if all(result is None for result in results):
        print("skipped: no server here has plpgsql_check (Debian: postgresql-15-plpgsql-check)")
    return 1 if any(results) else 0


if __name__ == "__main__":
    sys.exit(main())
