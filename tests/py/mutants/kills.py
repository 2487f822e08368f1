"""One purpose-made test for each kind of fault: passes on the true schema, raises on the mutant."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from tests.support.databases import role_name
from tests.support.interleavings import Answer, Session
from tests.support.invariants import violations
from tests.support.looks import stopped_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

ROLE = "other"


class WrongCodeError(AssertionError):
    """A call ended with this SQLSTATE, and another or none was due."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Rig:
    """An instance with a bound role, and connections; every kill gets one of its own."""

    numbers = 0

    def __init__(self, database: Database, admin: psycopg.Connection[Any]) -> None:
        Rig.numbers += 1
        self.database = database
        self.admin = admin
        self.key = f"kill{Rig.numbers}"
        self.role = role_name(ROLE)
        self._conn: psycopg.Connection[Any] | None = None
        self.register(self.key)

    def register(self, key: str, role: str | None = None) -> None:
        """An instance that the role is bound to."""
        self.admin.execute(
            "insert into trex.instance (instance_key, registered_at) values (%s, now())", (key,)
        )
        self.bind(key, role or self.role)

    def bind(self, key: str, role: str) -> None:
        self.admin.execute("insert into trex.binding values (%s, %s, now())", (key, role))

    def policy(self, **columns: Any) -> None:
        for column, value in columns.items():
            self.admin.execute(
                f"update trex.instance set {column} = %s where instance_key = %s",
                (value, self.key),
            )

    def connect(self, role: str | None = ROLE) -> psycopg.Connection[Any]:
        conn = self.database.connect(role)
        conn.execute("set statement_timeout = '10s'")
        return conn

    @property
    def conn(self) -> psycopg.Connection[Any]:
        if self._conn is None:
            self._conn = self.connect()
        return self._conn

    def call(
        self, function: str, *, on: psycopg.Connection[Any] | None = None, **values: Any
    ) -> list[dict[str, Any]]:
        """Call a function by named arguments without `p_`; the instance is this rig's."""
        values.setdefault("instance_key", self.key)
        named = ", ".join(f"p_{name} => %s" for name in values)
        with (on or self.conn).cursor(row_factory=dict_row) as cursor:
            cursor.execute(f"select * from trex.{function}({named})", list(values.values()))
            return cursor.fetchall()

    def refused(self, code: str, function: str, **values: Any) -> None:
        """The call must fail with this SQLSTATE."""
        got = sqlstate_of(lambda: self.call(function, **values))
        assert got, f"{function}: an answer, not {code}"
        if got != code:
            raise WrongCodeError(got, f"{function}: {got}, not {code}")

    def enqueue(self, key: str = "k", **more: Any) -> int:
        row = self.call("enqueue", topic="topic", idempotency_key=key, payload="{}", **more)[0]
        assert row["status"] == "enqueued", row
        return int(row["message_id"])

    def claim(self, limit: int = 1, **more: Any) -> list[dict[str, Any]]:
        return self.call("claim", worker="w", limit=limit, **more)

    def take(self, key: str = "k", **more: Any) -> tuple[int, int]:
        """Enqueue and claim one message; its id and fence."""
        message_id = self.enqueue(key, **more)
        rows = [row for row in self.claim(1000) if row["message_id"] == message_id]
        assert rows, "not claimed"
        return message_id, rows[0]["fence"]

    def end(self, function: str, message_id: int, fence: int, **more: Any) -> dict[str, Any]:
        return self.call(function, message_id=message_id, fence=fence, **more)[0]

    def lapse(self, message_id: int) -> None:
        """Its lease ended a second ago."""
        self.admin.execute(
            "update trex.delivery set lease_until = trex._now() - interval '1 s'"
            " where message_id = %s",
            (message_id,),
        )

    def due(self, message_id: int) -> None:
        """Its backoff is over."""
        self.admin.execute(
            "update trex.delivery set deferred_until = trex._now() where message_id = %s",
            (message_id,),
        )

    def row(self, message_id: int) -> dict[str, Any]:
        """Its delivery as JSON; empty when it is delivered."""
        return (
            self.one("select to_jsonb(d) from trex.delivery d where message_id = %s", message_id)
            or {}
        )

    def one(self, text: str, *values: Any) -> Any:
        row = self.admin.execute(text, values).fetchone()
        return row[0] if row else None

    def sound(self) -> None:
        found = violations(self.admin, [self.key], stranded=True)
        assert not found, found

    # Statements that may wait

    def session(self, role: str | None = ROLE) -> Session:
        return Session("x", self.connect(role))

    def start(self, session: Session, text: str, *values: Any) -> bool:
        """Start a statement; True when it waits for a lock, False when it has ended."""
        session.pending = Answer("x", 0)
        session.send((text, *values))
        while True:
            readable, _, _ = select.select([session.pgconn.socket], [], [], 0.002)
            if readable and session.poll():
                return False
            if self.one("select cardinality(pg_blocking_pids(%s)) > 0", session.pid):
                return True

    def finish(self, session: Session) -> Answer:
        """Wait for the end of what was started."""
        answer = session.pending
        assert answer is not None
        while not session.poll():
            select.select([session.pgconn.socket], [], [], 1)
        if answer.error:
            raise WrongCodeError(answer.error, f"SQLSTATE {answer.error}")
        return answer


