"""Bring a database to the schema of this release.

Numbered files under ``sql/migrations`` run once, each in a transaction of its own that also writes
the file's row (name, sha256) into ``trex.schema_migration``. Functions, in the order of
``sql/functions.psql``, are replayed every time in one transaction. ``psql -f sql/replay.psql`` does
the same without Python, and plain ``yoyo apply`` runs the numbered files; the three see each
other's work.

Every transaction takes a transaction-level advisory lock (a pooler loses session-level ones), waits
for it a bounded time, and checks what is recorded only after it got it.

Errors carry constant text and file names, never a DSN and nothing that the server said about data.
"""

# ruff: noqa: N818 - the names say what is wrong with the migration

from __future__ import annotations

import argparse
import glob
import hashlib
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
import yoyo
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict

from trex_client._yoyo import mark_applied
from trex_client.errors import TrexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LOCK_KEYS: Final = (1953654136, 1)
LOCK_WAIT: Final = 30.0
# Shorter than deadlock_timeout (1 s): where a migration and a business transaction wait for each
# other, the migration gives up first.
STATEMENT_LOCK_TIMEOUT: Final = "500ms"

Progress: TypeAlias = "Callable[[str, int, int], None]"

_FILE_NAME = re.compile(r"(?P<number>[0-9]{4})\.[a-z0-9_]+")
_INCLUDE = re.compile(r"\\ir\s+(?P<path>functions/[a-z0-9_/]+\.sql)")
_SUM_LINE = re.compile(r"(?P<sum>[0-9a-f]{64})  (?P<name>[0-9]{4}\.[a-z0-9_]+)\.sql")
_UNRELEASED = "# unreleased"


class MigrationError(TrexError):
    """A migration was refused or failed; nothing of the refused step was changed.

    Attributes:
        files: names of the migration or function files it is about.
        advice: what to do, constant text.
    """

    text = "the migration failed"

    def __init__(self, *files: str, advice: str = "") -> None:
        self.files = files
        self.advice = advice
        names = ", ".join(files)
        super().__init__(f"{names} ({advice})" if names and advice else names or advice or None)


class BadMigrationFile(MigrationError):
    """A file of the release isn't formed as ``sql/migrations/README.md`` says."""

    text = "a file of the release is malformed"


class DuplicateMigration(MigrationError):
    """Two files, or a file and a recorded migration, share a number."""

    text = "two migrations have the same number"


class EditedMigration(MigrationError):
    """A released or recorded migration has other content now."""

    text = "a migration was edited after it was released or applied"


class MigrationGap(MigrationError):
    """A number is missing among the files, or a later file was applied before this one."""

    text = "migrations are not without a gap"


class UnknownSchema(MigrationError):
    """The database has migrations that this release doesn't know: it is newer."""

    text = "the schema is newer than this release"


class SchemaOutdated(MigrationError):
    """The database lacks migrations of this release, or isn't a trex database at all."""

    text = "the schema is older than this release"


class SchemaMissing(SchemaOutdated):
    """There is no trex in this database."""

    text = "there is no trex in this database"


class MigrationLocked(MigrationError):
    """Another migrator, or a transaction that uses a table, was in the way for too long."""

    text = "a lock was not granted in time and nothing was changed"


class MissingRight(MigrationError):
    """The role of this connection lacks a right that ``sql/roles.sql`` gives."""

    text = "a right is missing"


class MigrationUnreachable(MigrationError):
    """The server can't be reached, or the connection was lost. Running again is safe."""

    text = "the database is not reachable"


class MigrationFailed(MigrationError):
    """A statement of the file failed and the file's transaction was rolled back.

    Attributes:
        code: PostgreSQL's SQLSTATE, or None.
        line: line of the file, or None when the server gave no position.
    """

    text = "a statement failed"

    def __init__(self, file: str, *, code: str | None, line: int | None = None) -> None:
        self.code = code
        self.line = line
        where = "" if line is None else f", line {line}"
        super().__init__(file, advice=f"SQLSTATE {code or 'unknown'}{where}")


