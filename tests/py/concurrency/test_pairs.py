"""Every two calls on one message, from two sessions, in both orders, with commit and rollback.

The first call holds its locks in an open transaction (claim and exchange, which commit by
themselves, run under the lock of a row that a third session holds). The second must wait, step
aside or be told; then the first ends. What both answered and the tables must be what one of the
two serial orders gives on the simulation, and every invariant holds.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import ROLES, START, WHO, Refusal, outcome
from tests.support.dumps import Dump, difference, memory_dump
from tests.support.invariants import violations
from tests.support.sessions import Session, waits
from trex_client._calls import Calls
from trex_client.memory import Clock, MemoryClient, MemoryDatabase
from trex_client.model import Claim, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.support.backends import PostgresBackend
    from trex_client.api import Trex

pytestmark = [pytest.mark.criterion("ac-0029"), pytest.mark.criterion("ac-0032")]

SECOND = timedelta(seconds=1)


def _single(name: str, **more: Any) -> Callable[[Trex, dict[int, Claim]], object]:
    return lambda client, c: getattr(client, name)(1, c[1].fence, **more)


ACTS: dict[str, Callable[[Trex, dict[int, Claim]], object]] = {
    "complete": _single("complete", reference="r"),
    "complete_duplicate": _single("complete_duplicate"),
    "retry": _single("retry", delay=0 * SECOND),
    "mark_unknown": _single("mark_unknown", park=True),
    "conflict": _single("conflict"),
    "fail": _single("fail"),
    "dead_letter": _single("dead_letter"),
    "release": _single("release"),
    "postpone": lambda client, c: client.postpone(1, c[1].fence, 5 * SECOND),
    "mark_sent": _single("mark_sent"),
    "hold": _single("hold"),
    "extend": lambda client, c: client.extend([1], [c[1].fence], lease=60 * SECOND),
    "record": lambda client, c: client.record(
        [Report(2, c[2].fence, "completed"), Report(1, c[1].fence, "retry")]
    ),
    "claim": lambda client, _: client.claim("v", 5, lease=5 * SECOND),
    "targeted": lambda client, _: client.claim("v", 5, lease=5 * SECOND, correlation_id="c"),
    "exchange": lambda client, c: client.exchange([Report(1, c[1].fence, "released")], "v", 5),
    "redrive": lambda client, _: client.redrive([3, 1], **WHO),
    "resolve": lambda client, _: client.resolve(4, "resend", evidence="e", **WHO),
    "abandon": lambda client, _: client.resolve(4, "delivered", evidence="e", **WHO),
    "expedite": lambda client, _: client.expedite([1, 5], **WHO),
    "enqueue": lambda client, _: client.enqueue("t", "new", {}, ordering_key="o"),
    "policy": lambda client, _: client.register_instance(**WHO, on_parked="continue"),
}
ROLLED_BACK = ("complete", "retry", "extend", "record", "claim", "redrive", "enqueue")
"""What runs second when the first is rolled back."""
OWN = ("claim", "targeted", "exchange")
"""Transactions of their own."""


def build(name: str, register: Callable[..., Trex], advance: Callable[[float], object]) -> Any:
    """1 and 2 claimed, 3 permanent, 4 conflict, 5 deferred, 6 ready; the client and the claims.

    `ended`: the leases are over. `ordered`: 1, 3 and 6 have one ordering key, whose parked messages
    don't stop it; 3 is still ready.
    """
    shop = register("shop", max_attempts=9, on_parked="continue" if name == "ordered" else "block")
    lane = "o" if name == "ordered" else None
    shop.enqueue("t", "k1", {}, correlation_id="c", ordering_key=lane)
    shop.enqueue("t", "k2", {}, correlation_id="c2")
    shop.enqueue("t", "k3", {}, correlation_id="c3", ordering_key=lane)
    shop.enqueue("t", "k4", {}, correlation_id="c4")
    shop.enqueue("t", "k5", {}, delay=60 * SECOND)
    shop.enqueue("t", "k6", {}, correlation_id="c", ordering_key=lane)
    three = shop.claim("w", correlation_id="c3")
    (four,) = shop.claim("w", correlation_id="c4")
    shop.conflict(4, four.fence)
    claims = {
        c.message_id: c
        for cid in ("c", "c2")
        for c in shop.claim("w", 1, correlation_id=cid, lease=10 * SECOND)
    }
    for claim in three:
        shop.fail(3, claim.fence)
    if name == "ended":
        advance(10)
    return shop, claims


class _Abandoned(Exception):
    pass


class World:
    """The simulation in the situation, to run serial orders on."""

    def __init__(self, situation: str, key: str) -> None:
        self.clock = Clock(START)
        self.db = MemoryDatabase(self.clock)
        self.currencies = set(self.db.currency)
        self.key = key
        self.shop, self.claims = build(situation, self._register, self._advance)

    def _register(self, _: str, **policy: Any) -> MemoryClient:
        client = MemoryClient(self.db, self.key, ROLES["full"])
        client.register_instance(**WHO, **policy)
        for role in ("full", "second"):
            client.bind(ROLES[role], **WHO)
        return client

    def _advance(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    def run(self, role: str, act: str) -> None:
        """`act`; '-act' is rolled back, after which the ids that it drew are gone."""
        if act.removeprefix("-") in OWN and act[0] == "-":
            return
        client = MemoryClient(self.db, self.key, ROLES[role])
        with suppress(_Abandoned), nullcontext() if act[0] != "-" else self.db.transaction():
            outcome(lambda: ACTS[act.removeprefix("-")](client, self.claims))
            if act[0] == "-":
                raise _Abandoned

    def dump(self) -> Dump:
        return memory_dump(self.db, None, self.currencies)


def serial(situation: str, key: str, order: list[tuple[str, str]]) -> Dump:
    """The tables after these acts, one after the other: (role, act)."""
    world = World(situation, key)
    for role, act in order:
        world.run(role, act)
    return world.dump()


def comparable(dump: Dump) -> Dump:
    """Without what depends on who drew an id first, and without rejected reports, which roll back
    or not with their transaction."""
    known: dict[int, str] = {}
    for row in dump["outcome"]:
        known[row["fence"]] = f"{row['message_id']}/{row['attempt']}"
    for row in dump["delivery"]:
        known.setdefault(row["fence"], f"{row['message_id']}/{row['attempts']}")
    for row in dump["receipt"]:
        known.setdefault(row["fence"], f"{row['message_id']}/{row['attempt']}")
    for rows in dump.values():
        for row in rows:
            for name in ("fence", "sent_fence", "resolved_fence"):
                if row.get(name):
                    row[name] = known[row[name]]
    return {name: rows for name, rows in dump.items() if name != "stale_report"}


def coarse(dump: Dump) -> dict[int, str]:
    """How each message stands."""
    stands = {row["message_id"]: "delivered" for row in dump["receipt"]}
    for row in dump["delivery"]:
        if row["parked"] is not None:
            how = row["parked"]
        elif row["worker"] is not None:
            how = f"held by {row['worker']}"
        else:
            how = {None: "ready", "infinity": "waiting"}.get(row["deferred_until"], "deferred")
        stands[row["message_id"]] = how
    return stands


COUNTS: Counter[str] = Counter()


class Plain:
    """Calls as plain SQL, in whatever transaction there is."""

    def __init__(self, conn: psycopg.Connection[Any], key: str) -> None:
        self._conn = conn
        self._calls = Calls(key)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> object:
            statement, params = getattr(self._calls, name)(*args, **kwargs)
            return self._conn.execute(statement.sql, params).fetchall()

        return call


class Bound:
    """An act with its arguments, as a method of a session's client."""

    def __init__(self, client: Trex, act: str, claims: dict[int, Claim]) -> None:
        self.run = lambda: ACTS[act](client, claims)


