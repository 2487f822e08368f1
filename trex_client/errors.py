"""One exception per SQLSTATE, with constant text: nothing of a row, DSN or exception gets into it.

TrexError
  InvalidArgument TX400      NoViewer TX401          AccessDenied TX403        NotFound TX404
  ClaimLost TX409            EndedOtherwise TX410    VersionConflict TX412     KeyReused TX422
  Forbidden TX423            NeedsResolve TX425      WrongTransaction TX501    NotPrimary TX503
  ImmutableFact TX901        InvariantViolated TX902
  DatabaseError (any other SQLSTATE)
    SerializationFailure 40001, 40P01 (retry the whole transaction)
    CommitUnknown 08*, 57P0x, an error during COMMIT (reconnect, repeat the same idempotent call)
"""

from __future__ import annotations

from typing import ClassVar


class TrexError(Exception):
    """Base of all errors. `sqlstate` is the code that PostgreSQL raised, or would have raised."""

    sqlstate: ClassVar[str] = ""
    text: ClassVar[str] = "trex error"

    def __init__(self, detail: str | None = None) -> None:
        """`detail` is constant text from our own code, such as the name of an argument."""
        super().__init__(f"{self.text}: {detail}" if detail else self.text)


class InvalidArgument(TrexError, ValueError):
    """An argument is missing or out of its range; nothing was written. A bug: no retry."""

    sqlstate = "TX400"
    text = "invalid argument"


class NoViewer(TrexError):
    """No verified viewer. Authenticate."""

    sqlstate = "TX401"
    text = "no verified viewer"


class AccessDenied(TrexError):
    """The instance is unknown or not bound to the calling role (can't be told apart), or the read
    isn't for this viewer: no retry."""

    sqlstate = "TX403"
    text = "access denied"


class NotFound(TrexError):
    """The message or entity is unknown, or somebody else's (can't be told apart)."""

    sqlstate = "TX404"
    text = "not found"


class ClaimLost(TrexError):
    """The fence is not the one of the current claim. Stop work on the message and roll back."""

    sqlstate = "TX409"
    text = "claim lost"


class EndedOtherwise(TrexError):
    """This claim was already ended by another outcome. Stop."""

    sqlstate = "TX410"
    text = "already ended otherwise"


class VersionConflict(TrexError):
    """The entity has moved on since it was read. Read again and decide."""

    sqlstate = "TX412"
    text = "version conflict"


class KeyReused(TrexError):
    """The idempotency key exists with other content. A bug in the caller: alert."""

    sqlstate = "TX422"
    text = "key reused with other content"


class Forbidden(TrexError):
    """The state machine doesn't allow this transition. Stop."""

    sqlstate = "TX423"
    text = "transition forbidden"


class NeedsResolve(TrexError):
    """The outcome is unknown; only `resolve` leaves this state."""

    sqlstate = "TX425"
    text = "outcome unknown, needs resolve"


class WrongTransaction(TrexError):
    """The call needs READ COMMITTED and a transaction without work done before."""

    sqlstate = "TX501"
    text = "wrong isolation level, or a transaction with work done before"


class NotPrimary(TrexError):
    """The server is a standby or read-only. Reconnect."""

    sqlstate = "TX503"
    text = "standby or read-only"


class ImmutableFact(TrexError):
    """An append-only fact was touched. Page, and stop the worker."""

    sqlstate = "TX901"
    text = "immutable fact touched"


class InvariantViolated(TrexError):
    """An invariant of the schema was about to break. Page, and stop the worker."""

    sqlstate = "TX902"
    text = "invariant violated"


class DatabaseError(TrexError):
    """Any other error of PostgreSQL. `code` is its SQLSTATE, or ''; its text is never kept."""

    text = "database error"

    def __init__(self, code: str = "") -> None:
        super().__init__(f"SQLSTATE {code}" if code else None)
        self.code = code


class SerializationFailure(DatabaseError):
    """40001 or 40P01: retry the whole transaction, bounded, with jitter."""

    text = "serialization failure or deadlock"


class CommitUnknown(DatabaseError):
    """The connection broke or COMMIT failed: reconnect and repeat the same idempotent call."""

    text = "commit outcome unknown"


BY_SQLSTATE: dict[str, type[TrexError]] = {
    cls.sqlstate: cls for cls in TrexError.__subclasses__() if cls.sqlstate
}


def from_sqlstate(code: str | None) -> TrexError:
    """The exception for a SQLSTATE; `None` or '' (libpq's own errors) is an unknown commit."""
    code = code or ""
    if code in BY_SQLSTATE:
        return BY_SQLSTATE[code]()
    if code in {"40001", "40P01"}:
        return SerializationFailure(code)
    if code == "" or code.startswith("08") or code in {"57P01", "57P02", "57P03", "57P05"}:
        return CommitUnknown(code)
    if code == "25006":
        return NotPrimary()
    return DatabaseError(code)
