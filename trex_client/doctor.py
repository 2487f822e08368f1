"""Look at a live database: is everything that trex relies on as it should be?

`diagnose` only reads. What this role may not see is skipped and says so. Details are constant text
with names of objects, roles and settings, and numbers; nothing of a message.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg

from trex_client import migrate
from trex_client.errors import TrexError
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Health = Literal["ok", "warn", "fail", "skip"]

OLDEST_SUPPORTED: Final = 15
NEWEST_TESTED: Final = 18
ROLES: Final = (
    "trex_owner",
    "trex_app",
    "trex_worker",
    "trex_operator",
    "trex_reader",
    "trex_adopter",
)
_SEARCH_PATH: Final = "search_path=pg_catalog, pg_temp"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    status: Health
    detail: str


Found = tuple[Health, str]


def diagnose(conn: psycopg.Connection[Any], instance_key: str | None = None) -> list[Finding]:
    """Run all checks.

    Args:
        conn: an autocommit connection; the more its role may see, the fewer checks are skipped. One
        that may
            `set role trex_owner` sees all.
        instance_key: also look at this instance, which must be bound to the role.
    """
    findings = [_run(conn, name, check) for name, check in _SERVER]
    try:
        migrate.schema_state(conn)
    except (migrate.MigrationError, psycopg.Error):
        return [*findings, _run(conn, "schema", _schema)]
    findings += [_run(conn, name, check) for name, check in _SCHEMA]
    if instance_key is not None:
        client = PostgresClient(conn, instance_key)
        findings.append(_run(conn, "instance", lambda _conn: _instance(client)))
    return findings


def _run(
    conn: psycopg.Connection[Any], name: str, check: Callable[[psycopg.Connection[Any]], Found]
) -> Finding:
    try:
        status, detail = check(conn)
    except psycopg.errors.InsufficientPrivilege:
        status, detail = "skip", "this role may not see that"
    except migrate.MigrationError as refusal:
        status, detail = "fail", str(refusal)
    except psycopg.Error as error:
        status, detail = "fail", f"SQLSTATE {error.sqlstate or 'unknown'}"
    except TrexError as refusal:
        status, detail = "fail", str(refusal)
    return Finding(name, status, detail)


def _rows(conn: psycopg.Connection[Any], query: str, args: tuple[object, ...] = ()) -> list[Any]:
    return conn.execute(query, args).fetchall()


def _one(conn: psycopg.Connection[Any], query: str, args: tuple[object, ...] = ()) -> Any:
    return _rows(conn, query, args)[0]


@contextmanager
def _as_owner(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Read the tables, where this role may become their owner."""
    with conn.transaction(force_rollback=True):
        conn.execute("set local role trex_owner")
        yield


def _names(rows: Sequence[Any]) -> str:
    names = [str(row[0]) for row in rows]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _none_of(rows: Sequence[Any], problem: str, fine: str, status: Health = "fail") -> Found:
    return (status, f"{problem}: {_names(rows)}") if rows else ("ok", fine)


# The server


def _version(conn: psycopg.Connection[Any]) -> Found:
    number = conn.info.server_version
    major, minor = divmod(number, 10_000)
    if major < OLDEST_SUPPORTED:
        return "fail", f"PostgreSQL {major}.{minor}: too old, {OLDEST_SUPPORTED} or newer is needed"
    if major > NEWEST_TESTED:
        return "warn", f"PostgreSQL {major}.{minor}: newer than {NEWEST_TESTED}, not tested"
    return "ok", f"PostgreSQL {major}.{minor}"


def _encoding(conn: psycopg.Connection[Any]) -> Found:
    (encoding,) = _one(conn, "select current_setting('server_encoding')")
    return ("ok" if encoding == "UTF8" else "fail"), f"{encoding}"


def _primary(conn: psycopg.Connection[Any]) -> Found:
    standby, read_only = _one(
        conn, "select pg_is_in_recovery(), current_setting('transaction_read_only')"
    )
    if standby:
        return "fail", "this is a standby"
    return ("fail", "transactions are read-only") if read_only == "on" else ("ok", "read-write")


def _durability(conn: psycopg.Connection[Any]) -> Found:
    """An acknowledged commit that can be lost makes fences that were given out be given out
    again.
    """
    off = _rows(
        conn,
        """
        select s.name from pg_catalog.pg_settings s
        where s.name in ('fsync', 'full_page_writes', 'synchronous_commit') and s.setting = 'off'
        union all
        select 'synchronous_commit for ' || coalesce('role ' || r.rolname, 'database ' || d.datname,
        'all') from pg_catalog.pg_db_role_setting c
        left join pg_catalog.pg_roles r on r.oid = c.setrole
        left join pg_catalog.pg_database d on d.oid = c.setdatabase
        where 'synchronous_commit=off' = any(c.setconfig)
            and c.setdatabase in (
                0, (select oid from pg_catalog.pg_database where datname = current_database())
            )
        order by 1
        """,
    )
    return _none_of(off, "off, so acknowledged commits can be lost", "commits are durable")