def sqlstate_of(call: Callable[[], object]) -> str | None:
    """The SQLSTATE that a call fails with; None when it doesn't."""
    try:
        call()
    except psycopg.Error as error:
        return error.sqlstate or "none"
    return None


def late_complete(rig: Rig) -> None:
    message_id, first = rig.take()
    rig.lapse(message_id)
    second = rig.claim()[0]["fence"]
    assert second > first
    rig.refused("TX409", "complete", message_id=message_id, fence=first)
    told = rig.call("record", message_ids=[message_id], fences=[first], results=["completed"])
    assert told[0]["status"] == "claim_lost"
    assert rig.end("complete", message_id, second)["status"] == "recorded"
    assert rig.one("select fence from trex.receipt where message_id = %s", message_id) == second


def second_end(rig: Rig) -> None:
    message_id, fence = rig.take()
    assert rig.end("retry", message_id, fence)["status"] == "recorded"
    told = rig.call("record", message_ids=[message_id], fences=[fence], results=["completed"])
    assert told[0]["status"] == "ended_otherwise", "a claim ended twice"
    assert rig.end("retry", message_id, fence)["status"] == "already_recorded"
    rig.refused("TX410", "complete", message_id=message_id, fence=fence)
    rig.sound()


def race_of_two_ends(rig: Rig) -> None:
    message_id, fence = rig.take()
    other = rig.session()
    with rig.conn.transaction():
        rig.end("complete", message_id, fence)
        waits = rig.start(
            other,
            "select to_jsonb(trex.retry(%s, %s, %s, p_on_lost => 'report'))",
            rig.key,
            message_id,
            fence,
        )
    answer = rig.finish(other) if waits else None
    assert answer is not None, "it didn't wait for the first"
    assert answer.rows[0]["status"] == "ended_otherwise", answer.rows
    rig.sound()


def rolled_back_claim(rig: Rig) -> None:
    message_id = rig.enqueue()
    rig.conn.execute("begin")
    first = rig.claim()[0]
    rig.conn.execute("rollback")
    second = rig.claim()[0]
    assert second["fence"] > first["fence"], "a rolled-back fence was given again"
    assert first["attempt"] == 1
    assert second["attempt"] == 1, "a rolled-back attempt was counted"
    assert rig.row(message_id)["attempts"] == 1


def rolled_back_exchange(rig: Rig) -> None:
    message_id = rig.enqueue()
    rig.conn.execute("begin")
    first = rig.call("exchange", worker="w")[0]
    rig.conn.execute("rollback")
    second = rig.call("exchange", worker="w")[0]
    assert (first["attempt"], second["attempt"]) == (1, 1)
    assert second["fence"] > first["fence"], "a rolled-back fence was given again"
    assert rig.row(message_id)["attempts"] == 1


