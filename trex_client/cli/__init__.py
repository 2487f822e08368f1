"""The command `trex`. One file per group of commands; each command is one call of a SQL
function.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from errno import EDQUOT, EFBIG, EIO, ENOSPC, errorcode
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TextIO

import typer

from trex_client.cli import claims, doctor, importer, instance, operator, outbox, schema
from trex_client.cli._exit import MEANINGS, ExitCode, note

# Modules with a function `register(app)`; they import what is heavy inside their commands.
_GROUPS = (schema, doctor, instance, outbox, importer, claims, operator)
_MORE = ("demo", "worker", "inbox", "machine", "authority", "viewer", "reconcile", "simulate")


# What only a write says: all that a command writes is its output.
_NO_ROOM = (ENOSPC, EDQUOT, EFBIG, EIO)


def exit_codes_text() -> str:
    """The table of exit codes, one a line."""
    return "\n".join(f"  {int(code):3}  {meaning}" for code, meaning in MEANINGS.items())


def make_app() -> typer.Typer:
    """The application with all commands."""
    app = typer.Typer(
        name="trex",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Deliver money movements from PostgreSQL to a ledger: at least once to the outside, at"
        " most one recorded completion, fenced.\n\n"
        "The database comes from TREX_DSN, --dsn-file, --service or libpq's own variables (PGHOST,"
        " PGSERVICE, ...). Results are tables for eyes and NDJSON when piped.\n\n"
        f"\b\nExit codes:\n{exit_codes_text()}",
    )
    for group in _GROUPS:
        group.register(app)
    for name in _MORE:
        if find_spec(f"{__name__}.{name}") is not None:
            importlib.import_module(f"{__name__}.{name}").register(app)
    return app


def main() -> None:
    """Run the command line. An error that nobody expected is told by its type and place, never by
    its text.
    """
    _open_what_is_closed()
    try:
        try:
            make_app()()
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        # Typer and rich end with 1 when the reader of a page of help has gone.
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(int(ExitCode.OK))
        raise
    except KeyboardInterrupt:
        _end("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        _give_up(sys.stdout)
        sys.exit(int(ExitCode.OK))
    except Exception as error:  # noqa: BLE001 - the text could carry a secret
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            _give_up(sys.stdout)
            _end(
                f"can't write the output ({errorcode[error.errno]}); what was done is done",
                ExitCode.FAILED,
            )
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        _end(f"internal error: {type(error).__name__} at {place}", ExitCode.FAILED)


def _open_what_is_closed() -> None:
    """A closed standard stream (`>&-`) would be an error at the first line, and its number that of
    the next connection.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            if number > 0:  # a command that wants input says that there is none
                setattr(sys, name, open(number, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


def _give_up(stream: TextIO) -> None:
    """Python must not try to flush it again, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end(text: str, code: ExitCode) -> NoReturn:
    note(f"trex: {text}")
    sys.exit(int(code))
