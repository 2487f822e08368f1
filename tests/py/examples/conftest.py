"""An instance with awkward movements, a ledger, and the programs that the examples need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from trex_client.adapters import wire_key
from trex_client.ledger import install
from trex_client.model import Movement
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
INSTANCE = "shop:eu-1"

AWKWARD = [
    "plain",
    "it's",
    'double "quotes"',
    "back\\slash \\n \\' \\x41",
    ":'key' :key :\"key\" $1 %s",
    "`touch /tmp/no` $(touch /tmp/no) ${HOME}",
    "; drop table trex.message; --",
    "umlaut ä, kanji 漢, emoji 🦖, soft\u00adhyphen",
    "line\u2028separator",
    "a  b",
    "{json: [1,2]}",
    "*? [a-z] ~ | & < > !",
]


def uri(dsn: str) -> str:
    """A connection string as URI, which is all that other languages know."""
    part = {k: quote(str(v), safe="") for k, v in conninfo_to_dict(dsn).items()}
    secret = f":{part['password']}" if "password" in part else ""
    return f"postgres://{part['user']}{secret}@{part['host']}:{part['port']}/{part['dbname']}"


@dataclass
class Shop:
    """Databases, and what was enqueued."""

    trex: Database
    ledger: Database
    client: PostgresClient
    operator: PostgresClient
    movements: list[Movement] = field(default_factory=list)

    def enqueue(self, movements: list[Movement]) -> list[int]:
        """Enqueue and remember; returns message numbers."""
        self.movements += movements
        return [done.message_id for done in self.client.enqueue_many(movements)]

    def key(self, movement: Movement) -> str:
        return wire_key(INSTANCE, "outbox", movement.idempotency_key)

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the ledger's database."""
        return self.ledger.connect().execute(query, values).fetchall()

    def environment(self) -> dict[str, str]:
        """What a worker is told; nothing else of ours."""
        part = conninfo_to_dict(self.trex.dsn("worker", tcp=True))
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": "/nonexistent",
            "PGHOST": str(part["host"]),
            "PGPORT": str(part["port"]),
            "PGUSER": str(part["user"]),
            "PGPASSWORD": str(part.get("password") or ""),
            "PGDATABASE": str(part["dbname"]),
            "TREX_DSN": uri(self.trex.dsn("worker", tcp=True)),
            "TREX_INSTANCE": INSTANCE,
            "LEDGER_DSN": uri(self.ledger.dsn(tcp=True)),
            "LEDGER_SERVICE": "ledger",
        }


@pytest.fixture
def shop(pg_db: Database, new_db: Callable[..., Database]) -> Shop:
    ledger = new_db(pg_db.version, migrated=False)
    install(ledger.dsn())
    operator = PostgresClient(pg_db.connect("operator"), INSTANCE)
    operator.register_instance(
        actor="test",
        reason="test",
        backoff_base=timedelta(milliseconds=1),
        backoff_cap=timedelta(milliseconds=10),
    )
    for role in ("app", "worker", "operator"):
        operator.bind(f"trex_test_{role}", actor="test", reason="test")
    return Shop(pg_db, ledger, PostgresClient(pg_db.connect("app"), INSTANCE), operator)


def awkward_movements() -> list[Movement]:
    """Text that must arrive as it is, whatever a shell or another language makes of it."""
    found = [
        Movement(
            "ledger.post", f"key {text}", {"text": text, "nested": [None, True, {"": text}]},
            account=f"account {text}", currency="BTC", cash_delta=Decimal("-0.00000001"),
        )
        for text in AWKWARD
    ]  # fmt: skip
    found.append(
        Movement("ledger.post", "line breaks", {"text": "a\nb\tc\rd"}, account="x", currency="USD",
                 cash_delta=Decimal("90071992547409.93"))
    )  # fmt: skip
    found.append(
        Movement(
            "ledger.post", "big numbers", payload_json='{"n": 12345678901234567890.10, "e": 1e3}'
        )
    )
    found.append(Movement("note.send", "no cash", ["just", "a", "note"]))
    return found


@pytest.fixture(scope="session")
def node_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node example in a folder of its own, with `pg` from npm."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("node and npm are needed: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("node") / "worker"
    shutil.copytree(EXAMPLES / "node-worker", folder, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "worker.mjs"


@pytest.fixture
def command(
    request: pytest.FixtureRequest, shop: Shop, tmp_path: Path
) -> Callable[[str], tuple[list[str], dict[str, str]]]:
    """How to run an example's worker once: `command("node")` -> arguments and environment."""

    def make(kind: str) -> tuple[list[str], dict[str, str]]:
        environment = shop.environment()
        if kind == "psql":
            services = tmp_path / "pg_service.conf"
            part = conninfo_to_dict(shop.ledger.dsn(tcp=True))
            services.write_text("[ledger]\n" + "".join(f"{k}={v}\n" for k, v in part.items()))
            environment["PGSERVICEFILE"] = str(services)
            embedded = shop.trex.server.embedded
            if embedded is not None:
                environment["PATH"] = f"{embedded.bindir}:{environment['PATH']}"
            return ["bash", str(EXAMPLES / "psql-worker" / "worker.sh")], environment
        if kind == "node":
            return ["node", str(request.getfixturevalue("node_worker"))], environment
        environment["PYTHONPATH"] = str(ROOT)
        return [sys.executable, str(EXAMPLES / "python_worker.py")], environment

    return make