def rolled_back_use(rig: Rig) -> None:
    """A use that is undone leaves no count."""
    rig.call(
        "register_order", account="a", invoice_id="i", order_id="o", seller="s", buyer="b",
        item="p", amount=1, currency="USD",
    )  # fmt: skip
    rig.call(
        "receive", provider="psp", account="a", event_id="e", event_type="paid", object_id="i",
        raw="raw", payload="{}",
    )  # fmt: skip
    event = rig.claim(box="inbox")[0]
    given = rig.call(
        "finalize_paid", message_id=event["message_id"], fence=event["fence"], account="a",
        invoice_id="i", order_id="o", status="paid",
    )[0]  # fmt: skip
    rig.call("issue_capability", capability_id="c", licence_id=given["licence_id"], subject="b")
    use: dict[str, Any] = {"capability_id": "c", "subject": "b", "usage_id": "u"}
    rig.conn.execute("begin")
    first = rig.call("execute_licence", **use)[0]
    rig.conn.execute("rollback")
    second = rig.call("execute_licence", **use)[0]
    assert (first["status"], first["total"]) == ("executed", 1)
    assert (second["status"], second["total"]) == ("executed", 1), "a rolled-back use was counted"


def redriven_under_a_claim(rig: Rig) -> None:
    """One of a key is in flight, also while a claim of a later row isn't committed."""
    rig.policy(on_parked="continue")
    first, fence = rig.take("first", ordering_key="o")
    rig.end("fail", first, fence)
    second = rig.enqueue("second", ordering_key="o")
    with rig.conn.transaction():
        assert [row["message_id"] for row in rig.claim()] == [second]
        other = rig.session()
        text = "select to_jsonb(r) from trex.redrive(%s, %s, 'me', 'why') r"
        waits = rig.start(other, text, rig.key, [first])
        third = rig.connect()
        taken = [] if waits else rig.call("claim", on=third, worker="w")
    assert taken == [], "two of a key in flight"
    assert waits, "it didn't wait for the claim"
    rig.finish(other)
    assert rig.call("claim", on=third, worker="w") == []
    rig.sound()


def fence_after_the_lock(rig: Rig) -> None:
    rig.claim()  # the first claim of a new server changes the epoch's row
    message_id = rig.enqueue()
    rig.bind(rig.key, rig.admin.info.user)
    slow = rig.session()
    quick = rig.connect(None)
    # The table is locked, so the slow claim waits at its first look at it.
    quick.execute("begin; lock table trex.delivery in exclusive mode")
    assert rig.start(slow, "select to_jsonb(c) from trex.claim(%s, 'slow') c", rig.key)
    fence = rig.call("claim", on=quick, worker="quick")[0]["fence"]
    rig.call("release", on=quick, message_id=message_id, fence=fence)
    # Ready, not due: the slow one reads the clock before it waits.
    quick.execute("update trex.delivery set deferred_until = null where fence = %s", (fence,))
    quick.execute("commit")
    answer = rig.finish(slow)
    assert answer.rows[0]["fence"] > fence, "an older fence was given later"


def fences_of_two_sessions(rig: Rig) -> None:
    other = rig.connect()
    message_id = rig.enqueue()
    fences = []
    for conn in (rig.conn, other, rig.conn, other):
        row = rig.call("claim", on=conn, worker="w")[0]
        fences.append(row["fence"])
        rig.call("release", on=conn, message_id=message_id, fence=row["fence"])
    assert fences == sorted(fences), fences


def look_then_lock(rig: Rig) -> None:
    """A row that is claimed after another claim has seen it, and before that has locked it."""
    # The first claim after a start raises the epoch, and all others wait for its end.
    assert rig.claim() == []
    for correlation_id in (None, "c"):
        message_id = rig.enqueue(f"of {correlation_id}", correlation_id=correlation_id)
        late = rig.session()
        query = "select to_jsonb(c) from trex.claim(%s, 'late', p_correlation_id => %s) c"
        with stopped_at(rig.admin, late.conn, message_id) as go_on:
            assert rig.start(late, query, rig.key, correlation_id), "it didn't look at the row"
            (mine,) = rig.claim()
            go_on()
            answer = rig.finish(late)
        assert answer.rows == [], "a live lease was given twice"
        assert rig.row(message_id)["fence"] == mine["fence"]
    rig.sound()