def play(backend: PostgresBackend, situation: str, first: str, second: str, commit: bool) -> None:
    shop, claims = build(situation, backend.register, backend.advance)
    one = backend.client("shop", "full")
    two = backend.client("shop", "second")
    mine = backend.connection(one)
    mine.execute("begin")
    holder: Any = Plain(mine, shop.instance_key) if first in OWN else one
    answer_one = outcome(lambda: ACTS[first](holder, claims))
    bound: Any = Bound(two, second, claims)
    call = Session(bound, backend.connection(two)).start("run")
    waited = waits(backend.admin, call)
    mine.execute("commit" if commit else "rollback")
    answer_two = call.outcome()

    done = commit and not isinstance(answer_one, Refusal)
    ours, theirs = ("full", first if done else f"-{first}"), ("second", second)
    orders = [[ours, theirs], [theirs, ours]]
    found = comparable(backend.dump())
    tables = [comparable(serial(situation, shop.instance_key, order)) for order in orders]
    what = (
        f"{situation}: {first} ({answer_one!r}) then {second} ({answer_two!r}), "
        f"{'commit' if commit else 'rollback'}"
    )
    differing = [difference(table, found) for table in tables]
    if second in OWN and all(differing):
        assert not waited, what
        COUNTS["stepped aside"] += 1
        again = [[*order, ("second", "claim")] for order in orders]
        two.claim("v", 5, lease=5 * SECOND)
        stands = coarse(backend.dump())
        alike = [coarse(serial(situation, shop.instance_key, order)) for order in again]
        assert stands in alike, f"{what}: {stands} is none of {alike}"
    elif all(differing) and first not in OWN:
        told = "\nor\n".join("\n".join(lines) for lines in differing)
        pytest.fail(f"{what}: neither serial order gives these tables:\n{told}")
    elif all(differing):
        # What was rejected while the claim was open is rejected in one order or the other.
        coarse_tables = [coarse(serial(situation, shop.instance_key, order)) for order in orders]
        assert coarse(backend.dump()) in coarse_tables, what
    COUNTS["lock waits" if waited else "went on"] += 1
    for answer in (answer_one, answer_two):
        COUNTS[getattr(answer, "__name__", "answered")] += 1


@pytest.mark.parametrize(
    ("situation", "commit"),
    [("leased", True), ("leased", False), ("ended", True), ("ordered", True)],
    ids=["leased", "leased-rollback", "ended", "ordered"],
)
@pytest.mark.parametrize("first", ACTS)
def test_each_pair(postgres: PostgresBackend, first: str, situation: str, commit: bool) -> None:
    postgres.uncompared()
    COUNTS.clear()
    keys = []
    for second in ACTS if commit else ROLLED_BACK:
        postgres.again()
        play(postgres, situation, first, second, commit)
        keys += postgres.instances
    broken = violations(postgres.admin, keys)
    assert not broken, "\n".join(broken)
    print(f"{first}, {situation}: {dict(COUNTS)}")
    assert COUNTS["answered"] >= len(keys) // 2
    if first not in ("resolve", "abandon", "enqueue", "policy", *OWN) and situation == "leased":
        assert COUNTS["lock waits"] >= (5 if commit else 3)
