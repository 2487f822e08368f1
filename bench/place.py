"""The server that is measured on: its databases, its programs, and the CPU time that it used."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from trex_client import migrate
from trex_client.embedded import EmbeddedServer, find_servers
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

INSTANCE = "pay"
ROLES = {"bench_app": "trex_app", "bench_worker": "trex_worker"}
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "40",
}


class Place:
    """An embedded server with roles, and databases copied from templates that are loaded once."""

    def __init__(self, version: int | None = None) -> None:
        found = {binaries.version: binaries for binaries in find_servers()}
        if version is not None and version not in found:
            raise SystemExit(f"no PostgreSQL {version}; there is {sorted(found)}")
        self.server = EmbeddedServer(found[version] if version else None, settings=SETTINGS)
        self._templates: set[str] = set()

    def __enter__(self) -> Self:
        self.server.__enter__()
        migrate.apply_roles(self.server.dsn())
        for role, group in ROLES.items():
            self._admin(f"create role {role} login in role {group}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.__exit__(kind, error, trace)

    def dsn(self, dbname: str, user: str = "postgres") -> str:
        """Connection string over the Unix socket."""
        return self.server.dsn(dbname, user)

    def _admin(self, *statements: str) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement)

    def fresh(self, name: str, template: str = "template0") -> str:
        """Make the database anew; templates are copied file by file."""
        self._admin(
            f"drop database if exists {name} with (force)",
            f"create database {name} template {template} strategy file_copy",
        )
        return name

    def template(self, name: str, load: Callable[[str], None]) -> str:
        """A database that `load` fills the first time."""
        if name not in self._templates:
            self.fresh(name)
            load(name)
            with psycopg.connect(self.dsn(name), autocommit=True) as conn:
                conn.execute("vacuum analyze")
            self._admin(f"alter database {name} with allow_connections false")
            while self._rows(f"select from pg_stat_activity where datname = '{name}'"):
                time.sleep(0.05)
            self._templates.add(name)
        return name

    def _rows(self, query: str) -> list[Any]:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as conn:
            return conn.execute(query).fetchall()

    def with_trex(self, name: str) -> None:
        """Install trex in the database, with one instance that `ROLES` may act for."""
        migrate.apply_roles(self.dsn(name))
        migrate.migrate(self.dsn(name))
        with psycopg.connect(self.dsn(name), autocommit=True) as conn:
            client = PostgresClient(conn, INSTANCE)
            client.register_instance(actor="bench", reason="measure")
            for role in ROLES:
                client.bind(role, actor="bench", reason="measure")

    def cpu(self) -> float:
        """CPU seconds of the server's processes up to now, those that ended included."""
        pid = self.server.pid
        ticks = 0
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(entry.parent.name) == pid:
                ticks += sum(int(field) for field in fields[11:15])
            elif int(fields[1]) == pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def describe(self) -> dict[str, Any]:
        """The machine, as far as it matters for the numbers."""
        model = "unknown"
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "cpu": model,
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(memory / 2**30),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "psycopg": psycopg.__version__,
            "postgresql": self.server.binaries.full,
            "settings": SETTINGS,
            "fdatasync_us": round(1e6 * self._fdatasync()),
            "load": os.getloadavg()[0],
        }

    def _fdatasync(self, times: int = 200) -> float:
        """Seconds that one 8 kB write and its fdatasync take where the server keeps its data."""
        path = self.server.root / "fdatasync"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.write(handle, bytes(8192 * 2))
            start = time.perf_counter()
            for _ in range(times):
                os.pwrite(handle, bytes(8192), 0)
                os.fdatasync(handle)
            return (time.perf_counter() - start) / times
        finally:
            os.close(handle)
            path.unlink()