def lease_by_the_clock(rig: Rig) -> None:
    rig.enqueue()
    with rig.conn.transaction():
        rig.conn.execute("select now()")
        while not rig.conn.execute("select clock_timestamp() > now() + '20 ms'").fetchone()[0]:  # type: ignore[index]
            pass
        before = rig.conn.execute("select clock_timestamp()").fetchone()
        row = rig.claim(lease="1 s")[0]
    assert before is not None
    assert (row["lease_until"] - before[0]).total_seconds() >= 1, "born part expired"


def claim_limit(rig: Rig) -> None:
    ids = [rig.enqueue(f"k{number}") for number in range(6)]
    for limit in (1, 2):
        # A session of its own: its plans are made on what the statistics say now.
        rows = rig.call("claim", on=rig.connect(), worker="w", limit=limit)
        assert [row["message_id"] for row in rows] == ids[:limit], "not exactly the limit"
        del ids[:limit]
    due = rig.enqueue("due")
    rig.due(due)
    rows = rig.claim(2)
    assert [row["message_id"] for row in rows] == [due, ids[0]], "one of each"


def due_now(rig: Rig) -> None:
    clock = rig.database.clock
    clock.freeze()
    message_id, fence = rig.take()
    rig.end("release", message_id, fence)
    claims = rig.claim()
    assert claims, "due at this moment, and not claimed"
    rig.call("record", message_ids=[message_id], fences=[claims[0]["fence"]], results=["completed"])
    other = rig.enqueue("other")
    assert rig.claim(lease="30 s")
    clock.advance(30)
    assert [row["message_id"] for row in rig.claim()] == [other], "its lease ended at this moment"


def attempts(rig: Rig) -> None:
    message_id, fence = rig.take()
    assert rig.row(message_id)["attempts"] == 1
    rig.end("retry", message_id, fence)
    rig.due(message_id)
    assert rig.claim()[0]["attempt"] == 2
    rig.sound()


def retry(rig: Rig) -> None:
    message_id, fence = rig.take()
    answer = rig.end("retry", message_id, fence)
    assert answer["state"] == "deferred"
    row = rig.row(message_id)
    assert row["lease_until"] is None, "retried, and still leased"
    rig.due(message_id)
    assert rig.claim(), "the backoff is over"


def allowance(rig: Rig) -> None:
    rig.policy(max_attempts=1)
    message_id, fence = rig.take()
    assert rig.end("release", message_id, fence)["state"] == "ready"
    claims = rig.claim()
    assert claims, "released: the allowance isn't used up"
    assert rig.end("retry", message_id, claims[0]["fence"])["state"] == "dead_letter", (
        "the allowance is used up"
    )


def parked(rig: Rig) -> None:
    message_id, fence = rig.take(correlation_id="c")
    assert rig.end("dead_letter", message_id, fence)["state"] == "dead_letter"
    assert rig.claim() == []
    assert rig.claim(correlation_id="c") == []


def delivered(rig: Rig) -> None:
    message_id, fence = rig.take()
    rig.end("complete", message_id, fence)
    assert rig.claim() == [], "delivered, and given out again"
    assert rig.row(message_id) == {}
    rig.sound()


def exhausted_head(rig: Rig) -> None:
    rig.policy(max_attempts=1)
    head, _ = rig.take("head")
    rig.lapse(head)
    second = rig.enqueue("second")
    assert [row["message_id"] for row in rig.claim()] == [second]
    assert rig.row(head)["parked"] == "unknown", "the exhausted one is still at the head"
    rig.sound()


def same_key_again(rig: Rig) -> None:
    message_id, fence = rig.take("the-key")
    rig.end("mark_unknown", message_id, fence)
    rig.due(message_id)
    again = rig.claim()[0]
    assert again["uncertain"]
    assert again["idempotency_key"] == "the-key", "another key"


def mark_sent(rig: Rig) -> None:
    message_id, first = rig.take(effect_policy="at_most_once")
    rig.lapse(message_id)
    second = rig.claim()[0]["fence"]
    rig.refused("TX409", "mark_sent", message_id=message_id, fence=first)
    assert rig.row(message_id)["sent_fence"] is None
    assert rig.end("mark_sent", message_id, second)["status"] == "recorded"