def _isolation(conn: psycopg.Connection[Any]) -> Found:
    # Not what this session has set for itself.
    (level,) = _one(
        conn,
        "select reset_val from pg_catalog.pg_settings where name = 'default_transaction_isolation'",
    )
    if level == "read committed":
        return "ok", "read committed"
    return (
        "warn",
        f"default is {level}; claim and exchange of your programs need read committed",
    )


def _xmin(conn: psycopg.Connection[Any]) -> Found:
    """What holds back vacuum: claims then wade through dead index entries."""
    holders = _rows(
        conn,
        """
        select h.what, h.age from (
            select 'backend ' || a.pid as what, age(a.backend_xmin) as age
            from pg_catalog.pg_stat_activity a
            where a.backend_xmin is not null and a.pid <> pg_backend_pid()
            union all
            select 'replication slot ' || s.slot_name, greatest(age(s.xmin), age(s.catalog_xmin))
            from pg_catalog.pg_replication_slots s
            union all
            select 'prepared transaction', age(p.transaction) from pg_catalog.pg_prepared_xacts p
        ) h
        where h.age is not null
        order by h.age desc
        limit 1
        """,
    )
    if not holders:
        return "ok", "nothing holds back vacuum"
    what, age = holders[0]
    return ("warn" if age > 100_000 else "ok"), f"oldest: {what}, {age} transactions back"


def _notifications(conn: psycopg.Connection[Any]) -> Found:
    (usage,) = _one(conn, "select pg_notification_queue_usage()")
    status: Health = "fail" if usage > 0.5 else "warn" if usage > 0.1 else "ok"
    return status, f"queue {usage:.1%} full"


# The schema


def _schema(conn: psycopg.Connection[Any]) -> Found:
    state = migrate.schema_state(conn)
    if state.unknown:
        return "fail", f"newer than this release: {', '.join(state.unknown)}"
    if state.pending:
        return "fail", f"pending: {', '.join(state.pending)}; run trex migrate"
    if state.replay_needed:
        return "fail", "functions need a replay: run trex migrate"
    if state.drifted:
        return "fail", f"functions differ from the release: {_names([(d,) for d in state.drifted])}"
    return "ok", f"{len(state.applied)} migrations, functions of this release"


def _roles(conn: psycopg.Connection[Any]) -> Found:
    bad = _rows(
        conn,
        """
        select n.name || case when r.oid is null then ' is missing' else ' has rights of its own'
        end from unnest(%s::text[]) n (name)
        left join pg_catalog.pg_roles r on r.rolname = n.name
        where r.oid is null
            or r.rolsuper or r.rolbypassrls or r.rolcreaterole or r.rolcreatedb or r.rolreplication
            or r.rolcanlogin
        """,
        (list(ROLES),),
    )
    return _none_of(bad, "run sql/roles.sql", "all there, without login")


def _owners(conn: psycopg.Connection[Any]) -> Found:
    foreign = _rows(
        conn,
        """
        select o.name from (
            select c.oid::regclass::text as name, c.relowner as owner from pg_catalog.pg_class c
            where c.relnamespace = 'trex'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S',
            'f') union all
            select p.oid::regprocedure::text, p.proowner from pg_catalog.pg_proc p
            where p.pronamespace = 'trex'::regnamespace
        ) o
        where o.owner <> 'trex_owner'::regrole
        order by 1
        """,
    )
    return _none_of(foreign, "not owned by trex_owner", "everything belongs to trex_owner")


def _public(conn: psycopg.Connection[Any]) -> Found:
    open_to_all = _rows(
        conn,
        """
        select p.oid::regprocedure::text from pg_catalog.pg_proc p,
            aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'trex'::regnamespace and a.grantee = 0
        union all
        select 'schema trex' from pg_catalog.pg_namespace n, aclexplode(n.nspacl) a
        where n.nspname = 'trex' and a.grantee = 0
        order by 1
        """,
    )
    return _none_of(open_to_all, "PUBLIC may use", "nothing is granted to PUBLIC")


