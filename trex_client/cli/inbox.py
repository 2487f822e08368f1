"""The inbox: serve webhook endpoints, store one event by hand, see what became of one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trex_client._calls import Call, check_json
from trex_client._calls_reconcile import AllCalls
from trex_client.cli import events
from trex_client.cli._exit import ExitCode, exit_codes, leave
from trex_client.cli._input import read_bytes
from trex_client.cli._run import call_command, conninfo, help_text
from trex_client.cli._types import DsnFile, InputFile, InstanceOption, MessageId, Service
from trex_client.errors import InvalidArgument

PANEL = "Inbox"

Provider = Annotated[str, typer.Option("--provider", help="Who sent it, such as stripe.")]
Account = Annotated[str, typer.Option("--account", help="Whose endpoint it came to.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True, help="Receive signed events of providers, and look after them."
    )
    app.add_typer(group, name="inbox", rich_help_panel=PANEL)
    _register_serve(group)
    _register_calls(group)
    events.register(group)


def _register_serve(group: typer.Typer) -> None:
    summary = (
        "Serve the webhook endpoints of a TOML file: verify each signature over the raw bytes,"
        " store the event, commit, and only then answer 2xx. Secrets come from the environment or"
        " from files. Put TLS in front. SIGHUP: the file and its secrets are read again. SIGTERM:"
        " requests under way end first. Logs are JSON lines on stderr."
    )
    examples = """
        trex inbox serve --config webhooks.toml
        trex inbox serve --config webhooks.toml --listen 0.0.0.0:8080 --http 127.0.0.1:9464
        """

    @group.command("serve", help=help_text(summary, examples, "TREX_INSTANCE"))
    def serve(
        config: Annotated[
            Path,
            typer.Option(
                "--config", envvar="TREX_WEBHOOKS_CONFIG", help="TOML file with the endpoints."
            ),
        ],
        instance: InstanceOption = "",
        listen: Annotated[
            str,
            typer.Option("--listen", metavar="HOST:PORT", help="Where to serve; port 0 is any."),
        ] = "127.0.0.1:8080",
        http: Annotated[
            str | None,
            typer.Option(
                "--http",
                metavar="HOST:PORT",
                help="Serve /healthz, /readyz and /metrics there, apart from the endpoints.",
            ),
        ] = None,
        connections: Annotated[
            int,
            typer.Option(
                "--connections", min=1, max=1000, help="Most connections to the database."
            ),
        ] = 8,
        log_level: Annotated[
            Literal["debug", "info", "warning", "error"],
            typer.Option(
                "--log-level", metavar="debug|info|warning|error", help="Least level to log."
            ),
        ] = "info",
        dsn_file: DsnFile = None,
        service: Service = None,
    ) -> None:
        with exit_codes():
            try:
                from trex_client import webhooks
                from trex_client.webhooks_server import run
            except ModuleNotFoundError:
                leave(ExitCode.USAGE, "this needs the extra: pip install 'trex[webhooks]'")
            run(
                lambda: webhooks.read_webhooks(config, instance_key=instance or None),
                conninfo(dsn_file, service),
                listen=address(listen, "--listen"),
                http=address(http, "--http") if http is not None else None,
                connections=connections,
                level=log_level,
            )


def _register_calls(group: typer.Typer) -> None:
    @call_command(
        group,
        "receive",
        """
        trex inbox receive body.json --provider stripe --account acct_main --type invoice.paid
        trex inbox receive - --provider svix --account a --type user.created --event-id msg_1 < body
        """,
    )
    def receive(
        calls: AllCalls,
        file: InputFile,
        provider: Provider,
        account: Account,
        event_type: Annotated[str, typer.Option("--type", help="What happened.")],
        event_id: Annotated[
            str | None,
            typer.Option("--event-id", help="The provider's id; without it the bytes' hash."),
        ] = None,
        object_id: Annotated[
            str | None, typer.Option("--object-id", help="What it is about; the correlation.")
        ] = None,
        key_id: Annotated[
            str | None, typer.Option("--key-id", help="Name of the key that signed it.")
        ] = None,
    ) -> Call[Any]:
        """Store one event by hand, byte for byte, that was got otherwise than by a webhook. Whether
        it is genuine is for the caller to know."""
        raw = read_bytes(file)
        text = raw.decode("utf-8", "replace").removeprefix("\ufeff")
        return calls.receive(
            provider,
            account,
            event_id,
            event_type,
            object_id,
            raw,
            payload_json=_readable(text),
            key_id=key_id,
        )

    @call_command(
        group,
        "status",
        """
        trex inbox status --id 4711
        trex inbox status --provider stripe --account acct_main --event-id evt_1
        """,
    )
    def status(
        calls: AllCalls,
        message_id: Annotated[
            int | None, typer.Option("--id", help="Number of the inbox message.")
        ] = None,
        provider: Annotated[
            str | None, typer.Option("--provider", help="Who sent it, such as stripe.")
        ] = None,
        account: Annotated[
            str | None, typer.Option("--account", help="Whose endpoint it came to.")
        ] = None,
        event_id: Annotated[
            str | None, typer.Option("--event-id", help="The provider's id of the event.")
        ] = None,
    ) -> Call[Any]:
        """What became of one event: received, processing, processed or failed."""
        return calls.inbox_status(message_id, provider=provider, account=account, event_id=event_id)

    @call_command(
        group,
        "event",
        """
        trex inbox event 4711
        trex inbox event 4711 --json > event.json
        """,
    )
    def event(calls: AllCalls, message_id: MessageId) -> Call[Any]:
        """One event with the bytes that were signed; in JSON as base64."""
        return calls.inbox_event(message_id)


def address(text: str, option: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter("HOST:PORT such as 127.0.0.1:8080", param_hint=option)
    return host.strip("[]"), int(port)


def _readable(text: str) -> str:
    """The JSON to read, or null where the bytes are all there is."""
    with suppress(InvalidArgument):
        return check_json(text)
    return "null"