def heartbeat(rig: Rig) -> None:
    message_id, first = rig.take()
    rig.call("extend", message_ids=[message_id], fences=[first], lease="60 s")
    until = rig.row(message_id)["lease_until"]
    rig.call("extend", message_ids=[message_id], fences=[first], lease="1 s")
    assert rig.row(message_id)["lease_until"] == until, "shortened"
    rig.lapse(message_id)
    rig.claim(lease="1 s")
    until = rig.row(message_id)["lease_until"]
    told = rig.call("extend", message_ids=[message_id], fences=[first], lease="60 s")
    assert told[0]["status"] == "claim_lost", "revived"
    assert rig.row(message_id)["lease_until"] == until, "somebody else's lease"


def other_instance(rig: Rig) -> None:
    message_id, fence = rig.take()
    rig.register(rig.key + "-b")
    rig.refused(
        "TX404", "complete", instance_key=rig.key + "-b", message_id=message_id, fence=fence
    )
    assert rig.row(message_id)["lease_until"] is not None


def binding(rig: Rig) -> None:
    rig.register(rig.key + "-b", "somebody-else")
    rig.refused("TX403", "claim", instance_key=rig.key + "-b", worker="w")
    rig.refused("TX403", "exchange", instance_key=rig.key + "-b", worker="w")
    rig.refused("TX403", "list_pending", instance_key=rig.key + "-b")
    rig.refused(
        "TX403", "enqueue", instance_key=rig.key + "-b", topic="t", idempotency_key="k", payload="1"
    )
    rig.refused("TX403", "complete", instance_key=rig.key + "-b", message_id=1, fence=1)


def custom_setting(rig: Rig) -> None:
    rig.register(rig.key + "-b", "somebody-else")
    for name in ("trex.role", "trex.caller", "trex.instance_key", "app.role"):
        rig.conn.execute("select set_config(%s, 'somebody-else', false)", (name,))
    rig.refused("TX403", "claim", instance_key=rig.key + "-b", worker="w")


def public(rig: Rig) -> None:
    may = rig.one(
        """
        select array_agg(p.oid::regprocedure::text)
        from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'trex'::regnamespace and a.grantee = 0
        """
    )
    assert may is None, may
    rig.bind(rig.key, "trex_test_reader")
    rig.enqueue()
    reader = rig.connect("reader")
    rig.refused("42501", "claim", on=reader, worker="w")


def shadowed(rig: Rig) -> None:
    """An operator `=` of the caller's, always true, must not be the one that is used."""
    schema = f"evil_{rig.key}"
    other = rig.key + "-b"
    rig.register(other)
    rig.enqueue("mine")
    rig.call("enqueue", instance_key=other, topic="topic", idempotency_key="theirs", payload="{}")
    rig.admin.execute(
        f"""
        create schema {schema};
        create function {schema}.yes(text, text) returns boolean language sql as 'select true';
        create operator {schema}.= (function = {schema}.yes, leftarg = text, rightarg = text);
        grant usage on schema {schema} to public;
        """
    )
    conn = rig.connect()
    conn.execute(f"set search_path = {schema}, pg_catalog")
    keys = [row["idempotency_key"] for row in rig.call("list_pending", on=conn)]
    assert keys == ["mine"], keys


def guards_always(rig: Rig) -> None:
    message_id, fence = rig.take()
    rig.end("complete", message_id, fence)
    message_id, fence = rig.take("k2")
    rig.end("retry", message_id, fence)
    conn = rig.connect(None)
    conn.execute("set session_replication_role = replica")
    for text in (
        "delete from trex.receipt",
        "delete from trex.outcome",
        "delete from trex.message",
        "delete from trex.delivery",
        "update trex.message set topic = 'other'",
        "update trex.delivery set fence = fence - 1 where fence > 0",
    ):
        expect_guard(conn, text)


def batch_order(rig: Rig) -> None:
    ids = [rig.enqueue(f"k{number}") for number in range(2)]
    fences = [row["fence"] for row in rig.claim(2)]
    rig.admin.execute("set deadlock_timeout = '20ms'")
    holder = rig.connect(None)
    sessions = [rig.session(), rig.session()]
    for session in sessions:
        session.conn.execute("select 1")
    query = "select to_jsonb(r) from trex.record(%s, %s, %s, '{completed,completed}') r"
    holder.execute("begin")
    holder.execute("select from trex.delivery where message_id = %s for update", (ids[0],))
    assert rig.start(sessions[0], query, rig.key, ids, fences)
    assert rig.start(sessions[1], query, rig.key, ids[::-1], fences[::-1])
    holder.execute("commit")
    answers = [rig.finish(session) for session in sessions]
    recorded = [row["status"] for answer in answers for row in answer.rows]
    assert sorted(recorded) == ["already_recorded"] * 2 + ["recorded"] * 2


