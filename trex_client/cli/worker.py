"""Deliver: as a daemon, once for what is due now, or for one correlation."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trex_client.cli._exit import ExitCode, exit_codes, leave, note
from trex_client.cli._output import show, wants_json
from trex_client.cli._run import conninfo, help_text, instance_key
from trex_client.cli._types import (
    BoxOption,
    DsnFile,
    InstanceOption,
    Json,
    Lease,
    Service,
    parse_duration,
)

if TYPE_CHECKING:
    from trex_client.worker import Exit, Program, RunCounts

PANEL = "Deliver"

AdapterFile = Annotated[
    Path | None,
    typer.Option(
        "--adapter-config",
        envvar="TREX_ADAPTER_CONFIG",
        help="TOML file that says where to deliver; without it nothing is delivered.",
    ),
]
HandlersOption = Annotated[
    str | None,
    typer.Option(
        "--handlers",
        envvar="TREX_HANDLERS",
        metavar="MODULE:MAPPING",
        help="Python callables by event type, for --box inbox, instead of an adapter.",
    ),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", help="Deliveries under way at once.")
]
Batch = Annotated[int, typer.Option("--batch", help="Most claims of one round trip, to 1000.")]
NoListen = Annotated[
    bool,
    typer.Option(
        "--no-listen", help="Poll only, prepare nothing: behind a pooler in transaction mode."
    ),
]
Drain = Annotated[
    timedelta | None,
    typer.Option(
        "--drain",
        parser=parse_duration,
        metavar="DURATION",
        help="How long calls under way may go on after SIGTERM; default 30s.",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--label-topic", help="A topic that logs and metrics may name; repeat it."),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option("--log-level", metavar="debug|info|warning|error", help="Least level to log."),
]
Reach = Annotated[
    timedelta | None,
    typer.Option(
        "--reach",
        parser=parse_duration,
        metavar="DURATION",
        help="How long to try to reach the database; default 30s.",
    ),
]

_CODES = """
\b
Exit codes besides the usual ones:
    0  drained; or everything that was claimed is delivered
    3  the instance is unknown or not bound to this role
    4  (process) nothing of this correlation can be claimed now
   12  (backfill, process) some of what was claimed isn't delivered: see the counts
   13  the drain time was over; calls under way are left to their leases
   14  an invariant is violated (TX901, TX902): page somebody, don't restart
  130  second signal: left at once
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    _register_daemon(app)
    _register_backfill(app)
    _register_process(app)


def _register_daemon(app: typer.Typer) -> None:
    summary = (
        "Deliver for ever: claim, deliver, record. SIGTERM or SIGINT: claim nothing more, give"
        " back what hasn't begun, let calls under way end, report, leave. Logs are JSON lines on"
        " stderr. Alerts are log events too, and are posted to TREX_ALERT_WEBHOOK when that is set;"
        " private networks that it may lead into are named in TREX_ALERT_NETWORKS."
    )

    @app.command(
        "daemon",
        help=_help(
            summary,
            """
            trex daemon --adapter-config ledger.toml
            trex daemon --adapter-config ledger.toml --http 127.0.0.1:9464 -c 500
            trex daemon --no-listen --lease 2m --drain 90s
            trex daemon --box inbox --handlers shop.events:HANDLERS -c 8
            """,
        ),
        rich_help_panel=PANEL,
    )
    def daemon_command(
        instance: InstanceOption = "",
        adapter_config: AdapterFile = None,
        handlers: HandlersOption = None,
        concurrency: Concurrency = 256,
        batch: Batch = 500,
        lease: Lease = None,
        box: BoxOption = "outbox",
        poll: Annotated[
            timedelta | None,
            typer.Option(
                "--poll",
                parser=parse_duration,
                metavar="DURATION",
                help="Longest pause between two claims when idle; default 1s.",
            ),
        ] = None,
        no_listen: NoListen = False,
        drain: Drain = None,
        http: Annotated[
            str | None,
            typer.Option(
                "--http",
                metavar="HOST:PORT",
                help="Serve /healthz, /readyz and /metrics there; port 0 is any free one.",
            ),
        ] = None,
        label_topic: Topics = None,
        log_level: LogLevel = "info",
        dsn_file: DsnFile = None,
        service: Service = None,
    ) -> None:
        with exit_codes():
            from trex_client.worker import WorkerSettings, daemon

            key = instance_key(instance)
            settings = WorkerSettings(
                box=box,
                concurrency=concurrency,
                batch=batch,
                lease=lease,
                poll=_seconds(poll, 1.0),
                listen=not no_listen,
                drain=_seconds(drain, 30.0),
            )
            program = _program(
                key,
                conninfo(dsn_file, service),
                settings,
                adapter_config,
                label_topic,
                log_level,
                _address(http),
                handlers=handlers,
            )
            _end(program, asyncio.run(daemon(program)), quiet=_IN_THE_LOG)