@dataclass(frozen=True, slots=True)
class SqlFile:
    """A file of the release: its name, text, and sha256 over its bytes (64 hex digits)."""

    name: str
    text: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Release:
    """The SQL that ships with this client.

    Attributes:
        migrations: in order; names without ``.sql``.
        functions: in the order of ``functions.psql``; names are paths below ``sql``.
        function_release: sha256 over the names and checksums of the functions, in order.
        released: names of migrations whose content is frozen by ``SHA256SUMS``.
        sums: what ``SHA256SUMS`` says, by name.
    """

    root: Path
    migrations: tuple[SqlFile, ...]
    functions: tuple[SqlFile, ...]
    function_release: str
    released: tuple[str, ...]
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What ``migrate`` did, or with ``dry_run`` would do.

    Attributes:
        applied: migrations applied by this call (``dry_run``: none).
        pending: migrations still to apply (after a real run: none).
        functions: number of function files replayed.
        function_release: sha256 that names the replayed functions.
        marked: migrations that yoyo hadn't marked yet.
        dry_run: nothing was changed.
    """

    applied: tuple[str, ...]
    pending: tuple[str, ...]
    functions: int
    function_release: str
    marked: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What a database has, against this release.

    Attributes:
        applied: recorded migrations, in order.
        pending: migrations of this release that aren't recorded.
        unknown: recorded migrations that this release doesn't know.
        replay_needed: the functions aren't those of this release, or a migration came after them.
        incomplete: a migration came after the functions, or there never were any.
        drifted: signatures of functions changed, missing or added since the last replay.
    """

    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]
    replay_needed: bool
    incomplete: bool
    drifted: tuple[str, ...]


def sql_root() -> Path:
    """Folder of the SQL files: inside an installed package, or next to it in a checkout."""
    here = Path(__file__).resolve().parent
    packaged = here / "_sql"
    return packaged if packaged.is_dir() else here.parent / "sql"


def load_release(root: Path | None = None) -> Release:
    """Read and verify the files of the release; opens no connection.

    Args:
        root: folder with ``migrations/`` and ``functions.psql``; default: the shipped one.

    Raises:
        DuplicateMigration, MigrationGap, EditedMigration, BadMigrationFile: naming the files.
    """
    root = root or sql_root()
    migrations = _read_migrations(root / "migrations")
    functions = _read_functions(root)
    digest = hashlib.sha256()
    for function in functions:
        digest.update(f"{function.name} {function.checksum}\n".encode())
    sums, released = _read_sums(root / "migrations" / "SHA256SUMS")
    by_name = {m.name: m for m in migrations}
    for name in released:
        if name not in by_name:
            raise MigrationGap(name, advice="a released file is missing")
        if by_name[name].checksum != sums[name]:
            raise EditedMigration(name, advice="restore the released file")
    return Release(root, migrations, functions, digest.hexdigest(), released, sums)


def migrate(
    dsn: str,
    *,
    dry_run: bool = False,
    lock_wait: float = LOCK_WAIT,
    progress: Progress | None = None,
    root: Path | None = None,
) -> MigrationReport:
    """Apply pending migrations and replay all functions.

    Safe to call from any number of processes at once and to repeat after any failure: each
    migration is one transaction, and so are the functions.

    Args:
        dsn: libpq connection string or URI; empty means libpq's own environment variables. The role
            must be allowed to ``set role trex_owner``.
        dry_run: only tell what would be applied; nothing is written, no lock is taken.
        lock_wait: seconds to wait for another migrator, for each transaction; above 0.
        progress: called after each commit with (name of the step, steps done, steps in all).
        root: folder of the SQL files; default: the shipped one.

    Raises:
        MigrationError: one of its subclasses; what was committed before stays.
    """
    if not 0 < lock_wait <= 86_400:
        raise ValueError("lock_wait must be above 0 and at most 86400 seconds")
    release = load_release(root)
    with _connect(dsn) as conn:
        _require_rights(conn)
        pending = _pending(release, _recorded(conn))
        if dry_run:
            names = tuple(m.name for m in pending)
            return MigrationReport((), names, 0, release.function_release, (), True)

        steps = len(pending) + 1
        applied: list[str] = []
        for done, migration in enumerate(pending, start=1):
            if _apply(conn, release, migration, lock_wait):
                applied.append(migration.name)
            if progress:
                progress(migration.name, done, steps)

        marked = _replay(conn, release, lock_wait)
        if progress:
            progress("functions", steps, steps)
    return MigrationReport(
        tuple(applied), (), len(release.functions), release.function_release, marked, False
    )


