"""Calls on a session of their own, for tests that need two sessions to meet.

    call = Session(client).start("complete", 1, fence)
    wait_for_lock(admin, call)      # pg_stat_activity shows that it waits
    holder.commit()
    call.result()

Nothing sleeps: a test goes on when the server shows the state it needs.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from trex_client.errors import TrexError

if TYPE_CHECKING:
    import psycopg

    from trex_client.api import Trex

DEADLINE = 30.0

_WAITS = """
select wait_event_type = 'Lock' from pg_stat_activity where pid = %s
"""


class Session:
    """A client and its connection; one call at a time runs in a thread."""

    def __init__(self, client: Trex, conn: psycopg.Connection[Any]) -> None:
        self.client = client
        self.conn = conn
        self.pid = conn.info.backend_pid

    def start(self, name: str, *args: Any, **kwargs: Any) -> Call:
        return Call(self, name, args, kwargs)


class Call:
    """A call that runs in a thread until it has its answer."""

    def __init__(self, session: Session, name: str, args: Any, kwargs: Any) -> None:
        self.session = session
        self._result: object = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(name, args, kwargs), daemon=True)
        self._thread.start()

    def _run(self, name: str, args: Any, kwargs: Any) -> None:
        try:
            self._result = getattr(self.session.client, name)(*args, **kwargs)
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def outcome(self) -> Any:
        """The result, or the type of the error of ours."""
        self._thread.join(DEADLINE)
        assert self.done, "the call never ended"
        if isinstance(self._error, TrexError):
            return type(self._error)
        if self._error is not None:
            raise self._error
        return self._result


def waits(admin: psycopg.Connection[Any], call: Call) -> bool:
    """Let the call run until it has ended or waits for a lock; return whether it waits.

    Args:
        admin: a session that may read `pg_stat_activity`, in autocommit mode.
    """
    until = time.monotonic() + DEADLINE
    while not call.done:
        row = admin.execute(_WAITS, (call.session.pid,)).fetchone()
        if row is not None and row[0] and not call.done:
            return True
        assert time.monotonic() < until, "the call neither ends nor waits"
    return False
