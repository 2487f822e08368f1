"""Runs small programs of several sessions on a real server in every order.

A `Scenario` names its sessions by letters; each is a list of steps, and a step is one statement (or
several, sent as one). A schedule is the letters in the order in which steps start: `aabtb`. A step
that waits for a lock stays pending and the others go on; it ends as soon as the lock is free. A
letter appears in a schedule only where its session could start its next step, so the set of
schedules is found by walking the tree of choices, and any schedule can be run again:

    .venv/bin/python -m tests.py.interleavings NAME --schedule aabtb

Where one end wakes several sessions at once, the server decides who is first, so a schedule
replays up to there; everything else is the same each time.

Nothing here sleeps: a statement has ended when its answer is there, and waits when
`pg_blocking_pids` names another session of the run. Every schedule has an instance of its own in
the same database.
"""

from __future__ import annotations

import json
import random
import select
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from tests.support.invariants import violations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from psycopg.pq.abc import PGconn, PGresult

    from tests.support.databases import Database

Step = str | tuple[Any, ...]
"""A statement, or a statement and its parameters."""

STUCK = 30.0
"""Seconds without any answer after which a run is given up."""

ROLE = "other"
"""The login that all sessions but the clock use."""


class ScheduleError(AssertionError):
    """A schedule broke a rule; the text names what replays it."""


class Diverged(Exception):
    """The server took another turn than the last time: one end woke several sessions at once."""


@dataclass
class Answer:
    """What the server said to one step.

    Attributes:
        session, number: which step; number counts from 0 within the session.
        rows: each row's first column, JSON decoded.
        error: SQLSTATE, or None.
        waited: it had to wait for a lock.
        skipped: it was not sent: the program had nothing to say, or the transaction had failed.
    """

    session: str
    number: int
    rows: list[Any] = field(default_factory=list)
    error: str | None = None
    waited: bool = False
    skipped: bool = False


@dataclass
class Scenario:
    """A set of small programs and what must hold after each order of their steps.

    Attributes:
        name: what the command line and the tests call it.
        sessions: by letter, steps or functions that make a step from the run so far (None = skip).
            The session `t` is the superuser's, for moving the clock.
        setup: fills the instance of this run.
        check: raises AssertionError when the outcome is wrong; counts what happened.
        least: counters that all schedules together must reach, per hundred schedules.
        allowed: SQLSTATEs that a step may fail with.
        settings: policy of the instance, columns of `trex.instance`.
        drain: deliver everything afterwards, in order within each ordering key.
    """

    name: str
    sessions: dict[str, list[Any]]
    setup: Callable[[Run], None]
    check: Callable[[Run], None]
    least: Mapping[str, int]
    allowed: frozenset[str] = frozenset({"TX409", "TX410"})
    settings: Mapping[str, str] = field(default_factory=dict)
    drain: bool = True

    @property
    def orders(self) -> int:
        """How many orders there are when nothing ever waits."""
        total, result = 0, 1
        for steps in self.sessions.values():
            for number in range(1, len(steps) + 1):
                total += 1
                result = result * total // number
        return result


class Session:
    """One connection that runs the steps of one letter."""

    def __init__(self, letter: str, conn: psycopg.Connection[Any]) -> None:
        self.letter = letter
        self.conn = conn
        self.pgconn: PGconn = conn.pgconn
        self.pid = conn.info.backend_pid
        self.cursor = psycopg.ClientCursor(conn)
        self.steps: list[Any] = []
        self.next = 0
        self.made: Step | None = None
        self.pending: Answer | None = None

    def load(self, steps: Sequence[Any]) -> None:
        self.steps = list(steps)
        self.next = 0
        self.made = None
        self.pending = None

    def ready(self, run: Run) -> bool:
        """It could start a step now. Steps that have nothing to do are no choice: they are passed
        over here."""
        if self.pending is not None or self.made is not None:
            return self.made is not None
        while self.next < len(self.steps):
            step = self.steps[self.next]
            made = step(run) if callable(step) else step
            status = self.pgconn.transaction_status
            ending = made in ("commit", "rollback")
            if made is not None and status != (
                TransactionStatus.IDLE if ending else TransactionStatus.INERROR
            ):
                self.made = made
                return True
            run.answers.append(Answer(self.letter, self.next, skipped=True))
            self.next += 1
        return False

    def send(self, step: Step) -> None:
        text, *values = (step,) if isinstance(step, str) else step
        self.pgconn.send_query(self.cursor.mogrify(text, values).encode())

    def poll(self) -> bool:
        """Read what has arrived; True when the pending step has ended."""
        self.pgconn.consume_input()
        if self.pgconn.is_busy():
            return False
        answer = self.pending
        assert answer is not None
        while (result := self.pgconn.get_result()) is not None:
            read_into(answer, result)
        self.pending = None
        return True