def plan(dsn: str, *, root: Path | None = None) -> tuple[str, ...]:
    """Names of the migrations that ``migrate`` would apply, in order; writes nothing."""
    return migrate(dsn, dry_run=True, root=root).pending


def schema_state(conn: psycopg.Connection[Any], *, root: Path | None = None) -> SchemaState:
    """Compare a database with this release, through ``trex.schema_state()``.

    Args:
        conn: any role that may execute ``trex.schema_state()``; the caller owns the transaction.
        root: folder of the SQL files; default: the shipped one.

    Raises:
        SchemaMissing: there is no trex schema in this database.
    """
    release = load_release(root)
    known = tuple(m.name for m in release.migrations)
    has_schema, has_function = _row(
        conn,
        "select to_regclass('trex.schema_migration') is not null,"
        " to_regprocedure('trex.schema_state()') is not null",
    )
    if not has_schema:
        raise SchemaMissing(advice="run trex migrate")
    if not has_function:
        # Numbered files were applied by plain yoyo and no function was ever replayed.
        return SchemaState((), (), (), True, True, ())
    migrations, recorded, outdated, drifted = _row(
        conn,
        "select s.migrations, s.release, s.replayed_at < s.migrated_at, s.drifted"
        " from trex.schema_state() as s",
    )
    applied = tuple(migrations or ())
    return SchemaState(
        applied=applied,
        pending=tuple(name for name in known if name not in applied),
        unknown=tuple(name for name in applied if name not in known),
        replay_needed=recorded != release.function_release or outdated is not False,
        incomplete=outdated is not False,
        drifted=tuple(drifted),
    )


def require_known_schema(conn: psycopg.Connection[Any], *, root: Path | None = None) -> None:
    """Refuse to work on a schema that this release doesn't know. Programs call it at start.

    Functions of another release on the same migrations are fine: while a release is rolled out, old
    programs go on, and start again, beside new ones.

    Raises:
        UnknownSchema: the database is newer.
        SchemaOutdated: migrations or a function replay are missing.
    """
    state = schema_state(conn, root=root)
    if state.unknown:
        raise UnknownSchema(*state.unknown, advice="upgrade trex")
    if state.pending:
        raise SchemaOutdated(*state.pending, advice="run trex migrate")
    if state.incomplete:
        raise SchemaOutdated("functions.psql", advice="run trex migrate")


