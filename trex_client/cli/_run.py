"""What all commands share: find the database, run one call, print its result, end with its code."""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, Ping

from trex_client import migrate
from trex_client._calls import Call, check_instance_key, render
from trex_client._calls_reconcile import AllCalls
from trex_client._session import read_committed
from trex_client.cli import _types
from trex_client.cli._exit import ExitCode, code_of_results, exit_codes, leave, note
from trex_client.cli._output import show, wants_json
from trex_client.errors import InvalidArgument
from trex_client.model import Exchange
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

F = TypeVar("F", bound="Callable[..., Call[Any]]")

# For functions that belong to no instance.
_NO_INSTANCE = "none"


def conninfo(dsn_file: Path | None = None, service: str | None = None) -> str:
    """The connection string: `--dsn-file`, `--service`, TREX_DSN, or '' for libpq's own
    variables.
    """
    if dsn_file is not None and service is not None:
        raise typer.BadParameter("give either --dsn-file or --service")
    if dsn_file is not None:
        try:
            text = dsn_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise typer.BadParameter("the file can't be read", param_hint="--dsn-file") from None
    elif service is not None:
        text = make_conninfo(service=service)
    else:
        text = os.environ.get("TREX_DSN", "")
    return text


@contextmanager
def connect(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection; an error says nothing of the connection string."""
    failure = None
    conn = None
    try:
        given = conninfo_to_dict(dsn)
        defaults = {"fallback_application_name": "trex", "client_encoding": "UTF8"}
        if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
            defaults["connect_timeout"] = "10"
        conn = psycopg.connect(
            make_conninfo(dsn, **defaults), autocommit=True, prepare_threshold=None
        )
    except psycopg.ProgrammingError:
        failure = (ExitCode.USAGE, "the connection string can't be read")
    except psycopg.Error as error:
        failure = _no_connection(dsn, error)
    if failure is not None or conn is None:
        leave(*(failure or (ExitCode.UNREACHABLE, "no connection")))
    with conn:
        read_committed(conn)
        yield conn


_NOT_TRIED = (
    "no connection was tried: the service isn't in pg_service.conf, or libpq refuses another"
    " setting"
)
_REFUSED = (
    "no connection: the server answers, but refuses this user, password or database, or a setting"
    " of PGOPTIONS, or has too many connections"
)


def _no_connection(dsn: str, error: psycopg.Error) -> tuple[ExitCode, str]:
    """Why there is none, as far as can be told without libpq's text, which names the settings."""
    with suppress(psycopg.Error):
        dsn = make_conninfo(dsn, connect_timeout="3")
    match PGconn.ping(dsn.encode()):
        case Ping.NO_ATTEMPT:
            return ExitCode.USAGE, _NOT_TRIED
        case Ping.NO_RESPONSE:
            return ExitCode.UNREACHABLE, "no connection: no server answers at this host and port"
        case Ping.REJECT:
            return ExitCode.UNREACHABLE, "no connection: the server is starting or stopping"
    if error.pgconn is not None and error.pgconn.needs_password:
        return ExitCode.UNREACHABLE, "no connection: the server wants a password, and none is given"
    return ExitCode.UNREACHABLE, _REFUSED


def check_schema(conn: psycopg.Connection[Any]) -> None:
    """Refuse a schema of another release. Other functions on the same tables are worth a note only:
    an operator must be able to act while releases are rolled out."""
    try:
        state = migrate.schema_state(conn)
    except psycopg.errors.InsufficientPrivilege:
        return
    if state.unknown:
        raise migrate.UnknownSchema(*state.unknown, advice="upgrade trex")
    if state.pending:
        raise migrate.SchemaOutdated(*state.pending, advice="run trex migrate")
    if state.replay_needed:
        note("trex: the functions in the database are of another release; see trex doctor")


def instance_key(value: str) -> str:
    """The key, refused before anything connects."""
    key = None
    with suppress(InvalidArgument):
        key = check_instance_key(value)
    if key is None:
        leave(
            ExitCode.USAGE,
            "give the instance with --instance or TREX_INSTANCE: 1 to 63 of a-z 0-9 . _ : -,"
            " a letter or digit first",
        )
    return key


def run_call(call: Call[Any], key: str, dsn: str, *, as_json: bool, print_sql: bool) -> None:
    """Print the call, or run it and print its result; the exit code says what became of it."""
    if print_sql:
        typer.echo(render(call))
        return
    statement, params = call
    with connect(dsn) as conn:
        check_schema(conn)
        result = PostgresClient(conn, key).run(call)
        if statement.name == "bind":
            _warn_if_missing(conn, params[1])
    rows: list[object]
    if result is None:
        return
    if isinstance(result, Exchange):
        rows = [*result.recorded, *result.claims]
        show(result.recorded, as_json=as_json, title="recorded")
        show(result.claims, as_json=as_json, title="claimed")
    elif isinstance(result, list):
        rows = result
        show(result, as_json=as_json)
    else:
        rows = [result]
        named = _SCALARS.get(statement.name)
        show({named: result} if named else result, as_json=as_json)
    code = code_of_results(rows)
    if code != ExitCode.OK:
        raise typer.Exit(int(code))


def _warn_if_missing(conn: psycopg.Connection[Any], role: str | None) -> None:
    if conn.execute("select 1 from pg_catalog.pg_roles where rolname = %s", (role,)).rowcount == 0:
        note("trex: there is no role of exactly this name; it is bound once there is one")


_SCALARS = {
    "listen": "channel",
    "report_stale": "stored",
    "register_instance": "result",
    "bind": "changed",
    "unbind": "changed",
    "pause": "changed",
    "resume": "changed",
    "bump_epoch": "epoch",
    "register_currency": "changed",
    "machine_load": "result",
    "register_order": "result",
    "record_payment": "changed",
    "update_subscription": "result",
    "expire_entitlements": "ended",
    "bind_device": "result",
}


def _common(*, instance: bool) -> dict[str, tuple[Any, Any]]:
    options: dict[str, tuple[Any, Any]] = {}
    if instance:
        options["instance"] = (_types.InstanceOption, "")
    options["dsn_file"] = (_types.DsnFile, None)
    options["service"] = (_types.Service, None)
    options["json"] = (_types.Json, False)
    options["print_sql"] = (_types.PrintSql, False)
    return options


def help_text(summary: str, examples: str, *variables: str) -> str:
    """Help of a command: what it does, then examples as they are typed with `variables` set."""
    lines = [f"  {example.strip()}" for example in examples.strip().splitlines()]
    given = f", with {' and '.join(variables)} set" if variables else ""
    return f"{summary}\n\n\b\nExamples{given}:\n" + "\n".join(lines)


def call_command(
    app: typer.Typer, name: str, examples: str, *, panel: str | None = None, instance: bool = True
) -> Callable[[F], F]:
    """Make a command of a function `(calls, options ...) -> Call`; its docstring is the help.

    Connection, output and instance options are added to those of the function.
    """

    def decorate(build: F) -> F:
        hints = get_type_hints(build, include_extras=True)
        own = list(inspect.signature(build).parameters.values())[1:]
        common = _common(instance=instance)
        parameters = [
            inspect.Parameter(
                p.name, inspect.Parameter.KEYWORD_ONLY, default=p.default, annotation=hints[p.name]
            )
            for p in own
        ] + [
            inspect.Parameter(
                option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for option, (kind, default) in common.items()
        ]

        def command(**values: Any) -> None:
            given = {option: values.pop(option) for option in common}
            with exit_codes():
                key = instance_key(given["instance"]) if instance else _NO_INSTANCE
                run_call(
                    build(AllCalls(key), **values),
                    key,
                    conninfo(given["dsn_file"], given["service"]),
                    as_json=wants_json(asked=given["json"]),
                    print_sql=given["print_sql"],
                )

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        variables = ["TREX_INSTANCE"] if instance else []
        variables += ["TREX_ACTOR"] if "actor" in hints else []
        summary = " ".join((build.__doc__ or "").split())
        app.command(
            name,
            help=help_text(summary, examples, *variables),
            short_help=summary.split(". ")[0].removesuffix(".") + ".",
            rich_help_panel=panel,
        )(command)
        return build

    return decorate
