"""Exit codes of all commands, and the one place where an error becomes one."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import psycopg
import typer

from trex_client import errors, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExitCode(IntEnum):
    """What a command's exit code says; the same for every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DENIED = 3
    NOT_FOUND = 4
    CLAIM_LOST = 5
    ENDED_OTHERWISE = 6
    KEY_REUSED = 7
    FORBIDDEN = 8
    UNREACHABLE = 9
    NOT_PRIMARY = 10
    SCHEMA = 11
    DIFFERENCES = 12
    LEFT_IN_FLIGHT = 13
    INVARIANT = 14
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done, or it was done before (already_recorded, duplicate)",
    ExitCode.FAILED: "an error that is none of the others; stderr says which",
    ExitCode.USAGE: "wrong usage, an invalid argument (TX400) or isolation level (TX501); nothing"
    " was written",
    ExitCode.DENIED: "instance unknown or not bound to this role, or no right (TX401, TX403)",
    ExitCode.NOT_FOUND: "no such message, or what else was named, in this instance (TX404)",
    ExitCode.CLAIM_LOST: "the fence isn't that of the current claim (TX409): stop work on it",
    ExitCode.ENDED_OTHERWISE: "ended by another outcome, or in another state (TX410)",
    ExitCode.KEY_REUSED: "the idempotency key or operation id exists with other content (TX422)",
    ExitCode.FORBIDDEN: "not in this state or version, or only by resolve (TX412, TX423, TX425)",
    ExitCode.UNREACHABLE: "no connection, a lost one, or a lock or limit in the way: run the same"
    " again",
    ExitCode.NOT_PRIMARY: "the server is a standby or read-only (TX503)",
    ExitCode.SCHEMA: "the schema is missing, older or newer than this release",
    ExitCode.DIFFERENCES: "done, but not all of it: differences, rejected rows or failed checks",
    ExitCode.LEFT_IN_FLIGHT: "the drain time was over; calls under way are left to their leases",
    ExitCode.INVARIANT: "an invariant is violated (TX901, TX902): page somebody, don't restart",
    ExitCode.INTERRUPTED: "interrupted; what was committed stays",
}

_BY_ERROR: list[tuple[type[Exception], ExitCode]] = [
    (errors.InvalidArgument, ExitCode.USAGE),
    (errors.AccessDenied, ExitCode.DENIED),
    (errors.NoViewer, ExitCode.DENIED),
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.ClaimLost, ExitCode.CLAIM_LOST),
    (errors.EndedOtherwise, ExitCode.ENDED_OTHERWISE),
    (errors.KeyReused, ExitCode.KEY_REUSED),
    (errors.VersionConflict, ExitCode.FORBIDDEN),
    (errors.Forbidden, ExitCode.FORBIDDEN),
    (errors.NeedsResolve, ExitCode.FORBIDDEN),
    (errors.WrongTransaction, ExitCode.USAGE),
    (errors.CommitUnknown, ExitCode.UNREACHABLE),
    (errors.SerializationFailure, ExitCode.UNREACHABLE),
    (errors.NotPrimary, ExitCode.NOT_PRIMARY),
    (errors.ImmutableFact, ExitCode.INVARIANT),
    (errors.InvariantViolated, ExitCode.INVARIANT),
    (migrate.MigrationUnreachable, ExitCode.UNREACHABLE),
    (migrate.MigrationLocked, ExitCode.UNREACHABLE),
    (migrate.MissingRight, ExitCode.DENIED),
    (migrate.SchemaOutdated, ExitCode.SCHEMA),
    (migrate.UnknownSchema, ExitCode.SCHEMA),
    (migrate.MigrationError, ExitCode.DIFFERENCES),
]

# What to do next, where the error alone doesn't say it.
_ADVICE: dict[type[Exception], str] = {
    errors.AccessDenied: "see trex instance show; trex instance bind binds a role",
    errors.NoViewer: "say who asks, with --as",
    errors.NotFound: "look for it in another instance, or check its number",
    errors.ClaimLost: "stop work on it; trex status says where it is",
    errors.EndedOtherwise: "trex status, or trex machine status, says where it is",
    errors.KeyReused: "it is there with other content; compare before you choose another",
    errors.WrongTransaction: "behind a pooler the role's default_transaction_isolation counts",
    errors.VersionConflict: "somebody was faster: look at it again, and decide again",
    errors.Forbidden: "not in its state, not by this role, or not with this amount",
}

