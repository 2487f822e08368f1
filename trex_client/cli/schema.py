"""Bring the schema up to date."""

from __future__ import annotations

from typing import Annotated

import typer

from trex_client import migrate as migration
from trex_client.cli._exit import ExitCode, exit_codes, note
from trex_client.cli._output import show, wants_json
from trex_client.cli._run import conninfo, help_text
from trex_client.cli._types import DsnFile, Json, Service

_HELP = help_text(
    "Bring the database to the schema of this release. Safe to repeat and to run from many places "
    "at"
    " once. A DBA has run sql/roles.sql before.",
    """
    trex migrate
    trex migrate --dry-run
    trex migrate --print-sql > release.sql
    trex migrate --check
    """,
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(
        "migrate", help=_HELP, short_help="Bring the schema up to date.", rich_help_panel="Schema"
    )
    def migrate(
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only name what would be applied.")
        ] = False,
        print_sql: Annotated[
            bool, typer.Option("--print-sql", help="Print all SQL of this release; no connection.")
        ] = False,
        check: Annotated[
            bool, typer.Option("--check", help="Compare the database with this release.")
        ] = False,
        lock_wait: Annotated[
            float, typer.Option("--lock-wait", help="Seconds to wait for another migrator.")
        ] = migration.LOCK_WAIT,
        dsn_file: DsnFile = None,
        service: Service = None,
        json: Json = False,
    ) -> None:
        if dry_run + print_sql + check > 1:
            raise typer.BadParameter("give one of --dry-run, --print-sql and --check")
        if not 0 < lock_wait <= 86_400:
            raise typer.BadParameter("above 0, at most 86400", param_hint="--lock-wait")
        with exit_codes():
            if print_sql:
                typer.echo(migration.print_sql())
                return
            dsn = conninfo(dsn_file, service)
            if check:
                problems = migration.check(dsn)
                show([{"problem": p} for p in problems], as_json=wants_json(asked=json))
                if problems:
                    raise typer.Exit(int(ExitCode.DIFFERENCES))
                return
            report = migration.migrate(
                dsn, dry_run=dry_run, lock_wait=lock_wait, progress=_progress
            )
            show(
                {
                    "applied": list(report.applied),
                    "pending": list(report.pending),
                    "functions": report.functions,
                    "function_release": report.function_release,
                    "dry_run": report.dry_run,
                },
                as_json=wants_json(asked=json),
            )


def _progress(step: str, done: int, steps: int) -> None:
    note(f"{done}/{steps} {step}")