def content(rig: Rig) -> None:
    first = rig.enqueue()
    values: dict[str, Any] = {"topic": "topic", "idempotency_key": "k"}
    same = rig.call("enqueue", payload="{}", **values)[0]
    assert (same["message_id"], same["status"]) == (first, "duplicate")
    rig.refused("TX422", "enqueue", payload='{"a": 1}', **values)


def keys_of_two_instances(rig: Rig) -> None:
    rig.register(rig.key + "-b")
    first = rig.enqueue()
    second = rig.call(
        "enqueue", instance_key=rig.key + "-b", topic="topic", idempotency_key="k", payload="{}"
    )[0]
    assert second["status"] == "enqueued", "a key of another instance"
    assert second["message_id"] != first


def redrive(rig: Rig) -> None:
    unknown, fence = rig.take("unknown")
    assert rig.end("mark_unknown", unknown, fence, park=True)["state"] == "unknown"
    dead, fence = rig.take("dead")
    assert rig.end("dead_letter", dead, fence)["state"] == "dead_letter"
    rows = rig.call("redrive", message_ids=[unknown, dead], actor="me", reason="why")
    assert [row["status"] for row in rows] == ["needs_resolve", "redriven"], (
        "redriven without evidence"
    )
    row = rig.row(dead)
    assert (row["attempts"], row["tries"], row["fence"]) == (1, 0, fence)
    again = rig.claim()[0]
    assert (again["attempt"], again["tries"]) == (2, 1)
    assert again["fence"] > fence
    rig.sound()


def given_up(rig: Rig) -> None:
    first, fence = rig.take("first", ordering_key="o")
    second = rig.enqueue("second", ordering_key="o")
    rig.end("fail", first, fence)
    assert rig.claim() == [], "a parked one lets its key go on"
    why: dict[str, Any] = {"actor": "me", "reason": "why"}
    act: dict[str, Any] = {"resolution": "abandon", "evidence": "e", **why}
    rig.call("resolve", message_id=first, **act)
    rows = rig.claim()
    assert [row["message_id"] for row in rows] == [second], "given up, and in the way"
    rig.end("complete", second, rows[0]["fence"])
    rig.call("redrive", message_ids=[first], **why)
    third = rig.enqueue("third", ordering_key="o")
    fence = rig.claim()[0]["fence"]
    rig.end("fail", first, fence)
    assert rig.claim() == [], "redriven, and still given up"
    assert rig.row(third)["lease_until"] is None
    rig.sound()


def given_up_in_doubt(rig: Rig) -> None:
    first, fence = rig.take("first", effect_policy="at_most_once")
    rig.end("mark_unknown", first, fence)
    why: dict[str, Any] = {"actor": "me", "reason": "why"}
    rig.call("resolve", message_id=first, resolution="abandon", evidence="e", **why)
    assert rig.row(first)["uncertain"], "certain without evidence"
    rig.sound()
    rows = rig.call("redrive", message_ids=[first], **why)
    assert [row["status"] for row in rows] == ["needs_resolve"], "live, and in doubt"
    rig.call("resolve", message_id=first, resolution="absent", evidence="e", **why)
    assert not rig.row(first)["uncertain"], "in doubt, whatever the evidence"
    rig.sound()


def one_end_each(rig: Rig) -> None:
    rig.policy(max_attempts=2)
    message_id, fence = rig.take()
    rig.end("retry", message_id, fence)
    rig.sound()
    rig.due(message_id)
    assert rig.claim()
    rig.lapse(message_id)
    assert rig.claim() == []
    assert rig.row(message_id)["parked"]
    rig.sound()
    ends = rig.one("select count(*) from trex.outcome where message_id = %s", message_id)
    assert ends == 2


