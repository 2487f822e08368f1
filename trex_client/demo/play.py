"""The demo itself: writers, workers, the ledger, an operator, and what happens to them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Protocol

import psycopg

from trex_client.adapters import wire_key
from trex_client.demo.faults import with_policies
from trex_client.demo.place import ACTOR, Place
from trex_client.errors import InvalidArgument, KeyReused, TrexError
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trex_client.demo.faults import Plan
    from trex_client.demo.source import Entry
    from trex_client.model import ParkedMessage

LEASE = timedelta(seconds=2)
BACKOFF = (timedelta(milliseconds=50), timedelta(seconds=1))
READ_TIMEOUT = 1.0
_FREEZE_AFTER = 12
_FREEZE_WAIT = 20.0
_STALLED_AFTER = 30.0
_PAUSE = 0.1
# After this time a send-once call that isn't in the ledger never will be.
_SETTLED_AFTER = timedelta(seconds=READ_TIMEOUT + 1.0)


class Show(Protocol):
    """What the audience sees while it runs."""

    def say(self, text: str) -> None:
        """Tell that something has happened."""

    def progress(self, written: int, delivered: int, parked: int) -> None:
        """Tell how far it is."""


class Broken(Exception):  # noqa: N818
    """The demo could not run to its end; constant text but for names and numbers."""


@dataclass(slots=True)
class Child:
    """A worker's process."""

    name: str
    instance: str
    process: subprocess.Popen[str]
    part: str = "works"
    held: int = 0

    def frozen(self) -> bool:
        """Whether it has stopped itself."""
        with suppress(ChildProcessError):
            flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.process.pid, flags) is not None
        return False


@dataclass(slots=True)
class Settled:
    """What the operator did with a message that was parked as unknown."""

    instance: str
    message_id: int
    resolution: str
    evidence: str


@dataclass(slots=True)
class WorkerEnd:
    """How a worker ended, and what it counted."""

    name: str
    part: str
    counts: dict[str, int]
    code: int