def _tables(conn: psycopg.Connection[Any]) -> Found:
    granted = _rows(
        conn,
        """
        select distinct c.oid::regclass::text || ' to '
            || case a.grantee when 0 then 'PUBLIC' else a.grantee::regrole::text end
        from pg_catalog.pg_class c, aclexplode(c.relacl) a
        where c.relnamespace = 'trex'::regnamespace
            and c.relkind in ('r', 'p', 'S') and a.grantee <> c.relowner
        order by 1
        """,
    )
    return _none_of(granted, "granted", "no table is granted to anybody")


def _definers(conn: psycopg.Connection[Any]) -> Found:
    loose = _rows(
        conn,
        """
        select p.oid::regprocedure::text from pg_catalog.pg_proc p
        where p.pronamespace = 'trex'::regnamespace and p.prosecdef and (%s = any(p.proconfig)) is
        not true order by 1
        """,
        (_SEARCH_PATH,),
    )
    return _none_of(loose, "search_path is not pinned", "pinned on every definer's function")


def _triggers(conn: psycopg.Connection[Any]) -> Found:
    rows = _rows(
        conn,
        """
        select t.tgrelid::regclass::text || '.' || t.tgname, t.tgenabled = 'A'
        from pg_catalog.pg_trigger t join pg_catalog.pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'trex'::regnamespace and not t.tgisinternal
        order by 1
        """,
    )
    if not rows:
        return "fail", "there are no guards"
    return _none_of(
        [row for row in rows if not row[1]],
        "not ENABLE ALWAYS",
        f"{len(rows)} guards, all ENABLE ALWAYS",
    )


def _bindings(conn: psycopg.Connection[Any]) -> Found:
    with _as_owner(conn):
        odd = _rows(
            conn,
            """
            select b.role_name || ' of ' || b.instance_key || case
                when r.oid is null then ' does not exist'
                when r.rolsuper then ' is a superuser'
                else ' may become trex_owner'
            end
            from trex.binding b left join pg_catalog.pg_roles r on r.rolname = b.role_name
            where r.oid is null or r.rolsuper or pg_has_role(r.oid, 'trex_owner', 'member')
            union all
            select 'nobody, for ' || i.instance_key from trex.instance i
            where not exists (select from trex.binding b where b.instance_key = i.instance_key)
            order by 1
            """,
        )
        bound, instances = _one(
            conn,
            "select count(*), (select count(*) from trex.instance) from trex.binding",
        )
    return _none_of(odd, "bound", f"{bound} bindings of {instances} instances", "warn")


def _listeners(conn: psycopg.Connection[Any]) -> Found:
    with _as_owner(conn):
        (waiting,) = _one(
            conn, "select count(*) from trex.listener l where l.until > clock_timestamp()"
        )
    return "ok", f"{waiting} workers wait for a notification"


def _vacuum(conn: psycopg.Connection[Any]) -> Found:
    (autovacuum,) = _one(conn, "select current_setting('autovacuum')")
    if autovacuum != "on":
        return "fail", "autovacuum is off"
    full = _rows(
        conn,
        """
        select s.relname || ' (' || s.n_dead_tup || ' dead, ' || s.n_live_tup || ' live)'
        from pg_catalog.pg_stat_all_tables s
        where s.schemaname = 'trex' and s.n_dead_tup > 20000 and s.n_dead_tup > s.n_live_tup
        order by s.n_dead_tup desc
        """,
    )
    return _none_of(full, "dead rows pile up", "no table is full of dead rows", "warn")


def _instance(client: PostgresClient) -> Found:
    policy, stats = client.policy(), client.stats()
    parked = {
        name: getattr(stats, name) for name in ("unknown", "conflict", "dead_letter", "permanent")
    }
    problems = ["paused"] if policy.paused else []
    problems += [f"{count} parked {name}" for name, count in parked.items() if count]
    if stats.blocked_keys:
        problems.append(f"{stats.blocked_keys} ordering keys blocked")
    if problems:
        return "warn", ", ".join(problems)
    return "ok", f"{stats.ready + stats.due} ready, {stats.leased} leased, none parked"


_SERVER: Final[tuple[tuple[str, Callable[[psycopg.Connection[Any]], Found]], ...]] = (
    ("version", _version),
    ("encoding", _encoding),
    ("primary", _primary),
    ("durability", _durability),
    ("isolation", _isolation),
    ("xmin", _xmin),
    ("notifications", _notifications),
)

_SCHEMA: Final[tuple[tuple[str, Callable[[psycopg.Connection[Any]], Found]], ...]] = (
    ("schema", _schema),
    ("roles", _roles),
    ("owners", _owners),
    ("public", _public),
    ("tables", _tables),
    ("search_path", _definers),
    ("guards", _triggers),
    ("bindings", _bindings),
    ("listeners", _listeners),
    ("vacuum", _vacuum),
)