def check(dsn: str | None = None, *, root: Path | None = None) -> tuple[str, ...]:
    """Verify the files of the release, and with ``dsn`` the database against them.

    Args:
        dsn: connection string, or None to look at the files only.
        root: folder of the SQL files; default: the shipped one.

    Returns:
        One line per problem, constant text and names; empty when all is well.

    Raises:
        MigrationUnreachable: the server can't be reached.
    """
    try:
        release = load_release(root)
    except MigrationError as refusal:
        return (str(refusal),)
    problems = [
        f"{path.relative_to(release.root)} is stale: run python -m trex_client.migrate refresh"
        for path, text in _generated(release).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if dsn is None:
        return tuple(problems)
    with _connect(dsn) as conn:
        try:
            _require_rights(conn)
            pending = _pending(release, _recorded(conn))
            problems += [f"pending migration: {m.name}" for m in pending]
            if not pending:
                with _owner_transaction(conn):
                    state = schema_state(conn, root=release.root)
                if state.replay_needed:
                    problems.append("functions need a replay: run trex migrate")
                problems += [f"function differs from the release: {s}" for s in state.drifted]
        except MigrationError as refusal:
            problems.append(str(refusal))
    return tuple(problems)


def apply_roles(
    dsn: str, migrator: str | None = None, *, database: str | None = None, root: Path | None = None
) -> None:
    """Run ``sql/roles.sql``, as psql would. Idempotent.

    Args:
        dsn: connection of a DBA with CREATEROLE who may grant CREATE on the database.
        migrator: existing login role that shall be allowed to migrate.
        database: where trex will live; default: the database of this connection.
        root: folder of the SQL files; default: the shipped one.

    Raises:
        MissingRight: this role may not do that.
        MigrationError: another subclass.
    """
    text = ((root or sql_root()) / "roles.sql").read_text(encoding="utf-8")
    with _connect(dsn) as conn:
        variables = {"DBNAME": conn.info.dbname}
        if migrator is not None:
            variables["migrator"] = migrator
        if database is not None:
            variables["database"] = database
        with _named("roles.sql", "CREATEROLE, and the right to grant CREATE on the database"):
            try:
                conn.execute(_resolve_psql(text, variables, conn))
            except psycopg.errors.InvalidRoleSpecification:
                raise MigrationError(
                    "roles.sql", advice="a trex role has rights of its own"
                ) from None


def print_sql(*, root: Path | None = None) -> str:
    """All SQL of a migration from empty, in order, as plain SQL with its transactions."""
    release = load_release(root)
    parts = []
    for migration in release.migrations:
        setting = f"set local trex.migration_checksum = '{migration.checksum}';"
        parts.append(_transaction_text(migration.name, f"{setting}\n{migration.text}"))
    functions = "\n".join(f"-- {f.name}\n{f.text}" for f in release.functions)
    record = f"select trex._record_function_release('{release.function_release}');"
    prologue = "set local role trex_owner;\nset local search_path = pg_catalog, pg_temp;"
    parts.append(_transaction_text("functions", f"{prologue}\n{functions}\n{record}"))
    return "\n".join(parts)


def refresh(*, root: Path | None = None) -> tuple[str, ...]:
    """Rewrite the generated files after an edit of unreleased migrations or of functions.

    Returns:
        Names of the files that changed.

    Raises:
        EditedMigration: a released migration was edited.
    """
    changed = []
    for path, text in _generated(load_release(root)).items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
        changed.append(path.name)
    return tuple(changed)


def _read_migrations(folder: Path) -> tuple[SqlFile, ...]:
    names = sorted(p.stem for p in folder.glob("*.sql") if not p.name.endswith(".rollback.sql"))
    by_number: dict[int, str] = {}
    for name in names:
        match = _FILE_NAME.fullmatch(name)
        if match is None:
            raise BadMigrationFile(name, advice="the name must be NNNN.<what>.sql")
        number = int(match["number"])
        if number in by_number:
            raise DuplicateMigration(by_number[number], name)
        by_number[number] = name
    for expected, (number, name) in enumerate(sorted(by_number.items()), start=1):
        if number != expected:
            raise MigrationGap(name, advice=f"number {expected:04d} is missing")

    files: list[SqlFile] = []
    previous: str | None = None
    for step in sorted(yoyo.read_migrations(glob.escape(str(folder))), key=lambda m: str(m.id)):
        try:
            depends = [d.id for d in step.depends]
        except yoyo.exceptions.BadMigration:
            depends = ["?"]
        if depends != ([] if previous is None else [previous]):
            raise BadMigrationFile(
                step.id, advice="its depends line must name the migration before it"
            )
        files.append(_read_file(Path(step.path), step.id))
        previous = step.id
    return tuple(files)


def _read_functions(root: Path) -> tuple[SqlFile, ...]:
    files: list[SqlFile] = []
    for line in (root / "functions.psql").read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if not line or line.startswith("--"):
            continue
        match = _INCLUDE.fullmatch(line)
        if match is None:
            raise BadMigrationFile("functions.psql", advice="only comments and \\ir lines")
        path = match["path"]
        if not (root / path).is_file():
            raise BadMigrationFile(path, advice="functions.psql names it, but it is missing")
        if any(f.name == path for f in files):
            raise BadMigrationFile(path, advice="functions.psql names it twice")
        files.append(_read_file(root / path, path))
    return tuple(files)


def _read_file(path: Path, name: str) -> SqlFile:
    content = path.read_bytes()
    return SqlFile(name, content.decode("utf-8"), hashlib.sha256(content).hexdigest())


def _read_sums(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    sums: dict[str, str] = {}
    released: list[str] = []
    frozen = True
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if line == _UNRELEASED:
            frozen = False
            continue
        match = _SUM_LINE.fullmatch(line)
        if match is None:
            raise BadMigrationFile("SHA256SUMS")
        sums[match["name"]] = match["sum"]
        if frozen:
            released.append(match["name"])
    return sums, tuple(released)


def _generated(release: Release) -> dict[Path, str]:
    sums = [f"{release.sums[name]}  {name}.sql" for name in release.released]
    sums.append(_UNRELEASED)
    guarded = []
    for m in release.migrations:
        if m.name not in release.released:
            sums.append(f"{m.checksum}  {m.name}.sql")
        guarded.append(
            f"select strpos(:'applied', ' {m.name} ') = 0 as pending \\gset\n"
            "\\if :pending\n"
            f"set local trex.migration_checksum = '{m.checksum}';\n"
            f"\\ir migrations/{m.name}.sql\n"
            "\\endif\n"
        )
    known = " ".join(f"{m.name}:{m.checksum}" for m in release.migrations)
    note = "-- Written by `python -m trex_client.migrate refresh`; a test keeps it true.\n"
    return {
        release.root / "migrations" / "SHA256SUMS": "\n".join(sums) + "\n",
        release.root / "release.psql": (
            f"{note}\\set release_migrations '{known}'\n"
            f"\\set function_release '{release.function_release}'\n"
        ),
        release.root / "migrations.psql": note + "\n" + "\n".join(guarded),
    }


def _transaction_text(title: str, body: str) -> str:
    return f"-- {title}\nbegin;\n{body.rstrip()}\ncommit;\n"


@contextmanager
def _connect(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Open an autocommit connection whose failures don't show the DSN."""
    try:
        conninfo_to_dict(dsn)
        conn = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, client_encoding="UTF8")
    except psycopg.Error:
        raise MigrationUnreachable from None
    try:
        # After waiting for the lock, REPEATABLE READ would still see the time before.
        conn.isolation_level = IsolationLevel.READ_COMMITTED
        yield conn
    finally:
        conn.close()


@contextmanager
def _named(file: str, right: str = "run sql/roles.sql first") -> Iterator[None]:
    """Turn a server error into a MigrationError for ``file``; ``right`` is what it needs."""
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise MigrationLocked(file, advice="a table is in use; run it again") from None
    except psycopg.errors.InsufficientPrivilege:
        raise MissingRight(file, advice=right) from None
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57P0")):
            raise MigrationUnreachable(file, advice="running again is safe") from None
        raise MigrationFailed(file, code=error.sqlstate) from None


def _row(
    conn: psycopg.Connection[Any], query: str, args: tuple[object, ...] = ()
) -> tuple[Any, ...]:
    """The one row of a query that always has one."""
    for row in conn.execute(query, args):
        return tuple(row)
    raise MigrationUnreachable(advice="running again is safe")


def _run_file(conn: psycopg.Connection[Any], file: SqlFile) -> None:
    """Run the text as it stands: several statements, no parameters."""
    with _named(file.name):
        try:
            conn.execute(file.text)
        except psycopg.ProgrammingError as error:
            position = error.diag.statement_position
            if position is None:
                raise
            line = file.text.count("\n", 0, int(position) - 1) + 1
            raise MigrationFailed(file.name, code=error.sqlstate, line=line) from None


def _require_rights(conn: psycopg.Connection[Any]) -> None:
    """Name the right that is missing before anything is tried."""
    may_set = "SET" if conn.info.server_version >= 160_000 else "MEMBER"
    with _named("roles.sql"):
        standby, has_owner = _row(
            conn,
            "select pg_is_in_recovery(),"
            " exists (select from pg_catalog.pg_roles where rolname = 'trex_owner')",
        )
        if standby:
            raise MigrationUnreachable(advice="the server is a standby")
        if not has_owner:
            raise MissingRight(advice="role trex_owner does not exist: run sql/roles.sql first")
        is_member, may_create = _row(
            conn,
            "select pg_has_role('trex_owner', %s),"
            " has_database_privilege('trex_owner', current_database(), 'CREATE')"
            " or to_regnamespace('trex_yoyo') is not null",
            (may_set,),
        )
    if not is_member:
        raise MissingRight(advice="this role may not SET ROLE trex_owner: grant trex_owner to it")
    if not may_create:
        raise MissingRight(advice="trex_owner lacks CREATE on this database: run sql/roles.sql")


@contextmanager
def _owner_transaction(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """A transaction as trex_owner, in which unqualified names mean pg_catalog only."""
    with conn.transaction():
        conn.execute("set local role trex_owner")
        conn.execute("set local search_path = pg_catalog, pg_temp")
        yield


@contextmanager
def _locked_transaction(conn: psycopg.Connection[Any], lock_wait: float) -> Iterator[None]:
    """The same under the migrators' lock, which ends with the transaction."""
    with _owner_transaction(conn):
        conn.execute(
            "select set_config('lock_timeout', %s, true)", (f"{max(1, round(lock_wait * 1000))}ms",)
        )
        try:
            conn.execute("select pg_advisory_xact_lock(%s::int, %s::int)", LOCK_KEYS)
        except psycopg.errors.LockNotAvailable:
            raise MigrationLocked(advice="another migrator is at work; run it again") from None
        conn.execute("select set_config('lock_timeout', %s, true)", (STATEMENT_LOCK_TIMEOUT,))
        yield


def _recorded(conn: psycopg.Connection[Any]) -> dict[str, str | None]:
    """Recorded migrations by name, with their checksum (None after plain yoyo)."""
    with _named("schema_migration"), _owner_transaction(conn):
        if not _row(conn, "select to_regclass('trex.schema_migration') is not null")[0]:
            return {}
        return dict(conn.execute("select name, checksum from trex.schema_migration").fetchall())


def _pending(release: Release, recorded: Mapping[str, str | None]) -> tuple[SqlFile, ...]:
    """Check what is recorded against the files; return what is still to apply, in order."""
    known = {m.name: m for m in release.migrations}
    by_number = {name[:4]: name for name in known}
    for name in sorted(recorded):
        if name not in known:
            same_number = by_number.get(name[:4])
            if same_number is not None:
                raise DuplicateMigration(same_number, name, advice="the database has the second")
            raise UnknownSchema(name, advice="use the release that made it, or a newer one")
        if recorded[name] not in (None, known[name].checksum):
            raise EditedMigration(name, advice="the database was made from another content")
    pending = tuple(m for m in release.migrations if m.name not in recorded)
    if pending and recorded and pending[0].name < max(recorded):
        raise MigrationGap(pending[0].name, advice="a later migration is already applied")
    return pending


def _apply(
    conn: psycopg.Connection[Any], release: Release, migration: SqlFile, lock_wait: float
) -> bool:
    """Apply one file, unless somebody else did while we waited. Returns whether we did."""
    with _named(migration.name), _locked_transaction(conn, lock_wait):
        if migration not in _pending(release, _recorded(conn)):
            return False
        conn.execute(
            "select set_config('trex.migration_checksum', %s, true)", (migration.checksum,)
        )
        _run_file(conn, migration)
        if _recorded(conn).get(migration.name) != migration.checksum:
            raise BadMigrationFile(migration.name, advice="it doesn't record itself")
        return True


def _replay(conn: psycopg.Connection[Any], release: Release, lock_wait: float) -> tuple[str, ...]:
    """Replay the functions and settle the books: checksums after plain yoyo, and yoyo's marks."""
    with _named("functions.psql"), _locked_transaction(conn, lock_wait):
        if _pending(release, _recorded(conn)):
            raise SchemaOutdated(advice="the schema changed while migrating; run it again")
        for migration in release.migrations:
            conn.execute(
                "update trex.schema_migration set checksum = %s"
                " where name = %s and checksum is null",
                (migration.checksum, migration.name),
            )
        for function in release.functions:
            _run_file(conn, function)
        conn.execute("select trex._record_function_release(%s)", (release.function_release,))
        return mark_applied(conn, str(release.root / "migrations"))


def _resolve_psql(text: str, variables: dict[str, str], conn: psycopg.Connection[Any]) -> str:
    """Resolve what roles.sql uses of psql: \\set, \\if :{?name}, \\else, \\endif, :"name"."""
    lines: list[str] = []
    active = [True]
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if word == "\\if":
            name = rest[0].removeprefix(":{?").removesuffix("}")
            active.append(name in variables)
        elif word == "\\else":
            active[-1] = not active[-1]
        elif word == "\\endif":
            active.pop()
        elif not all(active):
            continue
        elif word == "\\set":
            if rest[1].startswith(":"):
                variables[rest[0]] = variables[rest[1][1:]]
        else:
            lines.append(
                re.sub(
                    r':"(\w+)"',
                    lambda m: psycopg.sql.Identifier(variables[m[1]]).as_string(conn),
                    line,
                )
            )
    return "\n".join(lines)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trex_client.migrate")
    parser.add_argument("command", choices=("refresh", "check"))
    if parser.parse_args().command == "refresh":
        sys.stdout.writelines(f"rewrote {name}\n" for name in refresh())
        return 0
    problems = check()
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(_main())
