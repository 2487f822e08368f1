"""Real servers on loopback in front of a real database, and senders that sign with the official
libraries.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import stripe
import uvicorn
from standardwebhooks import Webhook

from tests.support import canaries
from tests.support.processes import COMMAND, toml
from tests.support.rig import KEY, register
from trex_client.telemetry import Telemetry
from trex_client.webhooks import WebhookApp, WebhookConfig, webhook_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp

    from tests.support.databases import Database

SECRETS = {
    "NEW": "whsec_new_canary",
    "OLD": "whsec_old_canary",
    "STD": "whsec_" + "bmV3LXN0YW5kYXJkLWNhbmFyeS1rZXk=",
    "STD_OLD": "whsec_" + "b2xkLXN0YW5kYXJkLWNhbmFyeS1rZXk=",
}
TABLE: dict[str, Any] = {
    "instance": KEY,
    "endpoints": {
        "main": {
            "path": "/stripe/main",
            "provider": "stripe",
            "account": "acct_a",
            "scheme": "stripe",
            "body_max": 20_000,
            "secrets": {"current": {"env": "NEW"}, "previous": {"env": "OLD"}},
        },
        "second": {
            "path": "/stripe/second",
            "provider": "stripe",
            "account": "acct_b",
            "scheme": "stripe",
            "secrets": {"current": {"env": "NEW"}},
        },
        "standard": {
            "provider": "svix",
            "account": "acct_s",
            "scheme": "standard",
            "secrets": {"current": {"env": "STD"}, "previous": {"env": "STD_OLD"}},
        },
    },
}


def config(**changes: Any) -> WebhookConfig:
    return WebhookConfig.of({**TABLE, **changes}, environ=SECRETS)


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve on a free port of loopback; yields the base URL."""
    settings = uvicorn.Config(app, port=0, log_config=None, access_log=False)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(15)
    assert not thread.is_alive()


@dataclass
class Sending:
    """Sends to one server."""

    url: str

    def now(self) -> float:
        """What the server's clock says."""
        return time.time()

    def send(
        self,
        body: bytes | str,
        headers: list[tuple[str, str]],
        path: str = "/stripe/main",
        kind: str | None = "application/json; charset=utf-8",
        **options: Any,
    ) -> httpx.Response:
        raw = body.encode() if isinstance(body, str) else body
        given = [*headers, *([("Content-Type", kind)] if kind else [])]
        return httpx.post(
            self.url + path, content=raw, headers=given, trust_env=False, timeout=30, **options
        )

    def stripe(self, body: str, secret: str = "NEW", at: int | None = None) -> str:
        """The header as the official library makes it."""
        when = int(self.now()) if at is None else at
        return str(stripe.WebhookSignature.generate_signature_header(body, SECRETS[secret], when))

    def signed(self, body: str, path: str = "/stripe/main", **how: Any) -> httpx.Response:
        return self.send(body, [("Stripe-Signature", self.stripe(body, **how))], path)

    def standard(
        self, body: str, event_id: str = "msg_1", secret: str = "STD", at: float | None = None
    ) -> list[tuple[str, str]]:
        when = datetime.fromtimestamp(int(self.now() if at is None else at), UTC)
        signature = Webhook(SECRETS[secret]).sign(event_id, when, body)
        return [
            ("webhook-id", event_id),
            ("webhook-timestamp", str(int(when.timestamp()))),
            ("webhook-signature", signature),
        ]


@dataclass
class Sender(Sending):
    """Sends to a server in this process; `frozen` is what its clock says, None: the time."""

    log: io.StringIO
    telemetry: Telemetry
    app: WebhookApp
    frozen: list[float | None] = field(default_factory=lambda: [None])

    def now(self) -> float:
        return time.time() if self.frozen[0] is None else self.frozen[0]

    def result(self, name: str) -> float:
        """The counter of one result."""
        value = self.telemetry.registry.get_sample_value(
            "trex_webhooks_total", {"trex_instance": KEY, "result": name}
        )
        assert value is not None
        return value


@contextmanager
def process(database: Database, folder: Path) -> Iterator[Sending]:
    """`trex inbox serve` in a process of its own, that is killed when the block ends."""
    settings = folder / "webhooks.toml"
    settings.write_text(toml(TABLE))
    log = folder / "log"
    environ = {"PATH": os.environ["PATH"], "TREX_DSN": database.dsn("app"), **SECRETS}
    with log.open("wb") as stream:
        served = subprocess.Popen(
            [*COMMAND, "inbox", "serve", "--config", str(settings), "--listen", "127.0.0.1:0"],
            stderr=stream, env=environ,
        )  # fmt: skip
    try:
        while not (found := re.search(r'^.*"serving".*\n', log.read_text(), re.MULTILINE)):
            assert served.poll() is None, log.read_text()
            time.sleep(0.02)
        yield Sending(f"http://127.0.0.1:{json.loads(found[0])['port']}")
    finally:
        served.kill()
        served.wait()
    canaries.check(log.read_text(), "the endpoint's log")


@contextmanager
def sender(database: Database, **options: Any) -> Iterator[Sender]:
    log = io.StringIO()
    telemetry = Telemetry(KEY, stream=log)
    frozen: list[float | None] = [None]
    app = webhook_app(
        options.pop("config", None) or config(),
        options.pop("dsn", None) or database.dsn("app"),
        telemetry=telemetry,
        clock=lambda: time.time() if frozen[0] is None else frozen[0],
        **options,
    )
    with serving(app) as url:
        yield Sender(url, log, telemetry, app, frozen)
    for text in (log.getvalue(), telemetry.render().decode()):
        canaries.check(text, "the endpoint's log and metrics")
        for secret in ("canary", "acct_", "evt_", *SECRETS.values()):
            assert secret not in text


@pytest.fixture
def shop(pg_db: Database) -> Any:
    return register(pg_db)


@pytest.fixture
def hooks(pg_db: Database, shop: Any) -> Iterator[Sender]:
    with sender(pg_db) as made:
        yield made


@pytest.fixture
def rows(pg_db: Database, shop: Any) -> Callable[[], list[tuple[Any, ...]]]:
    """All stored events."""

    def read() -> list[tuple[Any, ...]]:
        return (
            pg_db.connect()
            .execute(
                "select event_id::text, event_type::text, object_id::text, account::text, raw,"
                " key_id::text from trex.inbox_event order by message_id"
            )
            .fetchall()
        )

    return read