# Something else was in the way, and the transaction was rolled back: lock_timeout,
# statement_timeout, max_connections.
_IN_THE_WAY = {"55P03", "57014", "53300"}
_SCHEMA_STATES = {"3F000": "trex migrate", "42P01": "trex migrate", "42883": "trex migrate"}

_BY_STATUS: dict[str, ExitCode] = {
    "not_found": ExitCode.NOT_FOUND,
    "claim_lost": ExitCode.CLAIM_LOST,
    "ended_otherwise": ExitCode.ENDED_OTHERWISE,
    "not_parked": ExitCode.ENDED_OTHERWISE,
    "not_deferred": ExitCode.ENDED_OTHERWISE,
    "delivered": ExitCode.ENDED_OTHERWISE,
    "conflict": ExitCode.KEY_REUSED,
    "needs_resolve": ExitCode.FORBIDDEN,
    "operation_conflict": ExitCode.KEY_REUSED,
    "version_conflict": ExitCode.FORBIDDEN,
    "forbidden": ExitCode.FORBIDDEN,
    "not_paid": ExitCode.FORBIDDEN,
    "no_order": ExitCode.FORBIDDEN,
    "no_grant": ExitCode.FORBIDDEN,
    "consumed": ExitCode.ENDED_OTHERWISE,
    "expired": ExitCode.FORBIDDEN,
    "not_active": ExitCode.FORBIDDEN,
    "exhausted": ExitCode.FORBIDDEN,
    "device_unknown": ExitCode.FORBIDDEN,
}


def note(text: str) -> None:
    """Tell the person something, on stderr; when that can't be written, nobody asked for it."""
    with suppress(OSError):
        typer.echo(text, err=True)


def leave(code: ExitCode, text: str) -> NoReturn:
    """End the command with a note and a code. `text` is constant but for names and numbers."""
    note(f"trex: {text}")
    raise typer.Exit(int(code)) from None


def code_of(error: Exception) -> ExitCode:
    """The exit code for an error of trex."""
    if isinstance(error, errors.DatabaseError) and error.code == "42501":
        return ExitCode.DENIED
    if isinstance(error, errors.DatabaseError) and error.code in _SCHEMA_STATES:
        return ExitCode.SCHEMA
    if isinstance(error, errors.DatabaseError) and error.code in _IN_THE_WAY:
        return ExitCode.UNREACHABLE
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.FAILED)


def code_of_results(results: list[object]) -> ExitCode:
    """The code of the first row that wasn't done."""
    for result in results:
        code = _BY_STATUS.get(getattr(result, "status", ""))
        if code is not None:
            return code
    return ExitCode.OK


@contextmanager
def exit_codes() -> Iterator[None]:
    """End the command with the code that belongs to an error of trex; nothing but our own text is
    printed.
    """
    try:
        yield
    except (errors.TrexError, psycopg.Error) as raised:
        error = (
            errors.from_sqlstate(raised.sqlstate) if isinstance(raised, psycopg.Error) else raised
        )
        code = code_of(error)
        advice = _ADVICE.get(type(error))
        if isinstance(error, errors.Forbidden | errors.AccessDenied) and str(error) != error.text:
            advice = None  # the database has said it better
        text = f"{error}: {advice}" if advice else str(error)
        if code == ExitCode.SCHEMA and isinstance(error, errors.DatabaseError):
            text = "the schema is missing or older than this release: run trex migrate"
        elif isinstance(error, errors.DatabaseError) and error.code in _IN_THE_WAY:
            text = (
                f"a lock, a time limit or the number of connections was in the way"
                f" (SQLSTATE {error.code}): run the same again"
            )
        elif code == ExitCode.DENIED and isinstance(error, errors.DatabaseError):
            text = "this role lacks a right: see the grants of trex_app, trex_worker and others"
        leave(code, text)
    except KeyboardInterrupt:
        leave(ExitCode.INTERRUPTED, "interrupted")
    except BrokenPipeError:
        # The reader of our output has gone; Python must not try to flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(int(ExitCode.OK)) from None
