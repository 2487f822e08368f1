"""Check a live database."""

from __future__ import annotations

import typer

from trex_client.cli._exit import ExitCode, exit_codes
from trex_client.cli._output import show, wants_json
from trex_client.cli._run import connect, conninfo, help_text, instance_key
from trex_client.cli._types import DsnFile, InstanceOption, Json, Service
from trex_client.doctor import diagnose

_HELP = help_text(
    "Check the server, the schema, rights and settings; with --instance that instance too. Only "
    "reads."
    " Exit code 12 when a check fails; warnings and skipped checks don't count.",
    """
    trex doctor
    trex doctor --instance shop --json
    """,
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(
        "doctor", help=_HELP, rich_help_panel="Schema", short_help="Check a live database."
    )
    def doctor(
        instance: InstanceOption = "",
        dsn_file: DsnFile = None,
        service: Service = None,
        json: Json = False,
    ) -> None:
        with exit_codes():
            key = instance_key(instance) if instance else None
            with connect(conninfo(dsn_file, service)) as conn:
                findings = diagnose(conn, key)
            show(findings, as_json=wants_json(asked=json), title="trex doctor")
            if any(finding.status == "fail" for finding in findings):
                raise typer.Exit(int(ExitCode.DIFFERENCES))