def lost_claim_changes_nothing(rig: Rig) -> None:
    message_id, fence = rig.take(account="acme", currency="EUR", cash_delta=1)
    rig.end("dead_letter", message_id, fence)
    rig.call("redrive", message_ids=[message_id], actor="me", reason="why")
    late = rig.claim()[0]["fence"]
    rig.lapse(message_id)
    assert rig.claim()
    before = rig.row(message_id)
    told = rig.end("complete", message_id, late, balance=5, version=1, on_lost="report")
    assert told["status"] == "claim_lost"
    assert rig.row(message_id) == before
    snapshots = "select count(*) from trex.ledger_snapshot where instance_key = %s"
    assert rig.one(snapshots, rig.key) == 0, "a snapshot of a lost claim"
    skip = "select resolved_at is null from trex.ledger_skip where message_id = %s"
    assert rig.one(skip, message_id) is True, "a skip resolved by a lost claim"


def epoch(rig: Rig) -> None:
    message_id, first = rig.take()
    rig.end("release", message_id, first)
    # As after a restart.
    rig.admin.execute("update trex.epoch set postmaster_start = '2000-01-01'")
    second = rig.claim()[0]["fence"]
    assert second >> 42 == (first >> 42) + 1, "the same epoch after a restart"


def async_commit(rig: Rig) -> None:
    rig.enqueue()
    rig.conn.execute("set synchronous_commit = off")
    with rig.conn.transaction():
        assert rig.claim()
        setting = rig.conn.execute("show synchronous_commit").fetchone()
    assert setting == ("on",), setting


def isolation(rig: Rig) -> None:
    rig.enqueue()
    rig.conn.execute("begin isolation level repeatable read")
    rig.refused("TX501", "claim", worker="w")
    rig.conn.execute("rollback")
    rig.conn.execute("begin")
    rig.enqueue("other")
    rig.refused("TX501", "claim", worker="w")
    rig.conn.execute("rollback")


def hold_timeout(rig: Rig) -> None:
    message_id, fence = rig.take()
    with rig.conn.transaction():
        rig.call("hold", message_id=message_id, fence=fence, timeout="7 s")
        setting = rig.conn.execute("show idle_in_transaction_session_timeout").fetchone()
    assert setting == ("7s",), setting


def uncertain(rig: Rig) -> None:
    rig.policy(max_attempts=3)
    message_id, _ = rig.take()
    rig.lapse(message_id)
    second = rig.claim()[0]
    assert second["uncertain"], "a lease that ended: nobody knows"
    rig.end("retry", message_id, second["fence"])
    rig.due(message_id)
    third = rig.claim()[0]
    assert third["uncertain"], "a later refusal says nothing of the earlier attempt"
    assert rig.end("retry", message_id, third["fence"])["state"] == "unknown", "called dead"
    rig.sound()


def at_most_once(rig: Rig) -> None:
    message_id, fence = rig.take(effect_policy="at_most_once")
    rig.end("mark_sent", message_id, fence)
    rig.lapse(message_id)
    assert rig.claim() == [], "sent, and given out again"
    assert rig.row(message_id)["parked"] == "unknown"
    rig.sound()


def ordering(rig: Rig) -> None:
    rig.policy(on_parked="continue")
    first, fence = rig.take("first", ordering_key="o")
    second = rig.enqueue("second", ordering_key="o")
    assert rig.claim() == [], "the second is behind the first"
    rig.end("complete", first, fence)
    rows = rig.call("list_pending")
    assert [(row["message_id"], row["state"]) for row in rows] == [(second, "ready")], (
        "the next isn't freed"
    )
    fence = rig.claim()[0]["fence"]
    rig.end("dead_letter", second, fence)
    third, fence = rig.take("third", ordering_key="o")
    rig.call("redrive", message_ids=[second], actor="me", reason="why")
    assert rig.claim() == [], "two of a key in flight"
    rig.end("complete", third, fence)
    assert [row["message_id"] for row in rig.claim()] == [second]


def ordering_under_lock(rig: Rig) -> None:
    first, _ = rig.take("first", ordering_key="o")
    rig.lapse(first)
    second = rig.enqueue("second", ordering_key="o")
    holder = rig.connect(None)
    holder.execute("begin")
    holder.execute("select from trex.delivery where message_id = %s for update", (first,))
    assert rig.claim() == [], "the first is only locked"
    holder.execute("commit")
    assert [row["message_id"] for row in rig.claim()] == [first]
    assert rig.row(second)["lease_until"] is None


