"""Which movement meets which fault. The same seed and file give the same plan."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trex_client.demo.source import Entry, unique
from trex_client.ledger import Faults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trex_client.model import EffectPolicy


@dataclass(frozen=True, slots=True)
class Card:
    """A fault that the demo promises.

    Args:
        name: as it is told.
        calls: what the ledger does on the first calls of the key; later ones are answered well.
        always: what it answers on every call instead; `conflict`: the key is booked already, by
            somebody else.
        policy: effect policy that the movement gets for it.
        share: of all movements; at least one.
    """

    name: str
    calls: tuple[str, ...] = ()
    always: str | None = None
    policy: EffectPolicy | None = None
    share: float = 0.0


# The most telling ones first: a small file gets as many as it has movements for.
DECK = (
    Card("answer lost after the ledger committed", ("timeout_after_commit",), share=0.01),
    Card("503 from the ledger", ("unavailable", "unavailable"), share=0.02),
    Card("answered twice", ("posted_twice",), share=0.02),
    Card("key used elsewhere with other content", always="conflict", share=0.002),
    Card("key used elsewhere, and the answer lost", ("cut_after_commit",), always="conflict",
         share=0.002),
    # With `lookup` a worker waits until a look-up is certain, so a refusal leaves no doubt.
    Card("refused by the ledger", always="refused", policy="lookup", share=0.002),
    Card("send-once, answer lost", ("timeout_after_commit",), policy="at_most_once", share=0.001),
    Card("send-once, cut before it arrived", ("cut_before",), policy="at_most_once", share=0.001),
    Card("look-up only, answer lost", ("cut_after_commit",), policy="lookup", share=0.002),
    Card("look-up only, cut before it arrived", ("cut_before",), policy="lookup", share=0.002),
    Card("cut before it arrived", ("cut_before",), share=0.005),
    Card("cut after the ledger committed", ("cut_after_commit",), share=0.01),
    Card("500, although it committed", ("lying",), share=0.005),
    Card("an answer that nobody can read", ("garbage",), share=0.003),
    Card("another call of the key in progress", ("in_progress",), share=0.003),
    Card("slow", ("slow",), share=0.01),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """Cards by wire key, and those that the file was too small for."""

    cards: Mapping[str, Card]
    left_out: tuple[str, ...]

    @property
    def promised(self) -> Counter[str]:
        """How often each fault was dealt."""
        return Counter(card.name for card in self.cards.values())


def deal(entries: Sequence[Entry], seed: int) -> Plan:
    """Deal the deck to some movements: to those of every instance in turn, one card each."""
    dice = random.Random(seed)
    by_instance: dict[str, list[Entry]] = {}
    for entry in unique(entries).values():
        by_instance.setdefault(entry.instance, []).append(entry)
    for hand in by_instance.values():
        dice.shuffle(hand)
    turns = deque(hand for _, hand in sorted(by_instance.items()))
    cards: dict[str, Card] = {}
    left_out = []
    # Half of the movements stay without a fault.
    most = len(entries) // 2
    for card in DECK:
        number = max(1, round(card.share * len(entries)))
        for _ in range(number):
            if len(cards) >= most:
                break
            turns.rotate(-1)
            while not turns[0]:
                turns.rotate(-1)
            cards[turns[0].pop().wire_key] = card
        if card not in cards.values():
            left_out.append(card.name)
    return Plan(cards, tuple(left_out))


def with_policies(entries: Sequence[Entry], plan: Plan) -> list[Entry]:
    """Movements whose fault is about an effect policy get that policy."""
    dealt = []
    for entry in entries:
        card = plan.cards.get(entry.wire_key)
        if card is not None and card.policy is not None:
            movement = replace(entry.movement, effect_policy=card.policy)
            dealt.append(replace(entry, movement=movement))
        else:
            dealt.append(entry)
    return dealt


@dataclass(frozen=True, slots=True)
class PlannedFaults(Faults):
    """Faults by wire key instead of by chance: one name for each of the first calls, and the
    answers of those that are never posted.
    """

    calls: Mapping[str, Sequence[str]] = field(default_factory=dict)
    always: Mapping[str, str] = field(default_factory=dict)

    def for_key(self, key: str) -> str | None:
        """Return what this key meets on every call."""
        return self.always.get(key)

    def for_call(self, key: str, number: int) -> str | None:
        """Return the fault of a key's n-th call (from 1)."""
        planned = self.calls.get(key, ())
        return planned[number - 1] if number <= len(planned) else None
