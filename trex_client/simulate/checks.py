"""The invariants, checked after each step on what that step changed, and at the end on everything.

Nothing here asks the model how it came to a state: beside it stands an account of the calls and
their answers, and both must agree. Numbers such as I2 are those of the list in `docs/proof.md`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from trex_client.memory import (
    INFINITY,
    AuditRow,
    MessageRow,
    OutcomeRow,
    ReceiptRow,
    StaleReportRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from trex_client.memory import DeliveryRow, InstanceRow, MemoryDatabase
    from trex_client.model import Box, Claim, Recorded, Report
    from trex_client.simulate.history import World

PARKED = frozenset({"dead_letter", "permanent", "conflict", "unknown"})
_OPERATORS_ONLY = frozenset({"unknown", "conflict"})
# Whole rows in one call each: every step looks at every delivery.
_STATE = attrgetter(
    "fence", "attempts", "tries", "lease_until", "parked", "uncertain", "deferred_until",
    "message_id", "instance_key",
)  # fmt: skip
_APPEND_ONLY = {
    name: attrgetter(*row.__slots__)
    for name, row in (
        ("message", MessageRow), ("receipt", ReceiptRow), ("outcome", OutcomeRow),
        ("stale_report", StaleReportRow), ("audit", AuditRow),
    )
}  # fmt: skip

Key = tuple[str, int]


class Broken(Exception):  # noqa: N818
    """An invariant doesn't hold. `invariant` is its number, `world` where it broke."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.world: World | None = None

    def add(self, text: str) -> None:
        """Say more of it."""
        self.args = (f"{self}; {text}",)


def require(ok: bool, invariant: str, text: str, *values: object) -> None:
    """Raise `Broken` unless `ok`."""
    if not ok:
        raise Broken(invariant, f"{text} {values}" if values else text)


@dataclass(slots=True)
class Account:
    """What the calls said of one message."""

    policy: str
    box: Box
    given: list[int] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    ends: int = 0
    decisions: int = 0
    state: tuple[Any, ...] = ()
    tries: int = 0
    delivered: bool = False
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Eligible:
    """A row that a claim may take, as seen before it."""

    source: int  # 0 due, 1 ready
    order: tuple[Any, int]