def freed_in_order(rig: Rig) -> None:
    """An end must not wait for an earlier row of its key while it holds its own."""
    rig.policy(on_parked="continue")
    first, fence = rig.take("first", ordering_key="o")
    rig.end("dead_letter", first, fence)
    second, fence = rig.take("second", ordering_key="o")
    rig.enqueue("third", ordering_key="o")
    rig.call("redrive", message_ids=[first], actor="me", reason="why")
    holder, session = rig.connect(None), rig.session()
    holder.execute("begin")
    holder.execute("select from trex.delivery where message_id = %s for update", (first,))
    query = "select to_jsonb(trex.complete(%s, %s, %s))"
    assert not rig.start(session, query, rig.key, second, fence), "waits for an earlier row"
    holder.execute("commit")


def snapshot_version(rig: Rig) -> None:
    cash: dict[str, Any] = {"account": "acme", "currency": "EUR", "cash_delta": 1}
    for number, (balance, version) in enumerate(((5, 2), (4, 1))):
        message_id, fence = rig.take(f"k{number}", **cash)
        rig.end("complete", message_id, fence, balance=balance, version=version)
    row = rig.admin.execute(
        "select version, balance, ignored from trex.ledger_snapshot where instance_key = %s",
        (rig.key,),
    ).fetchone()
    assert row is not None
    assert [int(value) for value in row] == [2, 5, 1]


def facts(rig: Rig) -> None:
    message_id, fence = rig.take()
    undelivered = "update trex.message set payload = null where message_id = %s"
    changed = "update trex.message set payload = '[]' where message_id = %s"
    for text in (undelivered, changed):
        expect_guard(rig.admin, text, message_id)
    rig.end("complete", message_id, fence)
    expect_guard(rig.admin, changed, message_id)
    rig.admin.execute(undelivered, (message_id,))


def expect_guard(conn: psycopg.Connection[Any], text: str, *values: Any) -> None:
    """A statement that the guards of the tables must refuse."""
    got = sqlstate_of(lambda: conn.execute(text, values))
    assert got in ("TX901", "TX902"), f"{text}: {got or 'went through'}"


def evidence(rig: Rig) -> None:
    message_id, fence = rig.take()
    rig.call("record", message_ids=[message_id], fences=[fence + 1], results=["completed"])
    stored = "select count(*) from trex.stale_report where message_id = %s"
    assert rig.one(stored, message_id) == 0, "evidence of a fence that nobody had"
    rig.lapse(message_id)
    rig.claim()
    rig.call("record", message_ids=[message_id], fences=[fence], results=["completed"])
    assert rig.one(stored, message_id) == 1


def paused(rig: Rig) -> None:
    rig.enqueue()
    rig.call("pause", actor="me", reason="why")
    assert rig.claim() == [], "paused"
    rig.call("resume", actor="me", reason="why")
    assert rig.claim()


KILLS: dict[str, Callable[[Rig], None]] = {
    kill.__name__: kill
    for kill in (
        late_complete,
        second_end,
        race_of_two_ends,
        rolled_back_claim,
        rolled_back_exchange,
        rolled_back_use,
        redriven_under_a_claim,
        fence_after_the_lock,
        fences_of_two_sessions,
        look_then_lock,
        lease_by_the_clock,
        claim_limit,
        attempts,
        retry,
        allowance,
        parked,
        delivered,
        exhausted_head,
        same_key_again,
        mark_sent,
        heartbeat,
        other_instance,
        binding,
        custom_setting,
        public,
        shadowed,
        guards_always,
        batch_order,
        content,
        keys_of_two_instances,
        redrive,
        given_up,
        given_up_in_doubt,
        one_end_each,
        lost_claim_changes_nothing,
        epoch,
        async_commit,
        isolation,
        hold_timeout,
        uncertain,
        at_most_once,
        ordering,
        ordering_under_lock,
        freed_in_order,
        snapshot_version,
        facts,
        evidence,
        paused,
        due_now,  # the last one: it stops the clock
    )
}
