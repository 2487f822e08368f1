"""The same random calls on the simulation and on every PostgreSQL server, compared after each step.

Both sides start from empty tables with the same sequences, so ids, fences and waits are the same
numbers. Compared are the result or the type of the error, and a dump of all tables.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.backends import START, WHO, Refusal, Sessions, outcome
from tests.support.dumps import difference, memory_dump
from tests.support.invariants import violations
from trex_client.errors import TrexError
from trex_client.memory import Clock, MemoryClient, MemoryDatabase
from trex_client.model import (
    CONFIRMED_BY,
    REASONS,
    RESULTS,
    Exchange,
    Movement,
    Report,
    Resolution,
)
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

T = TypeVar("T")

INSTANCES = (*["shop"] * 7, "other")
PAYLOADS = ("{}", "null", '{"b": 1, "a": [1.50, 1e2]}', '"\\u00e9\\u0007"', '{"a": 1, "a": 2}')
AMOUNTS = (1, -7, Decimal("3.00"), 0, Decimal("-2.5"), 10**35, Decimal("0.001"), 10**37)
DELAYS = (*[None] * 9, 0, 1, 5, 5, 3600, -1, 3_000_000)
LEASES = (*[None] * 4, 0.1, 2, 2, 2, 10, 10, 60, 1200, 0.05)
_REASONS = sorted(REASONS)[:6]
_PARKED = ("dead_letter", "permanent", "conflict", "unknown")


def _at(choices: Sequence[T], number: int) -> T:
    return choices[number % len(choices)]


def _seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)


class Abandoned(Exception):
    """Leaves a block whose work is undone."""


class Worlds:
    """One simulation and a database of each server, in step."""

    number = 0

    def __init__(self, houses: list[Sessions], counts: Counter[str]) -> None:
        Worlds.number += 1
        self.houses = houses
        self.counts = counts
        self.log: list[str] = []
        self.clock = Clock(START)
        self.memory = MemoryDatabase(self.clock)
        self.currencies = set(self.memory.currency)
        self.keys = {name: f"{name}-p{Worlds.number}" for name in ("shop", "other")}
        role = houses[0].database.server.user
        self.sides: list[dict[str, Any]] = [
            {name: MemoryClient(self.memory, key, role) for name, key in self.keys.items()}
        ]
        self.marks = []
        self.blocks: list[list[Any]] = []
        self.texts: list[Any] = [None] * len(houses)
        self.parsed: list[Any] = [None] * len(houses)
        self.memory.quarantine_id_seq = self._align()
        for house in houses:
            house.start()
            self.marks.append(house.dumper.marks())
            self.sides.append(
                {name: PostgresClient(house.admin, key) for name, key in self.keys.items()}
            )
        for name in self.keys:
            self.call(name, "register_instance", **WHO, max_attempts=3)
            self.call(name, "bind", role, **WHO)
        self.first_quarantined = self.memory.quarantine_id_seq + 1
        for number in range(1, 5):
            self._quarantine(number)

    def _align(self) -> int:
        """Let the ids of quarantined rows, which no instance has for itself, go on alike."""
        sql = "select coalesce(max(quarantine_id), 0) from trex.quarantine"
        last = max(house.admin.execute(sql).fetchone()[0] for house in self.houses)  # type: ignore[index]
        for house in self.houses:
            house.admin.execute(
                "select setval('trex.quarantine_quarantine_id_seq', %s, true)", (last + 1,)
            )
        return int(last) + 1

    def _quarantine(self, number: int) -> None:
        columns: dict[str, Any] = {
            "source": f"old{Worlds.number}",
            "source_key": str(number),
            "topic": None if number == 1 else "old",
            "idempotency_key": None if number == 3 else f"k{number}",
            "account": "a" if number == 2 else None,
            "currency": "USD" if number == 2 else None,
            "cash_delta": Decimal("1.5") if number == 2 else None,
            "payload": None if number == 4 else '{"q": 1}',
            "imported_at": START,
        }
        for house in self.houses:
            house.admin.execute(
                f"insert into trex.quarantine ({', '.join(columns)})"
                f" values ({', '.join(['%s'] * len(columns))})",
                list(columns.values()),
            )
        source, source_key = columns.pop("source"), columns.pop("source_key")
        self.memory.quarantined(source, source_key, **columns)

    def call(self, instance: str, name: str, *args: Any, **kwargs: Any) -> object:
        """One call on every side; what the simulation answered."""
        results = [outcome(_bound(side[instance], name, args, kwargs)) for side in self.sides]
        first = results[0]
        self.log.append(f"{self.clock()} {instance}.{name}{args} {kwargs} -> {first}")
        self._count(name, first)
        for house, result in zip(self.houses, results[1:], strict=True):
            assert (result, repr(result)) == (first, repr(first)), (
                f"{self.history()}\nsimulation: {first!r}\n"
                f"PostgreSQL {house.database.server.full}: {result!r}"
            )
        return first

    def _count(self, name: str, result: object) -> None:
        self.counts[name] += 1
        if isinstance(result, Refusal):
            self.counts[f"{name} {result.kind.__name__}"] += 1
            self.counts[result.kind.__name__] += 1
            return
        for part in _parts(result):
            status = getattr(part, "status", None)
            state = getattr(part, "state", None) or getattr(part, "parked", None)
            self.counts["claims"] += hasattr(part, "payload_json")
            self.counts["uncertain claims"] += getattr(part, "payload_json", None) is not None and (
                part.uncertain
            )
            self.counts["late"] += getattr(part, "late", None) is True
            if status is not None:
                self.counts[f"status {status}"] += 1
            if isinstance(state, str):
                self.counts[f"state {state}"] += 1

    def history(self) -> str:
        return "\n".join(self.log)

    def advance(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        for house in self.houses:
            house.database.clock.freeze(self.clock())

    def restart(self) -> None:
        self.log.append("restart")
        self.memory.restart()
        for house in self.houses:
            house.admin.execute("update trex.epoch set postmaster_start = '-infinity'")

    def begin(self) -> None:
        self.log.append("begin")
        block = [self.memory.transaction(), *(h.admin.transaction() for h in self.houses)]
        for part in block:
            part.__enter__()
        self.blocks.append(block)

    def end(self, commit: bool) -> None:
        self.counts["commits" if commit else "rollbacks"] += 1
        self.log.append("commit" if commit else "rollback")
        for part in self.blocks.pop():
            if commit:
                part.__exit__(None, None, None)
            else:
                with suppress(Abandoned, TrexError):
                    part.__exit__(Abandoned, Abandoned(), None)

    @property
    def failed(self) -> bool:
        return self.memory._failed

    def compare(self) -> None:
        if self.failed:
            return
        simulated = memory_dump(self.memory, None, self.currencies)
        for i, house in enumerate(self.houses):
            texts = house.dumper.texts(self.keys.values(), self.marks[i])
            if texts != self.texts[i]:
                self.texts[i] = texts
                self.parsed[i] = house.dumper.parse(texts)
            if differing := difference(simulated, self.parsed[i]):
                lines = "\n".join(differing)
                full = house.database.server.full
                raise AssertionError(
                    f"{self.history()}\nsimulation (<) and PostgreSQL {full} (>) differ:\n{lines}"
                )

    def close(self) -> None:
        while self.blocks:
            self.end(commit=False)
        for house in self.houses:
            broken = violations(house.admin, list(self.keys.values()))
            assert not broken, f"{self.history()}\n" + "\n".join(broken)


def _bound(client: Any, name: str, args: Any, kwargs: Any) -> Callable[[], object]:
    return lambda: getattr(client, name)(*args, **kwargs)


def _parts(result: object) -> list[Any]:
    if isinstance(result, list):
        return result
    if isinstance(result, Exchange):
        return [*result.recorded, *result.claims]
    return [result]


class Machine(RuleBasedStateMachine):
    """Calls with arguments that are mostly to the point. Subclasses set `houses` and `counts`."""

    houses: list[Sessions]
    counts: Counter[str]
    worlds: type[Worlds] = Worlds

    @initialize()
    def begin_history(self) -> None:
        self.w = self.worlds(self.houses, self.counts)
        self.counts["histories"] += 1

    def teardown(self) -> None:
        if hasattr(self, "w"):
            self.w.close()

    def step(self, n: int, name: str, *args: Any, **kwargs: Any) -> object:
        result = self.w.call(_at(INSTANCES, n), name, *args, **kwargs)
        self.w.compare()
        self.counts["steps"] += 1
        return result

    # What there is, as the simulation knows it

    def message_id(self, instance: str, n: int) -> int:
        key = self.w.keys[instance]
        ids = sorted(i for k, i in self.w.memory.message if k == key)
        return ids[n % len(ids)] if ids and n % 31 else n % 50 + 1

    def claim_of(self, instance: str, n: int) -> tuple[int, int]:
        """Mostly an open claim, else one that has ended, or a fence that nobody has."""
        key = self.w.keys[instance]
        delivery = self.w.memory.delivery
        live: list[tuple[int, int]] = sorted(
            (i, row.fence)
            for (k, i), row in delivery.items()
            if k == key and row.lease_until is not None
        )
        ended: list[tuple[int, int]] = sorted(
            (i, fence) for k, i, fence in self.w.memory.outcome if k == key
        ) + sorted(
            (i, row.fence)
            for (k, i), row in self.w.memory.receipt.items()
            if k == key and row.fence
        )
        if live and n % 4:
            return _at(live, n // 4)
        if ended and n % 3:
            return _at(ended, n // 4)
        return self.message_id(instance, n // 4), _at((1, 2**42 + 1, 2**62), n)

    def a_movement(self, n: int, m: int) -> dict[str, Any]:
        cash = m % 3 == 0
        return {
            "topic": _at(("t", "u"), n // 7),
            "idempotency_key": f"k{n % 31}",
            "payload_json": _at(PAYLOADS, m // 3),
            "account": _at(("a", "b"), m) if cash else None,
            "currency": _at(("USD", "JPY"), m // 5) if cash else None,
            "cash_delta": _at(AMOUNTS, m // 7) if cash else None,
            "correlation_id": _at((None, None, "c1", "c2"), m // 11),
            "ordering_key": _at((None, "o1", "o1", "o2"), n // 11),
            "effect_policy": _at(("idempotent", "lookup", "at_most_once"), n // 13),
            "delay": _seconds(_at(DELAYS, m // 13)),
        }

    def a_report(self, instance: str, n: int, m: int) -> Report:
        message_id, fence = self.claim_of(instance, n)
        result = _at(RESULTS, m)
        delivered = result in ("completed", "duplicate")
        message = self.w.memory.message.get((self.w.keys[instance], message_id))
        cash = message is not None and message.currency is not None
        balance = delivered and m // 9 % 2 == 0 and (cash or m % 17 == 0)
        delay = _at((None, 0, 1, 3600), m // 18)
        if result == "postponed" and m % 19:
            delay = delay or 3
        elif result not in ("retry", "unknown", "postponed"):
            delay = None
        return Report(
            message_id,
            fence,
            result,
            reason="unspecified" if delivered else _at(_REASONS, m // 9),
            delay=_seconds(delay),
            absent=not delivered and result not in ("unknown", "conflict") and m // 27 % 3 == 0,
            park=result == "unknown" and m // 27 % 3 == 0,
            confirmed_by=_at(CONFIRMED_BY[:4], m // 9) if delivered else "answer",
            reference=_at((None, "r1"), m // 36) if delivered else None,
            balance=_at((Decimal(5), Decimal("6.00"), Decimal(7)), m // 18) if balance else None,
            version=m // 54 % 4 if balance else None,
        )

    def reports(self, instance: str, n: int, m: int, count: int) -> list[Report]:
        made = [self.a_report(instance, n + 4 * i, m * 7 + i) for i in range(count)]
        if n % 41 == 0:
            return made  # perhaps a message twice
        return list({r.message_id: r for r in made}.values())

    # One method for each kind of call

    def enqueue(self, n: int, m: int) -> None:
        self.step(n, "enqueue", **self.a_movement(n, m), on_conflict=_at(("raise", "report"), m))

    def enqueue_many(self, n: int, m: int) -> None:
        count = n // 4 % 6
        movements = [Movement(**self.a_movement(n + i, m + 3 * i)) for i in range(count)]
        self.step(n, "enqueue_many", movements, on_conflict=_at(("raise", "report"), m))

    def claim(self, n: int, m: int) -> None:
        self.step(
            n,
            "claim",
            _at(("w1", "w2"), n),
            _at((1, 1, 2, 3, 5, 20), m),
            lease=_seconds(_at(LEASES, m // 6)),
            box=_at(("outbox",) * 19 + ("inbox",), m // 12),
            correlation_id=_at((None, None, None, "c1"), n // 4),
            after=_at((0, 0, 0, 3), m // 24),
            due_after=_at((None, None, START, self.w.clock() - timedelta(seconds=3)), n // 16),
        )

    def exchange(self, n: int, m: int) -> None:
        count = n // 8 % 5
        instance = _at(INSTANCES, n)
        self.step(
            n,
            "exchange",
            self.reports(instance, n // 4, m, count),
            "w1",
            _at((1, 2, 5), m),
            lease=_seconds(_at(LEASES, m // 3)),
            after=_at((0, 0, 2), n // 4),
        )

    def record(self, n: int, m: int) -> None:
        count = n // 8 % 7
        self.step(n, "record", self.reports(_at(INSTANCES, n), n // 4, m, count))

    def an_outcome(self, n: int, m: int) -> None:
        r = self.a_report(_at(INSTANCES, n), n // 4, m)
        lost = _at(("raise", "report"), m // 5)
        at = (r.message_id, r.fence)
        if r.result in ("completed", "duplicate"):
            name = "complete" if r.result == "completed" else "complete_duplicate"
            self.step(
                n, name, *at, reference=r.reference, confirmed_by=r.confirmed_by,
                balance=r.balance, version=r.version, on_lost=lost,
            )  # fmt: skip
            return
        more: dict[str, Any] = {"reason": r.reason, "on_lost": lost}
        if r.result == "postponed":
            self.step(n, "postpone", *at, r.delay, **more)
            return
        if r.result in ("retry", "unknown"):
            more["delay"] = r.delay
        if r.result in ("retry", "permanent", "dead_letter"):
            more["absent"] = r.absent
        if r.result == "unknown":
            more["park"] = r.park
        names = {"unknown": "mark_unknown", "permanent": "fail", "released": "release"}
        self.step(n, names.get(r.result, r.result), *at, **more)

    def extend(self, n: int, m: int) -> None:
        count = m // 8 % 4
        instance = _at(INSTANCES, n)
        claims = dict(self.claim_of(instance, n // 4 + 4 * i) for i in range(count))
        lease = _seconds(_at(LEASES, m))
        self.step(n, "extend", list(claims), list(claims.values()), lease=lease)

    def sent_or_held(self, n: int, m: int) -> None:
        claim = self.claim_of(_at(INSTANCES, n), n // 4)
        if m % 4:
            self.step(n, "mark_sent", *claim, on_lost=_at(("raise", "report"), m // 4))
        else:
            self.step(n, "hold", *claim)

    def report_stale(self, n: int, m: int) -> None:
        self.step(n, "report_stale", *self.claim_of(_at(INSTANCES, n), n // 4), _at(RESULTS, m))

    def redrive_or_expedite(self, n: int, m: int) -> None:
        count = m % 5
        instance = _at(INSTANCES, n)
        ids = [self.message_id(instance, n // 4 + i) for i in range(count)]
        name = _at(("redrive", "redrive", "expedite"), m // 5)
        self.step(n, name, ids if n % 43 == 0 else list(dict.fromkeys(ids)), **WHO)

    def resolve(self, n: int, m: int) -> None:
        instance = _at(INSTANCES, n)
        key = self.w.keys[instance]
        parked = sorted(
            i
            for (k, i), row in self.w.memory.delivery.items()
            if k == key and row.parked is not None
        )
        chosen = _at(parked, m) if parked and m % 5 else self.message_id(instance, n // 4)
        resolution = _at(get_args(Resolution), m // 5)
        reference = "r" if resolution == "delivered" and m % 2 else None
        self.step(n, "resolve", chosen, resolution, evidence="e", reference=reference, **WHO)

    def adopt(self, n: int, m: int) -> None:
        self.step(
            n, "adopt", self.w.first_quarantined + m % 5, evidence="seen",
            topic=_at((None, "t"), m // 5), idempotency_key=_at((None, "k1", f"a{m % 5}"), m // 10),
            effect_policy=_at(("lookup", "at_most_once", "idempotent"), n // 4), **WHO,
        )  # fmt: skip

    def change_policy(self, n: int, m: int) -> None:
        self.step(
            n, "register_instance", max_attempts=_at((None, 1, 2, 3, 12), m),
            on_parked=_at((None, "block", "continue"), m // 5),
            backoff_base=_seconds(_at((None, None, 1, 9000), m // 15)),
            backoff_cap=_seconds(_at((None, None, 3), m // 60)),
            lease_default=_seconds(_at((None, None, 4, 1000), n // 4)), **WHO,
        )  # fmt: skip

    def operate(self, n: int, _: int) -> None:
        match n // 4 % 8:
            case 0:
                self.step(n, "pause", **WHO)
            case 1 | 2:
                self.step(n, "resume", **WHO)
            case 3:
                self.step(n, "bump_epoch", **WHO)
            case 4:
                self.step(n, "listen", f"w{n % 3}", timedelta(seconds=n % 9))
            case 5:
                self.step(n, "unlisten", f"w{n % 3}")
            case _:
                older_than = timedelta(seconds=_at((0, 9), n // 32))
                limit, after = _at((2, 1000), n // 64), n // 128 % 4
                self.step(
                    n, "purge", older_than, limit=limit, after=after, dry_run=n % 5 == 0, **WHO
                )

    def read(self, n: int, m: int) -> None:
        limit, after = _at((1, 2, 100), m // 8), _at((0, 0, 2), m // 24)
        match m % 8:
            case 0 | 1:
                self.step(
                    n, "list_pending", limit=limit, after=after, include_parked=m // 8 % 2 == 0
                )
            case 2:
                self.step(n, "list_parked", limit=limit, after=after)
            case 3 | 4:
                self.step(n, "pending_cash_delta", account=_at((None, None, "a"), m // 8))
            case 5:
                self.step(n, "status", self.message_id(_at(INSTANCES, n), n // 4))
            case 6:
                self.step(n, "stats", cap=_at((1, 2, 100_000), m // 8))
            case _:
                self.step(n, "policy")

    def time_passes(self, n: int, _: int) -> None:
        self.w.advance(_at((0.000001, 0.5, 1, 3, 3, 12, 12, 40, 40, 4000), n))

    def restart(self, n: int, _: int) -> None:
        if not self.w.blocks:
            self.w.restart()
            self.counts["restarts"] += 1

    def begin(self, n: int, _: int) -> None:
        if len(self.w.blocks) < 2 and not self.w.failed:
            self.w.begin()

    def end(self, n: int, _: int) -> None:
        if self.w.blocks:
            # A failed transaction can only be rolled back.
            self.w.end(commit=n % 2 == 0 and not self.w.failed)
            self.w.compare()

    @rule(drawn=st.binary(min_size=5, max_size=5))
    def do(self, drawn: bytes) -> None:
        """One rule, so that each history has calls of every kind."""
        # Hypothesis likes small numbers; a digest spreads them over all calls and arguments.
        mixed = hashlib.blake2b(drawn, digest_size=6).digest()
        kind, n, m = (int.from_bytes(mixed[i : i + 2]) for i in (0, 2, 4))
        if self.w.blocks and (kind % 3 == 0 or (self.w.failed and kind % 5)):
            self.end(n, m)
            return
        call = _at(_CALLS, kind)
        if call in _NEED_CLAIMS and not self.w.memory.fence_seq:
            call = Machine.claim if self.w.memory.message else Machine.enqueue_many
        call(self, n, m)

    def play(self, draws: list[bytes]) -> None:
        """A whole history that Hypothesis doesn't choose."""
        try:
            self.begin_history()
            for drawn in draws:
                self.do(drawn)
        finally:
            self.teardown()


_NEED_CLAIMS = {
    Machine.an_outcome,
    Machine.record,
    Machine.extend,
    Machine.sent_or_held,
    Machine.report_stale,
    Machine.resolve,
    Machine.redrive_or_expedite,
}
_CALLS: list[Callable[[Machine, int, int], None]] = [
    *[Machine.enqueue] * 8,
    *[Machine.claim] * 12,
    *[Machine.an_outcome] * 13,
    *[Machine.time_passes] * 10,
    *[Machine.record] * 5,
    *[Machine.exchange] * 4,
    *[Machine.redrive_or_expedite] * 3,
    *[Machine.resolve] * 3,
    *[Machine.read] * 3,
    *[Machine.enqueue_many] * 4,
    *[Machine.extend] * 3,
    *[Machine.sent_or_held] * 3,
    *[Machine.begin] * 2,
    Machine.report_stale,
    Machine.adopt,
    Machine.change_policy,
    Machine.operate,
    Machine.restart,
]