def _register_backfill(app: typer.Typer) -> None:
    summary = (
        "Deliver what is due now, and end. The same claims, leases and rules as the daemon: safe to"
        " run twice, in parallel, beside daemons, and again after a crash. Prints exact counts."
    )

    @app.command(
        "backfill",
        help=_help(
            summary,
            """
            trex backfill --adapter-config ledger.toml
            trex backfill --topic payment.captured --limit 1000
            trex backfill --include-retrying --actor ann --reason "ledger is back"
            """,
        ),
        rich_help_panel=PANEL,
    )
    def backfill_command(
        instance: InstanceOption = "",
        adapter_config: AdapterFile = None,
        handlers: HandlersOption = None,
        topic: Annotated[
            str | None,
            typer.Option(
                "--topic",
                help="Only this topic. Others that it meets are put back: an attempt each.",
            ),
        ] = None,
        limit: Annotated[
            int | None, typer.Option("--limit", "-n", help="Claim at most so many messages.")
        ] = None,
        include_retrying: Annotated[
            bool,
            typer.Option(
                "--include-retrying",
                help="Make deferred messages due first; needs an operator's rights.",
            ),
        ] = False,
        actor: Annotated[
            str | None,
            typer.Option("--actor", envvar="TREX_ACTOR", help="Who does this, for the audit."),
        ] = None,
        reason: Annotated[str | None, typer.Option("--reason", help="Why, for the audit.")] = None,
        concurrency: Concurrency = 256,
        batch: Batch = 500,
        lease: Lease = None,
        box: BoxOption = "outbox",
        no_listen: NoListen = False,
        drain: Drain = None,
        reach: Reach = None,
        label_topic: Topics = None,
        log_level: LogLevel = "warning",
        json: Json = False,
        dsn_file: DsnFile = None,
        service: Service = None,
    ) -> None:
        with exit_codes():
            from trex_client.worker import WorkerSettings, run_once

            key = instance_key(instance)
            if include_retrying and not (actor and reason):
                raise typer.BadParameter("--include-retrying needs --actor and --reason")
            settings = WorkerSettings(
                box=box,
                concurrency=concurrency,
                batch=batch,
                lease=lease,
                listen=not no_listen,
                drain=_seconds(drain, 30.0),
                stats=0.0,
                reach=_seconds(reach, 30.0),
            )
            program = _program(
                key,
                conninfo(dsn_file, service),
                settings,
                adapter_config,
                label_topic,
                log_level,
                handlers=handlers,
            )
            operator = (actor, reason) if include_retrying and actor and reason else None
            bar, progress = _progress_bar(as_json=json)
            with bar:
                code, counts = asyncio.run(
                    run_once(
                        program,
                        topic=topic,
                        limit=limit,
                        include_retrying=operator,
                        progress=progress,
                    )
                )
            if code not in _NOT_STARTED:
                show(counts, as_json=wants_json(asked=json), title="backfill")
            _end(program, code)


