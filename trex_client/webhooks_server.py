"""Serves the webhook application alone, with uvicorn."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import uvicorn

from trex_client.errors import InvalidArgument
from trex_client.telemetry import Event, Telemetry
from trex_client.webhooks import webhook_app
from trex_client.worker.health import HealthServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trex_client.telemetry import Level
    from trex_client.webhooks import WebhookApp, WebhookConfig


def run(
    read: Callable[[], WebhookConfig],
    dsn: str,
    *,
    listen: tuple[str, int],
    http: tuple[str, int] | None = None,
    connections: int = 8,
    level: Level = "info",
) -> None:
    """Serve until SIGTERM or SIGINT; requests under way get 30 seconds to end. SIGHUP reads the
    configuration and its secrets again; one that can't be read changes nothing.

    Raises:
        InvalidArgument: the configuration, the address can't be bound, or the connection string
        can't be read.
    """
    asyncio.run(_run(read, dsn, listen, http, connections, level))


async def _run(
    read: Callable[[], WebhookConfig],
    dsn: str,
    listen: tuple[str, int],
    http: tuple[str, int] | None,
    connections: int,
    level: Level,
) -> None:
    config = read()
    topics = {endpoint.provider for endpoint in config.endpoints}
    telemetry = Telemetry(config.instance_key, topics=topics, level=level)
    app = webhook_app(config, dsn, telemetry=telemetry, connections=connections)
    try:
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        bound = socket.create_server(listen, family=family, backlog=512)
    except OSError:
        raise InvalidArgument("the address can't be bound") from None
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=1000,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=30,
            # The sender's address is nothing that is used, so no header is believed about it.
            proxy_headers=False,
        )
    )
    loop = asyncio.get_running_loop()
    telemetry.own_process(loop)
    loop.add_signal_handler(signal.SIGHUP, _reload, app, read, telemetry)
    # uvicorn drains at a signal and raises it again at the end: to end well is all that is left.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    async with AsyncExitStack() as stack:
        if http is not None:
            health = HealthServer(*http, telemetry=telemetry, ready=lambda: server.started)
            await stack.enter_async_context(health)
        telemetry.event(Event.STARTED, pid=os.getpid())
        telemetry.event(Event.SERVING, port=bound.getsockname()[1])
        await server.serve(sockets=[bound])
        telemetry.event(Event.STOPPED, exit_code=0)


def _reload(app: WebhookApp, read: Callable[[], WebhookConfig], telemetry: Telemetry) -> None:
    try:
        config = read()
        app.reload(config)
    except InvalidArgument:
        telemetry.event(Event.RELOADED, "error", result="failed")
    else:
        telemetry.event(Event.RELOADED, result="ok", count=len(config.endpoints))
