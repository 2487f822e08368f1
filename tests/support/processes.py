"""Real daemons in processes of their own, and a proxy whose connections can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.support import canaries

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Iterator

COMMAND = (sys.executable, "-c", "from trex_client.cli import main; main()")
ROOT = Path(__file__).parents[2]


def toml(table: dict[str, Any]) -> str:
    """Write a table as TOML: enough for adapters' settings."""
    lines = [f"{name} = {_value(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


@dataclass
class Daemon:
    """One process; its log is in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    async def ended(self, seconds: float = 30.0) -> int:
        async with asyncio.timeout(seconds):
            while (code := self.process.poll()) is None:
                await asyncio.sleep(0.02)
        return code


@dataclass
class Daemons:
    """Starts daemons for one database and one adapter; all are killed at the end."""

    folder: Path
    dsn: str
    adapter: dict[str, Any]
    key: str = "inst"
    environ: dict[str, str] = field(default_factory=dict)
    started: list[Daemon] = field(default_factory=list)

    def start(self, *arguments: str, command: str = "daemon", **environ: str) -> Daemon:
        number = len(self.started)
        config = self.folder / f"adapter-{number}.toml"
        config.write_text(toml(self.adapter))
        log = self.folder / f"log-{number}"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*COMMAND, command, "--adapter-config", str(config), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                cwd=ROOT,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ROOT),
                    "TREX_DSN": self.dsn,
                    "TREX_INSTANCE": self.key,
                    **self.environ,
                    **environ,
                },
            )
        daemon = Daemon(process, log)
        self.started.append(daemon)
        canaries.watch("a daemon's log", lambda: log.read_text(errors="replace"))
        return daemon

    def close(self) -> None:
        for daemon in self.started:
            if daemon.process.poll() is None:
                daemon.process.kill()
            daemon.process.wait()
            if daemon.process.stdout is not None:
                daemon.process.stdout.close()


@contextlib.contextmanager
def daemons(folder: Path, dsn: str, adapter: dict[str, Any], **more: Any) -> Iterator[Daemons]:
    group = Daemons(folder, dsn, adapter, **more)
    try:
        yield group
    finally:
        group.close()


@dataclass
class Proxy:
    """Passes TCP on to a port. `cut` ends all connections, `stall` lets nothing through. `lose`:
    the connection over which `marker` is sent next is cut before it gets there, or before the
    answer comes back.
    """

    target: int
    host: str = "127.0.0.1"
    port: int = 0
    lose: Literal["request", "answer", ""] = ""
    marker: bytes = b""
    stalled: bool = False
    cuts: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        self.cuts += len(self.writers)
        for writer in list(self.writers):
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.host.startswith("/"):
                path = f"{self.host}/.s.PGSQL.{self.target}"
                back_reader, back_writer = await asyncio.open_unix_connection(path)
            else:
                back_reader, back_writer = await asyncio.open_connection(self.host, self.target)
        except OSError:
            writer.transport.abort()
            return
        self.writers |= {writer, back_writer}
        try:
            doomed = asyncio.Event()
            await asyncio.gather(
                self._pass(reader, back_writer, doomed, sends=True),
                self._pass(back_reader, writer, doomed),
            )
        finally:
            for one in (writer, back_writer):
                one.transport.abort()
            self.writers -= {writer, back_writer}

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        doomed: asyncio.Event,
        *,
        sends: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if sends and self.lose and self.marker in data:
                    lost, self.lose = self.lose, ""
                    if lost == "request":
                        break
                    doomed.set()
                elif not sends and doomed.is_set():
                    break
                while self.stalled:
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(target: int, host: str = "127.0.0.1") -> AsyncIterator[Proxy]:
    made = Proxy(target, host)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.stalled = False
        made.cut()
        await asyncio.sleep(0.05)