@dataclass(slots=True)
class Outcome:
    """What the run did, as its own processes tell it; the books tell the rest."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    message_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    duplicates: int = 0
    reused: list[int] = field(default_factory=list)
    invalid: list[tuple[int, str]] = field(default_factory=list)
    ledger_calls: Counter[str] = field(default_factory=Counter)
    settled: list[Settled] = field(default_factory=list)
    workers: list[WorkerEnd] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    foreign: dict[str, tuple[str, str, Decimal]] = field(default_factory=dict)
    killed: str | None = None
    killed_holding: int = 0
    woken: str | None = None
    woken_holding: int = 0
    seconds: float = 0.0


class Writer(threading.Thread):
    """A service: one transaction for each movement, with a business row and `enqueue`."""

    def __init__(self, place: Place, entries: Sequence[Entry], outcome: Outcome) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._entries = entries
        self._outcome = outcome
        self.written = 0
        self.failure: str | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        """Write all; an error ends it."""
        try:
            with self._place.connect("app") as conn:
                for entry in self._entries:
                    if self.stop.is_set():
                        return
                    self._write(conn, entry)
                    self.written += 1
        except (TrexError, psycopg.Error, OSError) as error:
            self.failure = type(error).__name__

    def _write(self, conn: psycopg.Connection[Any], entry: Entry) -> None:
        movement, outcome = entry.movement, self._outcome
        client = PostgresClient(conn, entry.instance)
        try:
            with conn.transaction():
                enqueued = client.enqueue(
                    movement.topic,
                    movement.idempotency_key,
                    payload_json=movement.payload_json,
                    account=movement.account,
                    currency=movement.currency,
                    cash_delta=movement.cash_delta,
                    correlation_id=movement.correlation_id,
                    ordering_key=movement.ordering_key,
                    effect_policy=movement.effect_policy,
                    delay=movement.delay,
                )
                conn.execute(
                    "insert into shop.movement (instance_key, movement_key, account, currency,"
                    " amount, message_id) values (%s, %s, %s, %s, %s, %s)"
                    " on conflict (instance_key, movement_key) do nothing",
                    (entry.instance, movement.idempotency_key, *entry.account, entry.amount,
                     enqueued.message_id),
                )  # fmt: skip
        except KeyReused:
            outcome.reused.append(entry.line)
        except InvalidArgument as error:
            outcome.invalid.append((entry.line, str(error).rpartition(": ")[2]))
        else:
            if enqueued.status == "duplicate":
                outcome.duplicates += 1
            outcome.entries.setdefault(entry.key, entry)
            outcome.message_ids[entry.key] = enqueued.message_id


class Play:
    """One run in a place that is set up. `perform` returns when everything is settled.

    Args:
        place: databases and roles.
        entries: what to write, in order.
        plan: the faults.
        show: the audience.
    """

    def __init__(self, place: Place, entries: Sequence[Entry], plan: Plan, show: Show) -> None:
        self._place = place
        self._entries = with_policies(entries, plan)
        self._plan = plan
        self._show = show
        self._instances = list(dict.fromkeys(entry.instance for entry in entries))
        self._outcome = Outcome()
        self._children: list[Child] = []
        self._ledger: subprocess.Popen[str] | None = None
        self._adapter: dict[str, Any] = {}
        self._writers: list[Writer] = []
        self._logs: dict[int, IO[bytes]] = {}

    def perform(self) -> Outcome:
        """Run it.

        Raises:
            Broken: it can't go on.
        """
        begin = time.monotonic()
        try:
            self._place.register(self._instances, lease=LEASE, backoff=BACKOFF)
            self._plant_conflicts()
            self._start_ledger()
            self._start_workers()
            self._start_writers()
            self._let_freeze()
            self._watch()
            self._end_workers()
            self._end_ledger()
        except psycopg.Error:
            raise Broken("the database went away") from None
        finally:
            self.close()
        self._outcome.seconds = time.monotonic() - begin
        return self._outcome

    def close(self) -> None:
        """End all that still runs, at once."""
        for writer in self._writers:
            writer.stop.set()
        processes = [child.process for child in self._children]
        for process in [*processes, *([self._ledger] if self._ledger else [])]:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        for log in self._logs.values():
            log.close()
        for writer in self._writers:
            writer.join(5.0)

    # start

    def _plant_conflicts(self) -> None:
        """Post under the keys of some movements, to the same account, another amount: somebody else
        has used them.
        """
        entries = {entry.wire_key: entry for entry in self._entries}
        with self._place.connect("ledger", ledger=True) as conn:
            for key, card in self._plan.cards.items():
                if card.always == "conflict":
                    foreign = (*entries[key].account, entries[key].amount + 1)
                    conn.execute(
                        "select ledger.post(%s, 0, 1, 'elsewhere', %s, %s, %s, '{}')",
                        (key, *foreign),
                    )
                    self._outcome.foreign[key] = foreign

    def _start_ledger(self) -> None:
        cards = self._plan.cards
        given = {
            "dsn": self._place.dsn("ledger", ledger=True),
            "calls": {key: card.calls for key, card in cards.items() if card.calls},
            "always": {key: "refused" for key, card in cards.items() if card.always == "refused"},
            "keys": list(cards),
            "hold": 3 * READ_TIMEOUT,
        }
        self._ledger = self._spawn("ledger_process", given)
        self._adapter = {
            **self._hear(self._ledger, "ledger")["adapter"],
            "connect_timeout": 2.0,
            "read_timeout": READ_TIMEOUT,
            "total_timeout": 2 * READ_TIMEOUT,
            "connections": 16,
        }

    def _start_workers(self) -> None:
        """Two for each instance. One of the first instance will be killed, one of the next wakes
        up late; both begin alone, so that they surely have a batch.
        """
        free = Counter(entry.instance for entry in self._entries)
        free.subtract(
            entry.instance for entry in self._entries if entry.wire_key in self._plan.cards
        )
        others = self._instances[1:] or self._instances
        parts = {"killed": self._instances[0], "late": others[0]}
        for part, instance in parts.items():
            if free[instance] >= 3:
                after = max(1, min(_FREEZE_AFTER, free[instance] // 20))
                self._start_worker(instance, part, after)
            else:
                self._outcome.left_out.append(f"a worker that is {part}")
        for instance in self._instances:
            self._start_worker(instance, "works", 0)
            if not any(c.instance == instance and c.part != "works" for c in self._children):
                self._start_worker(instance, "works", 0)
        for child in self._children:
            self._hear(child.process, child.name)

    def _start_worker(self, instance: str, part: str, freeze_after: int) -> None:
        number = 1 + sum(child.instance == instance for child in self._children)
        name = f"{instance}-{number}"
        worker = f"{name}-{secrets.token_hex(4)}"
        given = {
            "instance": instance,
            "worker": worker,
            "dsn": self._place.dsn("worker"),
            "adapter": self._adapter,
            "lease": LEASE.total_seconds(),
            "freeze_after": freeze_after,
            "wait": part == "works",
        }
        process = self._spawn("worker_process", given)
        self._children.append(Child(worker, instance, process, part))

    def _start_writers(self) -> None:
        for instance in self._instances:
            mine = [entry for entry in self._entries if entry.instance == instance]
            writer = Writer(self._place, mine, self._outcome)
            self._writers.append(writer)
            writer.start()

    # faults of workers

    def _let_freeze(self) -> None:
        """Wait until the two have stopped in the middle of a batch; kill one, start the rest."""
        doomed = [child for child in self._children if child.part != "works"]
        end = time.monotonic() + _FREEZE_WAIT
        with self._place.connect("trex_owner") as dba:
            while waiting := [child for child in doomed if not child.held]:
                if time.monotonic() > end or all(w.failure for w in self._writers):
                    break
                for child in waiting:
                    if child.frozen():
                        child.held = max(1, self._held(dba, child))
                        self._frozen(child)
                self._tell_progress(dba)
                time.sleep(_PAUSE / 2)
        for child in self._children:
            if child.part == "works":
                assert child.process.stdin is not None  # noqa: S101 - it is a pipe
                child.process.stdin.write("go\n")
                child.process.stdin.flush()

    def _frozen(self, child: Child) -> None:
        if child.part == "killed":
            child.process.kill()
            child.process.wait()
            self._outcome.killed = child.name
            self._outcome.killed_holding = child.held
            self._show.say(
                f"{child.name} was killed (SIGKILL) in the middle of its batch,"
                f" with {child.held} claims"
            )
        else:
            self._show.say(
                f"{child.name} stands still (SIGSTOP) in the middle of its batch,"
                f" with {child.held} claims"
            )

    def _wake(self, dba: psycopg.Connection[Any]) -> None:
        """Let a worker go on once somebody else has everything that it had claimed."""
        for child in self._children:
            if child.part == "late" and child.held and self._outcome.woken is None:
                if self._held(dba, child):
                    continue
                self._outcome.woken = child.name
                self._outcome.woken_holding = child.held
                child.process.send_signal(signal.SIGCONT)
                self._show.say(f"{child.name} goes on (SIGCONT): others have taken over its claims")

    def _held(self, dba: psycopg.Connection[Any], child: Child) -> int:
        row = dba.execute(
            "select count(*) from trex.delivery where instance_key = %s and worker = %s",
            (child.instance, child.name),
        ).fetchone()
        return int(row[0]) if row else 0

    # while it runs

    def _watch(self) -> None:
        """Until all are delivered or parked for good."""
        with ExitStack() as stack:
            dba = stack.enter_context(self._place.connect("trex_owner"))
            operator = stack.enter_context(self._place.connect("operator"))
            ledger = stack.enter_context(self._place.connect("ledger", ledger=True))
            last, changed = None, time.monotonic()
            while True:
                self._wake(dba)
                unknown = self._settle_unknown(operator, ledger)
                live, state = self._tell_progress(dba)
                over = not any(writer.is_alive() for writer in self._writers)
                asleep = any(
                    child.part == "late" and child.held and self._outcome.woken is None
                    for child in self._children
                )
                if over and not live and not unknown and not asleep:
                    break
                self._check_alive()
                now = time.monotonic()
                if state != last:
                    last, changed = state, now
                elif now - changed > _STALLED_AFTER:
                    raise Broken(f"nothing has moved for {_STALLED_AFTER:.0f} s")
                time.sleep(_PAUSE)
        for writer in self._writers:
            if writer.failure is not None:
                raise Broken(f"a writer stopped: {writer.failure}")

    def _tell_progress(self, dba: psycopg.Connection[Any]) -> tuple[int, tuple[int, ...]]:
        """Return how many are live, and a state that changes when anything does."""
        row = dba.execute(
            "select (select count(*) from trex.receipt), count(*) filter (where parked is null),"
            " count(*) filter (where parked is not null),"
            " (select count(*) from trex.outcome) from trex.delivery"
        ).fetchone()
        assert row is not None  # noqa: S101 - an aggregate has a row
        delivered, live, parked, ends = row
        written = sum(writer.written for writer in self._writers)
        self._show.progress(written, delivered, parked)
        return live, (written, delivered, live, parked, ends)

    def _settle_unknown(
        self, operator: psycopg.Connection[Any], ledger: psycopg.Connection[Any]
    ) -> int:
        """The operator's work: ask the ledger by the key, then `resolve` with that as evidence."""
        left = 0
        for instance in self._instances:
            client = PostgresClient(operator, instance)
            row = operator.execute("select clock_timestamp() - %s", (_SETTLED_AFTER,)).fetchone()
            for parked in client.list_parked(limit=1000):
                if parked.parked == "unknown":
                    left += 1
                    if row is not None and parked.parked_at < row[0]:
                        self._resolve(client, ledger, parked)
        return left

    def _resolve(
        self,
        client: PostgresClient,
        ledger: psycopg.Connection[Any],
        parked: ParkedMessage,
    ) -> None:
        key = wire_key(client.instance_key, "outbox", parked.idempotency_key)
        row = ledger.execute(
            "select p.reference from ledger.posting as p join ledger.entry as e using (key)"
            " where p.key = %s and (e.side, e.account, e.currency, e.amount)"
            " = ('account', %s, %s, %s)",
            (key, parked.account, parked.currency, parked.cash_delta),
        ).fetchone()
        found = row is not None
        evidence = (
            f"the ledger shows {row[0]}" if row else "the ledger has no posting under this key"
        )
        client.resolve(
            parked.message_id,
            "delivered" if found else "resend",
            evidence=evidence,
            actor=ACTOR,
            reason="looked up in the ledger",
            reference=row[0] if row else None,
        )
        resolution = "delivered" if found else "resend"
        self._outcome.settled.append(
            Settled(client.instance_key, parked.message_id, resolution, evidence)
        )

    def _check_alive(self) -> None:
        for child in self._children:
            if child.process.poll() is not None and child.name != self._outcome.killed:
                raise self._ended(child.name, child.process)
        if self._ledger is not None and self._ledger.poll() is not None:
            raise self._ended("the ledger", self._ledger)

    # end

    def _end_workers(self) -> None:
        for child in self._children:
            if child.name != self._outcome.killed:
                child.process.terminate()
        for child in self._children:
            counts: dict[str, int] = {}
            if child.name != self._outcome.killed:
                counts = self._hear(child.process, child.name)["counts"]
            code = child.process.wait(30.0)
            self._outcome.workers.append(WorkerEnd(child.name, child.part, counts, code))

    def _end_ledger(self) -> None:
        assert self._ledger is not None  # noqa: S101 - it was started
        assert self._ledger.stdin is not None  # noqa: S101 - it is a pipe
        self._ledger.stdin.close()
        self._outcome.ledger_calls.update(self._hear(self._ledger, "ledger")["calls"])
        self._ledger.wait(30.0)

    # processes

    def _spawn(self, module: str, given: dict[str, Any]) -> subprocess.Popen[str]:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the other streams
        process = subprocess.Popen(
            [sys.executable, "-m", f"trex_client.demo.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # A Ctrl-C in the terminal is for us; we end the children.
            start_new_session=True,
        )
        self._logs[process.pid] = log
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        return process

    def _hear(self, process: subprocess.Popen[str], name: str) -> dict[str, Any]:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        text = process.stdout.readline()
        if not text:
            raise self._ended(name, process)
        said: dict[str, Any] = json.loads(text)
        return said

    def _ended(self, name: str, process: subprocess.Popen[str]) -> Broken:
        """Its last words: an event of telemetry, or the type of an exception without its text."""
        code = process.wait(30.0)
        log = self._logs[process.pid]
        log.seek(0)
        last = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        words = last if last.startswith("{") else last.partition(":")[0]
        return Broken(f"{name} ended with {code}: {words}")
