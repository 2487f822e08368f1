"""Run commands: in this process for speed, as processes of their own where pipes matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.support import canaries
from trex_client.cli import make_app
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

PROGRAM = [sys.executable, "-c", "from trex_client.cli import main; main()"]
_FOREIGN = ("TREX_", "PG")


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    def __post_init__(self) -> None:
        canaries.check(self.err, "what a command notes")

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> dict[str, Any]:
        (row,) = self.rows
        return row


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**kept, "TERM": "dumb", **more}


class Trex:
    """The command `trex` with an environment of its own."""

    def __init__(self, **environment: str) -> None:
        self.environment = environment

    def __call__(self, *arguments: str, stdin: str | None = None, **more: str) -> Outcome:
        env: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith(_FOREIGN)
        }
        env.update({**self.environment, **more})
        result = CliRunner().invoke(make_app(), arguments, input=stdin, env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    def process(self, *arguments: str, stdin: bytes = b"", **more: str) -> Outcome:
        """The same as a process of its own, its output piped."""
        done = subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin,
            capture_output=True,
            env=clean_environment(**self.environment, **more),
            timeout=60,
            check=False,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*PROGRAM, *arguments], env=clean_environment(**self.environment), **options
        )


@pytest.fixture
def nowhere() -> Trex:
    """Without a database: whatever connects ends with code 9."""
    return Trex(TREX_DSN="host=/nonexistent dbname=none", TREX_ACTOR="ann")


@pytest.fixture
def trex(pg_db: Database) -> Trex:
    """With a database and an instance `shop`, bound to the server's superuser."""
    client = PostgresClient(pg_db.connect(), "shop")
    client.register_instance(actor="test", reason="test")
    for role in (pg_db.server.user, "trex_test_app", "trex_test_worker"):
        client.bind(role, actor="test", reason="test")
    return Trex(TREX_DSN=pg_db.dsn(), TREX_INSTANCE="shop", TREX_ACTOR="ann")


@pytest.fixture
def enqueued(trex: Trex) -> Callable[..., int]:
    """Enqueue a message; returns its number."""

    def enqueue(key: str, *options: str) -> int:
        done = trex("enqueue", "post", key, "--payload", "{}", *options)
        assert done.code == 0, done.err
        return int(done.row["message_id"])

    return enqueue
