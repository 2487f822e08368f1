"""A release that a test may change, psql and pg_dump of the right version, plain login roles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from trex_client import migrate as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database, Server

MIGRATOR = "trex_test_migrator"

FILE = """-- depends: {depends}
set local role trex_owner;
set local lock_timeout = '{lock_timeout}';
set local search_path = pg_catalog, pg_temp;

{body}

insert into trex.schema_migration (name, checksum)
values ('{name}', nullif(current_setting('trex.migration_checksum', true), ''));
"""


@dataclass
class Tree:
    """A copy of the SQL files."""

    root: Path

    def path(self, name: str) -> Path:
        return self.root / "migrations" / f"{name}.sql"

    @property
    def last(self) -> str:
        return max(p.stem for p in (self.root / "migrations").glob("*.sql"))

    def add(self, what: str, body: str, *, number: int | None = None, lock_timeout="500ms") -> str:
        """Write one more migration; return its name."""
        last = self.last
        name = f"{number or int(last[:4]) + 1:04d}.{what}"
        self.path(name).write_text(
            FILE.format(depends=last, name=name, body=body, lock_timeout=lock_timeout)
        )
        return name

    def copy(self, to: Path) -> Tree:
        shutil.copytree(self.root, to)
        return Tree(to)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    copied = Tree(m.sql_root()).copy(tmp_path / "sql")
    m.refresh(root=copied.root)
    return copied


@dataclass
class Tools:
    """Programs of the server's own version, run against one database."""

    bindir: Path | None

    def psql(
        self,
        db: Database,
        *args: str | Path,
        role: str | None = None,
        file: Path | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        command = [self._program("psql"), "-X", "-d", db.dsn(role), *map(str, args)]
        for name, value in variables.items():
            command += ["-v", f"{name}={value}"]
        if file is not None:
            command += ["-f", str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def dump(self, database: Database) -> str:
        """`pg_dump -s` without the random tokens that newer versions put around it."""
        done = subprocess.run(
            [self._program("pg_dump"), "-s", "-d", database.dsn()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return re.sub(r"^\\(un)?restrict .*\n", "", done.stdout, flags=re.MULTILINE)

    def yoyo(self, database: Database, role: str, root: Path) -> None:
        """Plain `yoyo apply`, as sql/migrations/README.md says."""
        part = {k: quote(str(v), safe="") for k, v in conninfo_to_dict(database.dsn(role)).items()}
        secret = f":{part['password']}" if "password" in part else ""
        uri = (
            f"postgresql+psycopg://{part['user']}{secret}@/{part['dbname']}"
            f"?host={part['host']}&port={part['port']}"
            "&schema=trex_yoyo&options=-c%20role%3Dtrex_owner"
        )
        options = ["--batch", "--no-config-file", "--database", uri]
        subprocess.run(
            [sys.executable, "-m", "yoyo", "apply", *options, str(root / "migrations")],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=str(self.bindir) if self.bindir else os.environ["PATH"])
        if found is None:
            pytest.skip(f"{name} is not installed")
        return found


@pytest.fixture
def tools(pg_server: Server) -> Tools:
    return Tools(pg_server.embedded.bindir if pg_server.embedded else None)


def make_migrator(database: Database) -> None:
    """Roles, and a login role that may do nothing but migrate."""
    database.server.create_roles(database.dbname)
    with database.server.admin() as conn:
        database.server._create_login(conn, MIGRATOR, ("trex_owner",))
        conn.execute(
            sql.SQL("alter role {} nosuperuser nocreatedb nocreaterole").format(
                sql.Identifier(MIGRATOR)
            )
        )


@pytest.fixture
def ready_db(empty_db: Database) -> Database:
    """An empty database whose DBA has run roles.sql for MIGRATOR."""
    make_migrator(empty_db)
    return empty_db


@pytest.fixture
def second_db(new_db: Callable[..., Database], pg_server: Server) -> Database:
    """Another one like `ready_db`."""
    database = new_db(pg_server.version, migrated=False)
    make_migrator(database)
    return database
