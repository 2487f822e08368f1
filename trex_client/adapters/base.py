"""What an adapter is: it carries one claimed message to a sink and says what became of it.

An adapter never raises for what a sink did, never reads its target from a message, and never
logs. Its answers are six types; what is recorded follows DESIGN section 5:

    Delivered  the sink took it now
    Duplicate  it already had this key with this content
    Retryable  certainly not taken this time; send later
    Unknown    the request may have left and nobody can tell
    Conflict   it has this key with other content
    Permanent  refused for good

`reason` is a code of `model.REASONS`; anything else is recorded as `unspecified`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

from trex_client.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trex_client.model import Claim, EffectPolicy

_INSTANCE_KEY = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sink's balance of the message's account and currency after the posting. `version` only
    rises.
    """

    balance: Decimal = field(repr=False)
    version: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The sink has taken it now. `reference`: the sink's own id, a key of 1 to 255 characters."""

    reference: str | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The sink had already taken this key with this content; nothing happened again."""

    reference: str | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Retryable:
    """This attempt certainly had no effect; send later, at least `delay` (0 to 30 days) from now.

    `absent`: the sink also says with certainty that no earlier attempt with this key had an effect.
    """

    reason: str = "unspecified"
    delay: timedelta | None = None
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """The sink has this key with other content. Parks; only `resolve` leaves it."""

    reason: str = "key_conflict"


@dataclass(frozen=True, slots=True)
class Permanent:
    """Refused for good; this attempt had no effect. Parks. `absent` as in `Retryable`."""

    reason: str = "rejected"
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """The request may have reached the sink and its answer is not known."""

    reason: str = "unspecified"
    delay: timedelta | None = None


DeliveryResult = Delivered | Duplicate | Retryable | Conflict | Permanent | Unknown
RESULT_TYPES = (Delivered, Duplicate, Retryable, Conflict, Permanent, Unknown)


class Unstated(Enum):
    """The type of `UNSTATED`."""

    UNSTATED = "unstated"


UNSTATED: Final = Unstated.UNSTATED
_Unstated = Literal[Unstated.UNSTATED]


@dataclass(frozen=True, slots=True)
class Found:
    """The sink has this key. Whether with our content: the worker compares what is stated here with
    the claim, and anything that differs is a conflict. With nothing stated the key counts as ours.

    Args:
        reference: the sink's own id.
        snapshot: the balance now.
        account: what is booked; None says that it moves no cash. Likewise `currency` and
            `cash_delta`, which is signed as in the message.
        digest: hex sha256 of the payload that the sink keeps, as `payload_digest` makes it.
    """

    reference: str | None = None
    snapshot: Snapshot | None = None
    account: str | _Unstated | None = field(default=UNSTATED, repr=False)
    currency: str | _Unstated | None = field(default=UNSTATED, repr=False)
    cash_delta: Decimal | _Unstated | None = field(default=UNSTATED, repr=False)
    digest: str | _Unstated = field(default=UNSTATED, repr=False)

    @property
    def states_content(self) -> bool:
        """Whether there is anything to compare."""
        stated = (self.account, self.currency, self.cash_delta, self.digest)
        return any(value is not UNSTATED for value in stated)

    @property
    def well_formed(self) -> bool:
        """Whether everything stated has its type: text, and finite decimals, never floats."""
        texts = (self.account, self.currency)
        amount: object = self.cash_delta
        return (
            all(text is UNSTATED or text is None or type(text) is str for text in texts)
            and (self.digest is UNSTATED or type(self.digest) is str)
            and (
                amount is UNSTATED
                or amount is None
                or (isinstance(amount, Decimal) and amount.is_finite())
            )
        )

    def is_of(self, claim: Claim) -> bool:
        """Whether nothing that is stated differs from the claim."""
        return (
            self.account in (UNSTATED, claim.account)
            and self.currency in (UNSTATED, claim.currency)
            and self.cash_delta in (UNSTATED, claim.cash_delta)
            and (self.digest is UNSTATED or self.digest.lower() == payload_digest(claim))
        )


@dataclass(frozen=True, slots=True)
class Absent:
    """The sink doesn't have this key now. Counts only after the adapter's `in_flight` window."""


@dataclass(frozen=True, slots=True)
class NotSure:
    """The look-up gave no answer."""

    reason: str = "lookup_failed"


LookupResult = Found | Absent | NotSure


class NotSent(Exception):  # noqa: N818
    """An adapter may raise this when it failed before anything left. With `not_started` it didn't
    even begin, for want of a connection of its own: the claim is given back and costs no try.
    """

    def __init__(self, reason: str = "adapter_error") -> None:
        super().__init__("not sent")
        self.reason = reason


@dataclass(slots=True)
class DeliveryContext:
    """What the worker tells an adapter besides the claim. `wire_key` is the same on every
    attempt.
    """

    instance_key: str
    wire_key: str
    attempt: int
    fence: int
    sent: bool = False
    before_sending: Callable[[], Awaitable[None]] | None = field(default=None, repr=False)

    async def sending(self) -> None:
        """Call this right before the first byte may leave. Afterwards the outcome is unknown
        until there is an answer.

        Raises:
            NotSent: nothing may leave any more; the lease has ended or the claim is lost.
        """
        if self.before_sending is not None:
            await self.before_sending()
        self.sent = True


@runtime_checkable
class Adapter(Protocol):
    """A sink.

    `policy` says what the sink can do after an unknown outcome: `idempotent` (the same key again
    is safe), `lookup` (it isn't, but `lookup` tells), `at_most_once` (neither). An idempotent
    sink may have a look-up too.

    `can_lookup` says whether `lookup` works. `in_flight` is the sink's own promise: a request
    that is neither there after this time nor refused will never take effect. 'Absent' counts only
    after it.

    `announces_sending` says that `deliver` awaits `context.sending()` before anything leaves. The
    worker then knows that a failure before it was no unknown outcome, and marks a message that
    may be sent once only at that moment; otherwise it marks it before `deliver`, and every
    exception counts as 'may have left'.

    `concurrency`: most deliveries under way at once that it has connections for; a worker starts no
    more than that. None: it has no such limit.
    """

    @property
    def policy(self) -> EffectPolicy: ...

    @property
    def can_lookup(self) -> bool: ...

    @property
    def in_flight(self) -> timedelta: ...

    @property
    def announces_sending(self) -> bool: ...

    @property
    def concurrency(self) -> int | None: ...

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Send one message. Doesn't raise for anything the sink does."""

    async def lookup(self, wire_key: str) -> LookupResult:
        """Ask whether the sink has this key, and with which content: somebody else may have used
        it. Never changes anything there.
        """

    async def close(self) -> None:
        """Give back connections. May be called more than once."""


class BaseAdapter:
    """Defaults for adapters of one's own: no look-up, nothing to close."""

    policy: EffectPolicy = "at_most_once"
    can_lookup: bool = False
    in_flight: timedelta = timedelta(0)
    announces_sending: bool = False
    concurrency: int | None = None

    async def lookup(self, wire_key: str) -> LookupResult:
        """Say that this sink can't be asked."""
        del wire_key
        return NotSure("lookup_unsupported")

    async def close(self) -> None:
        """Nothing to give back."""


def require_instance_key(instance_key: object) -> str:
    """Return a well-formed instance key.

    Raises:
        InvalidArgument: missing, empty or malformed; before any connection is opened.
    """
    if not isinstance(instance_key, str) or not _INSTANCE_KEY.fullmatch(instance_key):
        raise InvalidArgument("instance_key")
    return instance_key


def wire_key(instance_key: str, box: str, idempotency_key: str) -> str:
    """Return the key that a sink sees: hex sha256 of the JSON array [instance_key, box,
    idempotency_key].

    The array is UTF-8 without blanks, non-ASCII characters as they are, so anybody can compute it
    again.
    """
    parts = (require_instance_key(instance_key), box, idempotency_key)
    text = f"[{','.join(map(encode_basestring, parts))}]"
    return hashlib.sha256(text.encode()).hexdigest()


def payload_digest(claim: Claim) -> str:
    """Return the hex sha256 of the payload's canonical text in UTF-8: what an adapter sends."""
    return hashlib.sha256(claim.payload_json.encode()).hexdigest()


def context_for(
    instance_key: str,
    claim: Claim,
    before_sending: Callable[[], Awaitable[None]] | None = None,
) -> DeliveryContext:
    """Return the context of one claim."""
    return DeliveryContext(
        instance_key=instance_key,
        wire_key=wire_key(instance_key, claim.box, claim.idempotency_key),
        attempt=claim.attempt,
        fence=claim.fence,
        before_sending=before_sending,
    )


class Secret:
    """A credential; shows itself to nobody who doesn't ask."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> Any:
        raise TypeError("a secret can't be copied out")