def _register_process(app: typer.Typer) -> None:
    summary = (
        "Deliver one correlation's messages now, under the same rules as everybody else, and end."
        " Messages that are leased, parked or not due are left alone."
    )

    @app.command(
        "process",
        help=_help(summary, "trex process --correlation order-17 --adapter-config ledger.toml"),
        rich_help_panel=PANEL,
    )
    def process_command(
        correlation: Annotated[
            str, typer.Option("--correlation", help="Correlation id of the messages.")
        ],
        instance: InstanceOption = "",
        adapter_config: AdapterFile = None,
        handlers: HandlersOption = None,
        concurrency: Concurrency = 16,
        lease: Lease = None,
        box: BoxOption = "outbox",
        no_listen: NoListen = False,
        drain: Drain = None,
        reach: Reach = None,
        label_topic: Topics = None,
        log_level: LogLevel = "warning",
        json: Json = False,
        dsn_file: DsnFile = None,
        service: Service = None,
    ) -> None:
        with exit_codes():
            from trex_client.worker import WorkerSettings, run_once

            key = instance_key(instance)
            settings = WorkerSettings(
                box=box,
                concurrency=concurrency,
                lease=lease,
                listen=not no_listen,
                drain=_seconds(drain, 30.0),
                stats=0.0,
                reach=_seconds(reach, 30.0),
            )
            program = _program(
                key,
                conninfo(dsn_file, service),
                settings,
                adapter_config,
                label_topic,
                log_level,
                handlers=handlers,
            )
            code, counts = asyncio.run(run_once(program, correlation_id=correlation))
            if code not in _NOT_STARTED:
                show(counts, as_json=wants_json(asked=json), title="process")
            _end(program, code)


def _seconds(duration: timedelta | None, default: float) -> float:
    return default if duration is None else duration.total_seconds()


def _help(summary: str, examples: str) -> str:
    return help_text(summary, examples, "TREX_INSTANCE") + "\n" + _CODES


def _program(
    key: str,
    dsn: str,
    settings: object,
    adapter_config: Path | None,
    topics: list[str] | None,
    level: Literal["debug", "info", "warning", "error"],
    http: tuple[str, int] | None = None,
    *,
    handlers: str | None = None,
) -> Program:
    from trex_client.adapters.config import read_config
    from trex_client.worker import Program, WorkerSettings, load_handlers

    assert isinstance(settings, WorkerSettings)  # noqa: S101
    return Program(
        instance_key=key,
        dsn=dsn,
        settings=settings,
        adapter=read_config(adapter_config),
        handlers=load_handlers(handlers) if handlers else None,
        topics=tuple(topics or ()),
        level=level,
        http=http,
        webhook=os.environ.get("TREX_ALERT_WEBHOOK") or None,
        webhook_networks=tuple(os.environ.get("TREX_ALERT_NETWORKS", "").split()),
        owns_process=True,
    )


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter("HOST:PORT such as 127.0.0.1:9464", param_hint="--http")
    return host.strip("[]"), int(port)


def _progress_bar(
    *, as_json: bool
) -> tuple[AbstractContextManager[object], Callable[[RunCounts, int], None] | None]:
    """A bar on stderr when somebody looks at it."""
    if as_json or not sys.stderr.isatty():
        return nullcontext(), None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    bar = Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    )
    task = bar.add_task("deliver", total=None)

    def progress(counts: RunCounts, due: int) -> None:
        done = counts.delivered + counts.duplicate
        bar.update(task, completed=done, total=max(due, counts.claimed))

    return bar, progress


_TEXTS: dict[int, str] = {
    2: "a setting doesn't fit: --lease is at most lease_max; behind a pooler the role's"
    " default_transaction_isolation is read committed",
    3: "the instance is unknown or not bound to this role",
    4: "nothing that can be claimed now",
    9: "no connection to the database in time",
    12: "not all of it is delivered",
    13: "the drain time is over; calls under way are left to their leases",
    14: "an invariant is violated",
}


_NOT_STARTED = (2, 3, 9, 11)
# What a daemon's log says as well as a sentence would.
_IN_THE_LOG = frozenset(_TEXTS) - {2}


def _end(program: Program, code: Exit, quiet: frozenset[int] = frozenset()) -> None:
    """End the command with the worker's code."""
    if code == 0:
        return
    for refusal in program.refusals:
        leave(ExitCode.SCHEMA, str(refusal))
    if code not in quiet:
        note(f"trex: {_TEXTS.get(int(code), 'ended')}")
    raise typer.Exit(int(code))