class Checker:
    """Watches one database.

    Call `before_claim` and `after_claim` around claims, `recorded` after reports, the other
    `...ed` methods after the calls that they are named for, and `step` after each step.
    """

    def __init__(self, db: MemoryDatabase) -> None:
        self.db = db
        self.accounts: dict[Key, Account] = {}
        self.keys: dict[tuple[str, Box, str], tuple[int, tuple[Any, ...]]] = {}
        self.live: dict[Key, DeliveryRow] = {}
        self.fences: set[int] = set()
        self.counts: Counter[str] = Counter()
        self._prints: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _APPEND_ONLY}
        self._states: list[tuple[Any, ...]] = []
        self._sizes: tuple[int, ...] = (0,) * len(_APPEND_ONLY)
        # What this step may have caused, by message.
        self.decided: set[Key] = set()
        self.cleared: set[Key] = set()

    # calls and their answers

    def enqueued(
        self, instance: str, box: Box, key: str, content: tuple[Any, ...], message_id: int,
        status: str,
    ) -> None:  # fmt: skip
        """I3, I16: an answer to `enqueue` or `receive` that was committed."""
        name = (instance, box, key)
        known = self.keys.get(name)
        if status in ("enqueued", "received"):
            require(known is None, "I16", "a second message for a key", name)
            self.keys[name] = (message_id, content)
        else:
            require(known is not None and known[0] == message_id, "I16", "another message", name)
            same = known is not None and known[1] == content
            wanted = "duplicate" if same else "conflict"
            if box == "outbox":
                require(status == wanted, "I16", f"{status} instead of {wanted}", name)
        self.counts[status] += 1

    def eligible(
        self, instance: InstanceRow, box: Box, now: datetime, after: int = 0,
        correlation: str | None = None,
    ) -> dict[int, Eligible]:  # fmt: skip
        """What a claim may take now, found by looking at every row."""
        found: dict[int, Eligible] = {}
        if instance.paused:
            return found
        key = instance.instance_key
        for (owner, message_id), row in self.db.delivery.items():
            if owner != key or row.box != box or row.parked is not None:
                continue
            if row.lease_until is not None and row.lease_until > now:
                continue
            if correlation is not None:
                if self.db.message[owner, message_id].correlation_id != correlation:
                    continue
                if row.deferred_until is None or row.deferred_until <= now:
                    found[message_id] = Eligible(0, (0, message_id))
            elif row.deferred_until is None:
                if message_id > after:
                    found[message_id] = Eligible(1, (0, message_id))
            elif row.deferred_until <= now:
                found[message_id] = Eligible(0, (row.deferred_until, message_id))
        return found

    def claimed(
        self,
        instance: InstanceRow,
        limit: int,
        eligible: dict[int, Eligible],
        claims: Sequence[Claim],
        now: datetime,
        *,
        freed: bool = False,
    ) -> None:
        """I4, I10, I20: the answer to a claim. `freed`: the call may have freed a key first."""
        ids = [claim.message_id for claim in claims]
        require(len(ids) <= limit, "I10", "more than the limit", len(ids), limit)
        require(len(set(ids)) == len(ids), "I10", "a message twice", ids)
        owner = instance.instance_key
        newest: list[tuple[Any, int] | None] = [None, None]
        for claim in claims:
            key = (owner, claim.message_id)
            account = self.accounts[key]
            row = self.db.delivery.get(key)
            require(row is not None, "I10", "claimed although it is delivered", *key)
            one = eligible.get(claim.message_id)
            if one is None:
                waited = account.state[6] == INFINITY and claim.ordering_key is not None
                require(
                    waited or freed, "I10", "claimed although not due, or leased by another", *key
                )
            elif newest[one.source] is None or one.order > newest[one.source]:  # type: ignore[operator]
                newest[one.source] = one.order
            fence = claim.fence
            require(fence not in self.fences, "I4", "a fence given twice", fence)
            require(
                not account.given or fence > account.given[-1], "I4", "a fence that falls", *key
            )
            self.fences.add(fence)
            account.given.append(fence)
            account.tries += 1
            require(claim.attempt == len(account.given), "I6", "attempts aren't claims", *key)
            require(claim.lease_until > now, "I10", "claimed with a lease that has ended", *key)
            self.counts["claims"] += 1
            self.counts["uncertain claims"] += claim.uncertain
            if account.policy == "at_most_once":
                require(
                    not claim.uncertain, "I13", "an uncertain at_most_once message claimed", *key
                )
            if claim.ordering_key is not None and row is not None:
                self._check_lane(row, instance, now)
        short = len(ids) < limit
        taken = set(ids)
        for message_id, one in eligible.items():
            if message_id in taken:
                continue
            last = newest[one.source]
            if short or (last is not None and one.order < last):
                row = self.db.delivery.get((owner, message_id))
                require(
                    row is None
                    or row.parked is not None
                    or row.deferred_until == INFINITY
                    or (row.ordering_key is not None and self._is_held_up(row, instance, now)),
                    "I20" if short else "I10",
                    "passed over, although it was due and nothing stood before it",
                    owner, message_id,
                )  # fmt: skip

    def _lane(self, row: DeliveryRow) -> Iterable[DeliveryRow]:
        for other in self.db.delivery.values():
            if (
                other.ordering_key == row.ordering_key
                and other.instance_key == row.instance_key
                and other.box == row.box
                and other is not row
            ):
                yield other

    def _is_abandoned(self, row: DeliveryRow) -> bool:
        return self.accounts[row.instance_key, row.message_id].abandoned

    def _check_lane(self, row: DeliveryRow, instance: InstanceRow, now: datetime) -> None:
        """I20: one of an ordering key in flight, in the order of enqueueing."""
        for other in self._lane(row):
            require(
                other.lease_until is None or other.lease_until <= now,
                "I20", "two of an ordering key in flight", row.message_id, other.message_id,
            )  # fmt: skip
            if other.message_id < row.message_id:
                require(
                    other.parked is not None
                    and (self._is_abandoned(other) or instance.on_parked == "continue"),
                    "I20", "overtook an earlier one of its key", row.message_id, other.message_id,
                )  # fmt: skip
        self.counts["ordered claims"] += 1

    def _is_held_up(self, row: DeliveryRow, instance: InstanceRow, now: datetime) -> bool:
        return any(
            (other.lease_until is not None and other.lease_until > now)
            or (
                other.message_id < row.message_id
                and (
                    other.parked is None
                    or (instance.on_parked == "block" and not self._is_abandoned(other))
                )
            )
            for other in self._lane(row)
        )

    def recorded(
        self, instance: str, reports: Sequence[Report], answers: Sequence[Recorded]
    ) -> None:
        """I1, I11, I15: one answer for each report, told from the account alone."""
        require(len(reports) == len(answers), "I15", "an answer for each report")
        for report, answer in zip(reports, answers, strict=True):
            wanted = self.expected(instance, report.message_id, report.fence, report.result)
            require(
                answer.status == wanted,
                "I11" if answer.status == "recorded" else "I15",
                f"{answer.status} instead of {wanted}",
                instance, report.message_id, report.fence, report.result,
            )  # fmt: skip
            self.counts[wanted] += 1
            self.counts["late"] += answer.late
            if wanted == "recorded":
                account = self.accounts[instance, report.message_id]
                account.ended[report.fence] = report.result
                if report.absent or report.result == "conflict":
                    self.cleared.add((instance, report.message_id))

    def expected(self, instance: str, message_id: int, fence: int, result: str) -> str:
        """The answer that a report must get."""
        account = self.accounts.get((instance, message_id))
        if account is None:
            return "not_found"
        end = account.ended.get(fence)
        if end is None:
            open_claim = account.given[-1:] == [fence] and not account.delivered
            return "recorded" if open_claim else "claim_lost"
        if end == "lease_expired":
            return "claim_lost"
        return "already_recorded" if end == result else "ended_otherwise"

    def decide(
        self,
        instance: str,
        message_id: int,
        *,
        afresh: bool = True,
        evidence: bool = False,
        abandoned: bool = False,
    ) -> None:
        """An operator's redrive or resolve was done, or the provider sent an event again. `afresh`:
        the allowance begins anew. `evidence`: of what the ledger has. `abandoned`: given up."""
        key = (instance, message_id)
        self.decided.add(key)
        if evidence:
            self.cleared.add(key)
        self.accounts[key].decisions += 1
        self.accounts[key].abandoned = abandoned
        if afresh:
            self.accounts[key].tries = 0

    # after each step

    def step(self) -> None:
        """Compare what changed with the account. Every delivery is looked at, whatever the model
        says that it changed."""
        db = self.db
        live = db.delivery
        states = list(map(_STATE, live.values()))
        sizes = (
            len(db.message), len(db.receipt), len(db.outcome), len(db.stale_report), len(db.audit),
        )  # fmt: skip
        if sizes != self._sizes or states != self._states:
            outcomes = self._appended(sizes)
            changed = set()
            earlier = chain(self._states, repeat(None))
            for (key, row), state, before in zip(live.items(), states, earlier, strict=False):
                if state == before:
                    continue  # most rows keep their place, and their state
                account = self.accounts.get(key)
                if account is None:
                    account = self._new(key, row)
                if state != account.state:
                    self._changed(key, row, account, state, outcomes.get(key, ()))
                    account.state = state
                    changed.add(key)
            for key in outcomes:
                require(key not in live or key in changed, "I6", "an outcome changed nothing", *key)
            if len(self.live) != len(live) or sizes[:2] != self._sizes[:2]:
                for key, row in self.live.items():
                    if key not in live:
                        self._delivered(key, row, outcomes.get(key, ()))
                self.live = dict(live)
                require(
                    len(live) + len(db.receipt) == len(db.message),
                    "I3", "a message is in delivery or in receipt", len(live), len(db.receipt),
                )  # fmt: skip
            self._states, self._sizes = states, sizes
        if self.decided:
            self.decided.clear()
        if self.cleared:
            self.cleared.clear()

    def _new(self, key: Key, row: DeliveryRow) -> Account:
        message = self.db.message.get(key)
        require(message is not None, "I3", "a delivery without a message", *key)
        assert message is not None  # noqa: S101
        account = self.accounts[key] = Account(message.effect_policy, message.box)
        account.state = (0, 0, 0, None, None, row.uncertain, row.deferred_until, *reversed(key))
        self.live[key] = row
        require(row.fence == 0 and row.attempts == 0, "I4", "new, and claimed before", *key)
        known = self.keys.get((key[0], message.box, message.idempotency_key))
        require(known is not None and known[0] == key[1], "I3", "nobody enqueued it", *key)
        return account

    def _appended(self, sizes: tuple[int, ...]) -> dict[Key, list[OutcomeRow]]:
        """I8, I9: rows are only added; remember what they look like."""
        outcomes: dict[Key, list[OutcomeRow]] = {}
        if sizes == self._sizes:
            return outcomes
        for (name, print_of), size, seen in zip(
            _APPEND_ONLY.items(), sizes, self._sizes, strict=True
        ):
            if size == seen:
                continue
            require(size > seen, "I8" if name == "message" else "I9", f"a row of {name} is gone")
            new = list(islice(reversed(getattr(self.db, name).values()), size - seen))[::-1]
            self._prints[name] += map(print_of, new)
            if name == "outcome":
                for row in new:
                    outcomes.setdefault((row.instance_key, row.message_id), []).append(row)
        return outcomes

    def _ends(self, key: Key, account: Account, outcomes: Iterable[OutcomeRow]) -> None:
        for outcome in outcomes:
            account.ends += 1
            self.counts[outcome.kind] += 1
            known = account.ended.setdefault(outcome.fence, outcome.kind)
            require(known == outcome.kind, "I6", "another end than was reported", *key)
            require(outcome.fence in account.given, "I6", "an end of a fence not given", *key)
            if outcome.kind in ("released", "postponed"):
                account.tries -= 1
            elif outcome.kind == "conflict":
                self.cleared.add(key)

    def _changed(
        self,
        key: Key,
        row: DeliveryRow,
        account: Account,
        state: tuple[Any, ...],
        outcomes: Sequence[OutcomeRow],
    ) -> None:
        fence, attempts, tries, lease_until, parked, uncertain, deferred_until, *ids = state
        require(ids == [key[1], key[0]], "I8", "a row under another's key", *key)
        old_parked, old_uncertain = account.state[4], account.state[5]
        require(fence >= account.state[0], "I5", "the fence fell", *key)
        require(attempts >= account.state[1], "I5", "attempts fell", *key)
        require(fence == (account.given[-1] if account.given else 0), "I4", "fence", *key)
        last = outcomes[-1] if outcomes else None
        self._ends(key, account, outcomes)
        given = len(account.given)
        is_open = lease_until is not None
        require(attempts == given, "I6", "attempts aren't claims", *key, attempts, given)
        require(given == account.ends + is_open, "I6", "a claim without an end", *key)
        require(not is_open or fence not in account.ended, "I6", "open, and ended", *key)
        require(tries == account.tries, "I22", "tries", *key, tries, account.tries)
        if last is not None and last.kind in ("retry", "unknown") and parked is None:
            most = self.db.instance[key[0]].max_attempts
            require(
                tries < most or is_open or key in self.decided, "I19", "beyond its allowance", *key
            )
        if parked is not None:
            require(
                not is_open and deferred_until == INFINITY, "I10", "parked, and claimable", *key
            )
            if uncertain:
                require(parked in ("unknown", "permanent"), "I14", f"uncertain {parked}", *key)
        elif uncertain and account.policy == "at_most_once" and given:
            raise Broken("I13", f"an uncertain at_most_once message is live {key}")
        if old_parked is not None and parked != old_parked:
            number = "I14" if old_parked in _OPERATORS_ONLY else "I22"
            require(key in self.decided, number, f"left {old_parked} without a decision", *key)
        if last is not None and key not in self.decided:
            ended = last.state if last.state in PARKED else None
            if ended is not None:
                require(parked == ended, "I22", "parked otherwise than its last end", *key)
        if parked is not None and old_parked is None:
            self.counts[f"parked {parked}"] += 1
        require(row.abandoned == account.abandoned, "I22", "given up, or not", *key)
        if old_uncertain and not uncertain:
            require(key in self.cleared, "I14", "no longer uncertain, without an answer", *key)
            self.counts["cleared"] += 1
        if row.box == "outbox":
            skip = self.db.ledger_skip.get(key)
            is_skip = skip is not None and skip.resolved_at is None
            if parked is not None:
                require(
                    is_skip and skip is not None and skip.parked == parked, "I22", "no skip", *key
                )

    def _delivered(self, key: Key, row: DeliveryRow, outcomes: Iterable[OutcomeRow]) -> None:
        """I1, I2, I3: a delivery that went has become a receipt."""
        account = self.accounts[key]
        receipt = self.db.receipt.get(key)
        require(receipt is not None, "I3", "lost: neither delivery nor receipt", *key)
        assert receipt is not None  # noqa: S101
        require(not account.delivered, "I1", "delivered twice", *key)
        account.delivered = True
        self._ends(key, account, outcomes)
        given = len(account.given)
        by_operator = receipt.confirmed_by == "operator"
        require(receipt.fence == (account.given[-1] if given else 0), "I2", "fence", *key)
        require(receipt.attempt == given, "I6", "attempt of the receipt", *key)
        require(given == account.ends + (not by_operator), "I6", "a claim without an end", *key)
        if by_operator:
            require(key in self.decided, "I14", "delivered by nobody", *key)
        else:
            kind = "duplicate" if receipt.duplicate else "completed"
            require(account.ended.get(receipt.fence) == kind, "I11", "a receipt nobody sent", *key)
        skip = self.db.ledger_skip.get(key)
        require(skip is None or skip.resolved_at is not None, "I22", "a skip stays open", *key)
        self.counts["delivered"] += 1
        self.counts["delivered by operator"] += by_operator
        if row.parked is not None:
            require(by_operator, "I14", "delivered while parked", *key)

    # at the end

    def end(self) -> None:
        """I3, I8, I9, I16: everything once more, from the tables."""
        self.step()
        db = self.db
        for name, print_of in _APPEND_ONLY.items():
            for row, before in zip(getattr(db, name).values(), self._prints[name], strict=True):
                now = print_of(row)
                if now != before and not _is_purged(name, now, before, db):
                    raise Broken("I8" if name == "message" else "I9", f"a row of {name} changed")
        for known, (message_id, _) in self.keys.items():
            key = (known[0], message_id)
            require(key in db.message, "I3", "an acknowledged message is gone", *key)
            require((key in db.delivery) != (key in db.receipt), "I3", "in neither or both", *key)
            require(db.message_key.get(known) == message_id, "I16", "the key leads elsewhere", *key)
        require(len(self.keys) == len(db.message), "I3", "a message that nobody enqueued")
        keys = {(m.instance_key, m.box, m.idempotency_key) for m in db.message.values()}
        require(len(keys) == len(db.message), "I16", "two messages for one key")
        require(len(self.fences) == sum(len(a.given) for a in self.accounts.values()), "I4", "once")


def _is_purged(
    table: str, now: tuple[Any, ...], before: tuple[Any, ...], db: MemoryDatabase
) -> bool:
    """The one allowed change: the payload of a delivered outbox message goes."""
    if table != "message":
        return False
    changed = [i for i, (a, b) in enumerate(zip(now, before, strict=True)) if a != b]
    place = 10  # payload
    return (
        changed == [place]
        and now[place] is None
        and now[2] == "outbox"
        and (now[0], now[1]) in db.receipt
    )
