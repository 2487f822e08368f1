"""Private servers start as any user, are closed to others, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.criteria import ROOT
from trex_client import embedded
from trex_client.embedded import EmbeddedError, EmbeddedServer, find_servers

pytestmark = pytest.mark.criterion("ac-0043")

SERVERS = find_servers()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_server = pytest.mark.skipif(not SERVERS, reason="needs a PostgreSQL server")

# Runs in another process: starts a server, says where it is, and waits to be ended.
CHILD = """
import json, select, sys
sys.path.insert(0, sys.argv[1])
from trex_client.embedded import EmbeddedServer, find_servers
by_version = {s.version: s for s in find_servers()}
with EmbeddedServer(by_version[int(sys.argv[2])], settings={"fsync": "off"}) as server:
    print(json.dumps({
        "root": str(server.root), "data": str(server.data), "dsn": server.dsn(), "pid": server.pid,
    }), flush=True)
    # A signal that arrives just before a call starts to block doesn't interrupt it.
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
"""


@pytest.fixture(params=SERVERS, ids=lambda found: f"pg{found.version}")
def binaries(request):
    return request.param


def value(dsn: str, query: str = "select 1") -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(query).fetchone()
        return row[0] if row else None


def gone(predicate, seconds: float = 20.0) -> bool:
    """Wait until `predicate` is false; say whether it became so."""
    end = time.monotonic() + seconds
    while predicate() and time.monotonic() < end:
        time.sleep(0.02)
    return not predicate()


def works_in(data: str) -> list[int]:
    """Return the processes whose working folder is a data folder."""
    pids = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) == data:
                pids.append(int(link.parent.name))
    return pids


def test_find_servers_lists_each_version_once_newest_first():
    versions = [found.version for found in SERVERS]
    assert versions == sorted(set(versions), reverse=True)
    assert all(found.full.startswith(str(found.version)) for found in SERVERS)
    assert all((found.bindir / "initdb").is_file() for found in SERVERS)


@needs_server
def test_only_named_folders_count(tmp_path, monkeypatch):
    shutil.copytree(SERVERS[0].bindir, tmp_path / "bin", symlinks=True)
    monkeypatch.setenv("TREX_PG_BINDIRS", f"/nowhere{os.pathsep}{tmp_path / 'bin'}")
    for name, script in (("postgres", "echo 'postgres (PostgreSQL) 99.1'"), ("initdb", "")):
        (tmp_path / "bin" / name).unlink()
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (found,) = find_servers()
    assert (found.full, found.bindir) == ("99.1", tmp_path / "bin")


def test_without_servers_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(embedded, "find_servers", list)
    with pytest.raises(EmbeddedError, match=r"trex\[embedded\]"):
        EmbeddedServer()


def test_start_use_restart_crash_close(binaries):
    with EmbeddedServer(binaries, settings={"work_mem": "7MB", "cluster_name": "it's"}) as server:
        root, data = server.root, str(server.data)
        for tcp in (False, True):
            assert value(server.dsn(tcp=tcp), "show server_encoding") == "UTF8"
        assert value(server.dsn(), "show work_mem") == "7MB"
        assert value(server.dsn(), "show cluster_name") == "it's"
        collation = "select datcollate from pg_database where datname = 'postgres'"
        assert value(server.dsn(), collation) == "C.UTF-8"
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("create table kept (n int)")
            conn.execute("insert into kept values (42)")
        port, pid = server.port, server.pid
        server.restart()
        assert (server.port, server.pid != pid) == (port, True)
        assert value(server.dsn(), "select n from kept") == 42
        server.kill9()
        assert (server.running, server.pid) == (False, None)
        assert works_in(data) == []
        server.start()
        assert value(server.dsn(), "select n from kept") == 42
        server.stop("immediate")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn())
    assert not root.exists()
    assert works_in(data) == []
    server.close()


def test_a_second_start_is_refused(binaries):
    with EmbeddedServer(binaries) as server, pytest.raises(EmbeddedError):
        server.start()


def test_a_taken_port_is_replaced(binaries, monkeypatch):
    with EmbeddedServer(binaries) as first:
        ports = iter([first.port])
        real = embedded._free_port
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports, None) or real())
        with EmbeddedServer(binaries) as second:
            assert second.port != first.port
            assert value(second.dsn(tcp=True)) == 1


def test_a_failed_start_names_the_reason_and_leaves_nothing(binaries):
    server = EmbeddedServer(binaries, settings={"shared_buffers": "much"})
    try:
        server.create()
        root = server.root
        with pytest.raises(EmbeddedError, match=r"did not start: .*FATAL") as caught:
            server.start()
    finally:
        server.close()
    assert server.password not in str(caught.value)
    assert not root.exists()


def test_only_the_owner_and_the_password_get_in(binaries):
    with EmbeddedServer(binaries) as server:
        for folder in (server.socket_dir, server.data):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.log.stat().st_mode) == 0o600
        assert server.password not in repr(server)
        assert server.password not in server.dsn()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn(tcp=True), password="wrong")
        listens = value(server.dsn(), "show listen_addresses")
        assert listens == "127.0.0.1"


def test_trust_lets_roles_without_password_in(binaries):
    with EmbeddedServer(binaries, auth="trust") as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("create role guest login")
        assert value(server.dsn(user="guest", tcp=True).replace(server.password, "none")) == 1


def test_a_standby_is_made_by_prepare(binaries):
    with EmbeddedServer(binaries) as primary:

        def copy(server: EmbeddedServer) -> None:
            server.run("pg_basebackup", "-D", server.data, "-R", "-d", primary.dsn(tcp=True))

        with EmbeddedServer(binaries, prepare=copy) as standby:
            assert value(standby.dsn(), "select pg_is_in_recovery()") is True
            assert value(primary.dsn(), "select pg_is_in_recovery()") is False
        assert value(primary.dsn()) == 1


def test_run_raises_for_a_failing_program(binaries):
    with EmbeddedServer(binaries) as server:
        assert server.run("psql", "-Atc", "select 7", "postgres").stdout == "7\n"
        with pytest.raises(EmbeddedError, match="psql exited with"):
            server.run("psql", "-c", "nonsense", "postgres")


def child(
    version: int, *, python: str = sys.executable, root: Path = ROOT, **options: Any
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-c", CHILD, str(root), str(version)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def announcement(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the child did not start its server"
    told: dict[str, str] = json.loads(line)
    return told


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_owner_dies(binaries, ending):
    process = child(binaries.version)
    told = announcement(process)
    process.send_signal(ending)
    process.wait(30)
    assert gone(lambda: Path(told["root"]).exists())
    assert gone(lambda: works_in(told["data"]))


def test_what_a_dead_watchdog_left_is_removed_at_the_next_start(binaries):
    process = child(binaries.version)
    told = announcement(process)
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if b"trex-watchdog" in words and told["root"].encode() in words:
                os.kill(int(entry.parent.name), signal.SIGKILL)
    process.kill()
    process.wait(30)
    assert Path(told["root"]).exists()
    embedded.remove_stale()
    assert not Path(told["root"]).exists()
    assert gone(lambda: works_in(told["data"]))


def test_a_living_server_is_not_taken_for_stale(binaries):
    with EmbeddedServer(binaries) as server:
        embedded.remove_stale()
        assert value(server.dsn()) == 1


@needs_root
def test_as_root_the_server_runs_as_somebody_else(binaries):
    with EmbeddedServer(binaries) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0


@needs_root
def test_as_root_without_any_user_the_error_says_so(monkeypatch, binaries):
    monkeypatch.setenv("TREX_PG_USER", "root")
    monkeypatch.setattr(embedded, "_FALLBACK_USERS", ("nobody-of-that-name",))
    with pytest.raises(EmbeddedError, match="TREX_PG_USER"), EmbeddedServer(binaries):
        pass


@needs_root
def test_as_root_programs_that_others_cannot_reach_are_copied(tmp_path, monkeypatch):
    wheel = next((s for s in SERVERS if "pginstall" in str(s.bindir)), None)
    if wheel is None:
        pytest.skip("needs the wheel")
    package = wheel.bindir.parent.parent
    hidden = tmp_path / "hidden"
    shutil.copytree(package, hidden / package.name, symlinks=True)
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, hidden / libraries.name)
    hidden.chmod(0o700)
    bindir = hidden / package.name / wheel.bindir.relative_to(package)
    monkeypatch.setenv("TREX_PG_BINDIRS", str(bindir))
    found = next(s for s in find_servers() if s.version == wheel.version)
    assert found.bindir == bindir
    with EmbeddedServer(found) as server:
        assert server.bindir.is_relative_to(server.root)
        assert value(server.dsn()) == 1
        assert "PostgreSQL" in server.run("pg_dump", "--version").stdout


@needs_root
def test_as_a_normal_user(tmp_path_factory):
    user = pwd.getpwnam("nobody")
    # The interpreter, its packages and this checkout may lie where that user can't read.
    python = next(
        (
            path
            for path in ("/usr/bin/python3", sys.executable)
            if subprocess.run(
                [
                    path,
                    "-c",
                    f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})",
                ],
                user=user.pw_uid,
                check=False,
                cwd="/",
            ).returncode
            == 0
        ),
        None,
    )
    system = next((s for s in SERVERS if s.bindir.is_relative_to("/usr")), None)
    if python is None or system is None:
        pytest.skip("needs a Python and a PostgreSQL that a normal user can run")
    code = Path("/tmp") / f"trex-code-{os.getpid()}"
    try:
        shutil.copytree(ROOT / "trex_client", code / "trex_client")
        for package in ("psycopg", "psycopg_binary", "psycopg_binary.libs", "typing_extensions.py"):
            source = Path(psycopg.__file__).parent.parent / package
            (shutil.copytree if source.is_dir() else shutil.copy)(source, code / package)
        subprocess.run(["chmod", "-R", "a+rX", code], check=True)
        process = child(
            system.version,
            python=python,
            root=code,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        )
        told = announcement(process)
        assert Path(f"/proc/{told['pid']}").stat().st_uid == user.pw_uid
        assert value(told["dsn"]) == 1
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
        assert not Path(told["root"]).exists()
    finally:
        shutil.rmtree(code, ignore_errors=True)
