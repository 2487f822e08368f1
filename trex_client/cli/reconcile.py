"""Reconciliation: look for drift, list the runs, show what was found."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trex_client._calls import Call, render
from trex_client._calls_reconcile import AllCalls
from trex_client.cli._exit import ExitCode, exit_codes, leave, note
from trex_client.cli._output import show, wants_json
from trex_client.cli._run import (
    call_command,
    check_schema,
    connect,
    conninfo,
    help_text,
    instance_key,
)
from trex_client.cli._types import (
    Actor,
    DsnFile,
    InstanceOption,
    Json,
    PrintSql,
    ReadLimit,
    Reason,
    Service,
    parse_duration,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trex_client.model_reconcile import ReconcileReport


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Compare what belongs together. Repairs only state that turned back; money and rights"
        " are left for review.",
    )
    app.add_typer(group, name="reconcile", rich_help_panel="Operators")
    _register_run(group)
    _register_reads(group)


def _register_run(group: typer.Typer) -> None:
    summary = (
        "Run all checks, some rows at a time, until the run has ended. What is found is one finding"
        " however often it is seen. Ends with 12 when there are findings, with 1 when a check"
        " couldn't be read: such a run is failed, not clean. An interrupted run can go on."
    )
    examples = """
        trex reconcile run --reason 'nightly'
        trex reconcile run --run 17 --reason 'interrupted yesterday'
        """

    @group.command("run", help=help_text(summary, examples, "TREX_INSTANCE", "TREX_ACTOR"))
    def run_command(
        actor: Actor,
        reason: Reason,
        instance: InstanceOption = "",
        run: Annotated[
            int | None, typer.Option("--run", help="Go on with this run instead of a new one.")
        ] = None,
        longest_stay: Annotated[
            timedelta | None,
            typer.Option(
                "--longest-stay",
                parser=parse_duration,
                metavar="DURATION",
                help="How long a message may be undelivered, a payment without a right; default"
                " 1h.",
            ),
        ] = None,
        rows: Annotated[
            int, typer.Option("--rows", help="Rows of one transaction, to 10000.")
        ] = 1000,
        dsn_file: DsnFile = None,
        service: Service = None,
        json: Json = False,
        print_sql: PrintSql = False,
    ) -> None:
        from trex_client.postgres import PostgresClient

        with exit_codes():
            key = instance_key(instance)

            def page(run_id: int | None) -> Call[ReconcileReport]:
                return AllCalls(key).reconcile(
                    actor=actor,
                    reason=reason,
                    run_id=run_id,
                    longest_stay=longest_stay or timedelta(hours=1),
                    limit=rows,
                )

            if print_sql:
                typer.echo(render(page(run)))
                return
            with connect(conninfo(dsn_file, service)) as conn:
                check_schema(conn)
                client = PostgresClient(conn, key)
                with _progress() as tell:
                    report = client.run(page(run))
                    if report.state == "running" and run is None:
                        again = f"--run {report.run_id}"
                        note(f"trex: run {report.run_id}; interrupted, it goes on with {again}")
                    while report.state == "running":
                        tell(report)
                        report = client.run(page(report.run_id))
            show(report, as_json=wants_json(asked=json), title="reconcile")
            if report.state == "failed":
                leave(ExitCode.FAILED, "a check couldn't be read: this run proves nothing")
            if report.state == "findings":
                leave(ExitCode.DIFFERENCES, f"findings: trex reconcile show {report.run_id}")


@contextmanager
def _progress() -> Iterator[Callable[[ReconcileReport], None]]:
    """Where the run is, for who looks at stderr."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}: {task.completed:,.0f} rows, {task.fields[found]} found"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("messages", total=None, found=0)

        def tell(report: ReconcileReport) -> None:
            bar.update(
                task,
                description=report.at_check,
                completed=report.examined,
                found=report.found,
            )

        yield tell


def _register_reads(group: typer.Typer) -> None:
    @call_command(group, "reports", "trex reconcile reports")
    def reports(
        calls: AllCalls,
        limit: ReadLimit = 100,
        before: Annotated[
            int | None, typer.Option("--before", help="Only runs with a lower number.")
        ] = None,
    ) -> Call[Any]:
        """The runs, the newest first."""
        return calls.reconcile_reports(limit=limit, before=before)

    @call_command(
        group,
        "show",
        """
        trex reconcile show
        trex reconcile show 17 --state needs_review
        """,
    )
    def show_findings(
        calls: AllCalls,
        run_id: Annotated[
            int | None, typer.Argument(help="Number of a run; without it all findings.")
        ] = None,
        state: Annotated[
            Literal["needs_review", "repaired"] | None,
            typer.Option(
                "--state", metavar="needs_review|repaired", help="Only findings in this state."
            ),
        ] = None,
        limit: ReadLimit = 100,
        after: Annotated[
            str, typer.Option("--after", help="The last finding_id of the page before.")
        ] = "",
    ) -> Call[Any]:
        """What was found: type, what it is about, expected, actual, what is recommended."""
        return calls.reconcile_findings(run_id, state=state, limit=limit, after=after)