def in_order(order: str) -> Callable[[str], str]:
    """Choose by a list of letters: the first that can go on, then by the alphabet."""
    left = list(order)

    def choose(enabled: str) -> str:
        letter = next((letter for letter in left if letter in enabled), None)
        if letter is None:
            return enabled[0]
        left.remove(letter)
        return letter

    return choose


def read_into(answer: Answer, result: PGresult) -> None:
    """Add one result of a statement to an answer."""
    if result.status == ExecStatus.TUPLES_OK:
        for number in range(result.ntuples):
            value = result.get_value(number, 0)
            answer.rows.append(None if value is None else json.loads(value))
    elif result.status == ExecStatus.FATAL_ERROR:
        from psycopg.pq import DiagnosticField

        answer.error = (result.error_field(DiagnosticField.SQLSTATE) or b"?????").decode()


class Run:
    """One schedule: its instance, its answers, and the choices made so far."""

    def __init__(self, explorer: Explorer, scenario: Scenario, key: str) -> None:
        self.explorer = explorer
        self.scenario = scenario
        self.key = key
        self.schedule = ""
        self.choices: list[tuple[str, str]] = []  # enabled letters, the one taken
        self.answers: list[Answer] = []
        self.memo: dict[str, Any] = {}
        self.drained: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()

    def sql(self, text: str, *values: Any) -> list[Any]:
        """Run a statement as the sessions' role, in autocommit; first column of each row."""
        return [row[0] for row in self.explorer.helper.execute(text, values).fetchall()]

    def admin(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a query as superuser."""
        return self.explorer.admin.execute(text, values).fetchall()

    def enqueue(self, *names: str, ordering_key: str | None = None, **more: Any) -> list[int]:
        """Enqueue messages; their ids are in `memo` under their names, too."""
        ids = []
        for name in names:
            values = {"p_ordering_key": ordering_key, **more}
            rest = ", ".join(f"{parameter} => %s" for parameter in values)
            call = f"select (trex.enqueue(%s, 'topic', %s, '{{}}', {rest})).message_id"
            self.memo[name] = self.sql(call, self.key, name, *values.values())[0]
            ids.append(self.memo[name])
        return ids

    def claim(self, limit: int = 1, worker: str = "setup") -> list[dict[str, Any]]:
        """Claim and commit; the claims as dicts."""
        call = "select to_jsonb(c) from trex.claim(%s, %s, %s, '30 s') c"
        return self.sql(call, self.key, worker, limit)

    def clock_forward(self, seconds: float) -> None:
        """Move the clock, in a setup."""
        self.explorer.clock.advance(seconds)

    def of(self, session: str, number: int | None = None) -> list[Answer]:
        """The answers of a session, or of one of its steps."""
        return [
            answer
            for answer in self.answers
            if answer.session == session and number in (None, answer.number)
        ]

    def got(self, session: str, number: int) -> list[Any]:
        """The rows of a step that ended well; none if it didn't (or not yet)."""
        return [
            row for answer in self.of(session, number) if not answer.error for row in answer.rows
        ]

    def receipts(self) -> dict[int, int]:
        """Message and fence of each receipt of this instance."""
        query = "select message_id, fence from trex.receipt where instance_key = %s"
        return dict(self.admin(query, self.key))

    def deliveries(self) -> dict[int, dict[str, Any]]:
        """The undelivered rows of this instance."""
        query = "select message_id, to_jsonb(d) from trex.delivery d where instance_key = %s"
        return dict(self.admin(query, self.key))

    def effects(self) -> Counter[int]:
        """How many effects in the same database each message has."""
        query = "select message_id from trex_test.effect where instance_key = %s"
        return Counter(row[0] for row in self.admin(query, self.key))

    def story(self) -> str:
        """What replays this run, and what was answered."""
        lines = [
            (
                f"scenario {self.scenario.name}, schedule {self.schedule}, PostgreSQL "
                f"{self.explorer.version}"
            ),
            (
                f"replay: .venv/bin/python -m tests.py.interleavings {self.scenario.name} "
                f"--schedule {self.schedule}"
            ),
        ]
        for answer in self.answers:
            said = "skipped" if answer.skipped else answer.error or answer.rows
            lines.append(
                f"  {answer.session}{answer.number}{' (waited)' if answer.waited else ''}: {said}"
            )
        return "\n".join(lines)


class Explorer:
    """Connections to one database, and the loop that runs schedules there."""

    def __init__(self, database: Database, prefix: str = "x") -> None:
        self.database = database
        self.version = database.version
        self.prefix = prefix
        self.clock = database.clock
        self.clock.freeze()
        self.admin = database.connect()
        self.admin.execute("create table trex_test.effect (instance_key text, message_id bigint)")
        self.admin.execute("grant select, insert on trex_test.effect to public")
        # A deadlock is found soon: each is a failure.
        self.admin.execute(f"alter database {database.dbname} set deadlock_timeout = '20ms'")
        self.helper = database.connect(ROLE)
        self.role = self.helper.info.user
        self.sessions: dict[str, Session] = {}
        self.runs = 0
        self.unchecked: dict[str, Run] = {}
        self.totals: dict[str, Counter[str]] = {}
        self.seconds: Counter[str] = Counter()

    def session(self, letter: str) -> Session:
        if letter not in self.sessions:
            conn = self.database.connect(None if letter == "t" else ROLE)
            self.sessions[letter] = Session(letter, conn)
        return self.sessions[letter]

    # One schedule

    def run(self, scenario: Scenario, choose: Callable[[str], str]) -> Run:
        """Run one schedule; `choose` takes one of the letters whose sessions could go on."""
        self.runs += 1
        run = Run(self, scenario, f"{self.prefix}{self.runs}")
        columns = "".join(f", {column}" for column in scenario.settings)
        marks = ", %s" * len(scenario.settings)
        self.admin.execute(
            f"with i as (insert into trex.instance (instance_key, registered_at{columns})"
            f" values (%s, now(){marks}) returning instance_key)"
            " insert into trex.binding (instance_key, role_name, bound_at)"
            " select i.instance_key, %s, now() from i",
            (run.key, *scenario.settings.values(), self.role),
        )
        scenario.setup(run)
        taking = {letter: self.session(letter) for letter in scenario.sessions}
        for letter, session in taking.items():
            session.load(scenario.sessions[letter])
        try:
            while True:
                enabled = "".join(letter for letter, s in taking.items() if s.ready(run))
                if not enabled:
                    if not any(s.pending for s in taking.values()):
                        break
                    # All wait for each other: the server ends one of them.
                    self._settle(run, taking, until_one_ends=True)
                    continue
                letter = choose(enabled)
                if letter not in enabled:
                    raise Diverged
                run.choices.append((enabled, letter))
                run.schedule += letter
                self._start(taking[letter])
                self._settle(run, taking)
                self._one_of_a_key(run)
            self._count(run)
            scenario.check(run)
            if scenario.drain:
                self._drain(run)
        except AssertionError as error:
            raise ScheduleError(f"{error}\n{run.story()}") from None
        finally:
            for session in taking.values():
                self._reset(session)
        self.unchecked[run.key] = run
        totals = self.totals.setdefault(scenario.name, Counter())
        totals.update(run.counts)
        totals["schedules"] += 1
        return run

    def _start(self, session: Session) -> None:
        made = session.made
        assert made is not None
        session.pending = Answer(session.letter, session.next)
        session.made = None
        session.next += 1
        session.send(made)

    def _settle(
        self, run: Run, taking: Mapping[str, Session], *, until_one_ends: bool = False
    ) -> None:
        """Wait until every pending step has ended or waits for another session of this run."""
        started = time.monotonic()
        while pending := [session for session in taking.values() if session.pending]:
            readable, _, _ = select.select([s.pgconn.socket for s in pending], [], [], 0.002)
            ended = False
            for session in pending:
                answer = session.pending
                if session.pgconn.socket in readable and answer and session.poll():
                    run.answers.append(answer)
                    ended = True
            if ended:
                until_one_ends = False
                continue
            if not readable and not until_one_ends and self._all_wait(pending):
                for session in pending:
                    if session.pending and not session.pending.waited:
                        session.pending.waited = True
                return
            if time.monotonic() - started > STUCK:
                raise ScheduleError(f"no answer for {STUCK} s")

    def _one_of_a_key(self, run: Run) -> None:
        """I20 after each step: at the end it may hold again."""
        found = self.admin.execute(
            "select ordering_key from trex.delivery where instance_key = %s"
            " and ordering_key is not null and lease_until > trex._now()"
            " group by box, ordering_key having count(*) > 1",
            (run.key,),
        ).fetchall()
        assert not found, f"I20 two of a key in flight: {found}"

    def _all_wait(self, pending: Sequence[Session]) -> bool:
        ours = [session.pid for session in self.sessions.values()]
        query = "select bool_and(pg_blocking_pids(p) && %s::int[]) from unnest(%s::int[]) p"
        row = self.admin.execute(query, (ours, [session.pid for session in pending])).fetchone()
        return row is not None and row[0] is True

    def _reset(self, session: Session) -> None:
        """Back to no transaction, whatever happened."""
        if session.pending is not None:
            session.conn.cancel_safe(timeout=5)
            while not session.poll():
                select.select([session.pgconn.socket], [], [], 1)
        if session.pgconn.transaction_status != TransactionStatus.IDLE:
            session.conn.execute("rollback")

    def _count(self, run: Run) -> None:
        """Count what the server said, and refuse what no step may say."""
        for answer in run.answers:
            run.counts["steps"] += 1
            if answer.skipped:
                run.counts["skipped"] += 1
            if answer.waited:
                run.counts["lock waits"] += 1
            if answer.error:
                run.counts[answer.error] += 1
                assert answer.error in run.scenario.allowed, f"SQLSTATE {answer.error}"
            for row in answer.rows:
                if isinstance(row, dict) and "status" in row:
                    run.counts[str(row["status"])] += 1
                elif isinstance(row, dict) and "lease_until" in row:
                    run.counts["claims"] += 1

    def _drain(self, run: Run) -> None:
        """Deliver all that isn't parked, each ordering key in order, nobody left behind."""
        counts = run.counts
        reports: list[tuple[int, int]] = []
        for round_number in range(60):
            rows = self.helper.execute(
                "select to_jsonb(e) from trex.exchange(%s, 'drain', 10, p_message_ids => %s,"
                " p_fences => %s, p_results => %s) e",
                (
                    run.key,
                    [message_id for message_id, _ in reports],
                    [fence for _, fence in reports],
                    ["completed"] * len(reports),
                ),
            ).fetchall()
            claims = [row[0] for row in rows if row[0]["status"] is None]
            for (row,) in rows:
                assert row["status"] in (None, "recorded"), f"drain: {row}"
            keys = [claim["ordering_key"] for claim in claims if claim["ordering_key"]]
            assert len(keys) == len(set(keys)), f"drain: two of one key in flight: {claims}"
            run.drained += claims
            reports = [(claim["message_id"], claim["fence"]) for claim in claims]
            if not claims:
                left = self._left(run)
                if not left:
                    break
                assert round_number < 59, f"drain: never due: {left}"
                # Leases and backoffs end.
                self.clock.advance(3600)
        else:
            raise AssertionError(f"drain: still claiming {run.drained[-3:]}")
        counts["drained"] += len(run.drained)
        last: dict[str, int] = {}
        for claim in run.drained:
            key = claim["ordering_key"]
            if key is not None:
                assert claim["message_id"] > last.get(key, 0), "drain: out of order"
                last[key] = claim["message_id"]

    def _left(self, run: Run) -> list[tuple[Any, ...]]:
        """What is neither delivered nor parked, nor behind something parked."""
        return run.admin(
            """
            select d.message_id, d.deferred_until::text, d.lease_until::text
            from trex.delivery d join trex.instance i using (instance_key)
            where d.instance_key = %s and d.parked is null and not (
                i.on_parked = 'block' and d.ordering_key is not null and exists (
                    select 1 from trex.delivery e
                    where (e.instance_key, e.box, e.ordering_key)
                        = (d.instance_key, d.box, d.ordering_key)
                        and e.parked is not null and not e.abandoned
                        and e.message_id < d.message_id
                )
            )
            """,
            run.key,
        )

    # Many schedules

    def verify(self) -> None:
        """Ask the invariants of all instances since the last time."""
        if not self.unchecked:
            return
        found = violations(self.admin, list(self.unchecked), books=True, stranded=True)
        if found:
            named = [run for key, run in self.unchecked.items() if f"'{key}'" in found[0]]
            story = named[0].story() if named else ", ".join(self.unchecked)
            raise ScheduleError("\n".join([*found[:5], story]))
        self.unchecked.clear()

    def replay(self, scenario: Scenario, schedule: str) -> Run:
        """Run one schedule. A letter that can't go on lets the others go first."""
        run = self.run(scenario, in_order(schedule))
        self.verify()
        return run

    def schedules(self, scenario: Scenario) -> Iterator[Run]:
        """Run every schedule, depth first."""
        choices: list[tuple[str, str]] = []
        tries = 0
        while True:
            letters = iter([letter for _, letter in choices])
            try:
                run = self.run(scenario, lambda enabled, left=letters: next(left, enabled[0]))  # type: ignore[misc]
            except Diverged:
                tries += 1
                self.totals.setdefault(scenario.name, Counter())["diverged"] += 1
                if tries < 5:
                    continue
            else:
                yield run
                choices = run.choices
            tries = 0
            while choices and choices[-1][0][-1] == choices[-1][1]:
                choices.pop()
            if not choices:
                return
            enabled, taken = choices.pop()
            choices.append((enabled, enabled[enabled.index(taken) + 1]))

    def samples(self, scenario: Scenario, most: int, seed: int) -> Iterator[Run]:
        """Run schedules drawn at random, each once; a seed draws the same ones."""
        chance = random.Random(f"{scenario.name} {seed}")
        letters = [letter for letter, steps in scenario.sessions.items() for _ in steps]
        seen: set[str] = set()
        while len(seen) < most:
            chance.shuffle(letters)
            if (order := "".join(letters)) in seen:
                continue
            seen.add(order)
            yield self.run(scenario, in_order(order))

    def explore(
        self,
        scenario: Scenario,
        most: int | None = None,
        seed: int = 1,
        progress: Callable[[Run], None] | None = None,
    ) -> Counter[str]:
        """Run all schedules, or `most` of them drawn at random; verify all; return the counters.

        Fails when the counters don't reach the scenario's least, unless they are of a few samples.
        """
        started = time.monotonic()
        everything = most is None or scenario.orders <= most * 4
        runs = self.schedules(scenario) if everything else self.samples(scenario, most or 1, seed)
        for run in runs:
            if progress is not None:
                progress(run)
            if len(self.unchecked) >= 100:
                self.verify()
        self.verify()
        totals = self.totals[scenario.name]
        self.seconds[scenario.name] += int(1000 * (time.monotonic() - started))
        number = totals["schedules"]
        missing = {
            name: (totals[name], least * number // 100)
            for name, least in scenario.least.items()
            if totals[name] < least * number // 100
        }
        if missing and (everything or number >= 50):
            raise ScheduleError(f"{scenario.name} saw too little (seen, wanted): {missing}")
        return totals
