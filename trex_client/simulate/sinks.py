"""Model ledgers, and the hook for one's own adapter and policy.

A `SimSink` keeps the books of one ledger. An adapter model awaits `post` and `get` as a real one
awaits sockets; between a call and its answer the simulation runs other steps, lets the worker
crash, or lets the request arrive late.

To simulate your own, subclass `Policy` and name it with `--policy module:object`:

    class Mine(Policy):
        def adapter(self, sink: SimSink) -> Adapter:
            return MyAdapterModel(sink)          # awaits sink.post(...) and sink.get(...) only

        def processor(self, instance_key, adapter, telemetry, runtime) -> Processor:
            return MyProcessor(...)              # what is decided after an unknown outcome

The promises that are checked follow what the adapter says of itself (`policy`, `can_lookup`).
"""

from __future__ import annotations

import importlib
import inspect
import io
import re
import sys
import sysconfig
import traceback
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trex_client.adapters.base import (
    Absent,
    Adapter,
    BaseAdapter,
    Conflict,
    Delivered,
    DeliveryContext,
    DeliveryResult,
    Duplicate,
    Found,
    LookupResult,
    NotSure,
    Permanent,
    Retryable,
    Snapshot,
    Unknown,
)
from trex_client.model import EFFECT_POLICIES
from trex_client.telemetry import Telemetry
from trex_client.worker import AdapterProcessor, Runtime

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import FrameType

    from trex_client.model import Claim, EffectPolicy
    from trex_client.worker import Processor

IN_FLIGHT = 5.0
"""Seconds: a request that hasn't arrived after this time never will; the model ledger's promise."""

Status = Literal[
    "posted", "duplicate", "conflict", "refused", "unavailable", "in_progress", "lost", "error",
]  # fmt: skip
Kind = Literal["idempotent", "idempotent_lookup", "lookup", "at_most_once"]
KINDS: tuple[Kind, ...] = ("idempotent", "idempotent_lookup", "lookup", "at_most_once")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call got. `lost`: no answer, so nobody knows. `error`: 500, so nobody knows either."""

    status: Status
    version: int = 0


class Wait:
    """What a stepped coroutine waits for: the simulation answers in a later step."""

    __slots__ = ("answer", "call", "until")

    def __init__(self, call: Request | str | None = None, until: float = 0.0) -> None:
        self.call = call
        self.until = until
        self.answer: Any = None

    def __await__(self) -> Generator[Wait, None, Any]:
        yield self
        return self.answer


@dataclass(slots=True)
class Request:
    """A request that left, and hasn't arrived yet."""

    key: str
    body: str
    sent_at: float
    may_arrive: bool = True


@dataclass(slots=True)
class SimSink:
    """The books of one ledger.

    `dedups`: the same key has one effect. `effects` and `calls` count by wire key; a call counts
    when it leaves.
    """

    kind: Kind
    dedups: bool = True
    effects: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    bodies: dict[str, str] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    flying: list[Request] = field(default_factory=list)
    unreachable: bool = False
    other_bodies: int = 0
    lookups: int = 0
    version: int = 0
    now: float = 0.0

    async def post(self, key: str, body: str) -> Answer:
        """Send one message; the answer comes in a later step, if it comes."""
        self.calls[key] = self.calls.get(key, 0) + 1
        if self.bodies.setdefault(key, body) != body:
            self.other_bodies += 1
        request = Request(key, body, self.now)
        self.flying.append(request)
        answer: Answer = await Wait(request)
        return answer

    async def get(self, key: str) -> bool | None:
        """Look up a key: whether it is there; None is no answer."""
        self.lookups += 1
        answer: bool | None = await Wait(key)
        return answer

    # what the simulation does

    def arrive(self, request: Request) -> Answer:
        """The request reaches the ledger."""
        self.drop(request)
        key = request.key
        if key in self.strangers:
            return Answer("conflict")
        if key in self.refused:
            return Answer("refused")
        if self.dedups and key in self.effects:
            return Answer("duplicate", self.version)
        self.effects[key] = self.effects.get(key, 0) + 1
        self.version += 1
        return Answer("posted", self.version)

    def drop(self, request: Request) -> None:
        """The request is lost, or has arrived."""
        self.flying = [one for one in self.flying if one is not request]

    def settle(self, now: float) -> int:
        """Requests older than the window arrive or are lost; how many arrived late."""
        self.now = now
        late = 0
        for request in list(self.flying):
            if request.sent_at + IN_FLIGHT <= now:
                if request.may_arrive:
                    self.arrive(request)
                    late += 1
                else:
                    self.drop(request)
        return late

    def is_flying(self, key: str) -> bool:
        """Whether a request with this key may still arrive."""
        return any(one.key == key for one in self.flying)


class SimAdapter(BaseAdapter):
    """An adapter that follows the contract of `trex_client.adapters.base`, on a model ledger."""

    def __init__(self, sink: SimSink, *, announces_sending: bool = True) -> None:
        self.sink = sink
        self.announces_sending = announces_sending
        kind = sink.kind
        self.policy: EffectPolicy = "idempotent" if kind == "idempotent_lookup" else kind
        self.can_lookup = kind in ("lookup", "idempotent_lookup")
        self.in_flight = timedelta(seconds=IN_FLIGHT)

    async def deliver(self, claim: Claim, context: DeliveryContext) -> DeliveryResult:
        """Post, and classify the answer."""
        if self.sink.unreachable:
            return Retryable("connect_failed")
        if self.announces_sending:
            await context.sending()
        answer = await self.sink.post(context.wire_key, claim.payload_json)
        match answer.status:
            case "posted":
                return Delivered(f"ref-{answer.version}", self._snapshot(claim, answer))
            case "duplicate":
                return Duplicate("ref", self._snapshot(claim, answer))
            case "conflict":
                return Conflict()
            case "refused":
                return Permanent()
            case "unavailable":
                return Retryable("unavailable", timedelta(seconds=1))
            case "in_progress":
                return Retryable("in_progress")
            case "error":
                return Unknown("server_error")
            case "lost":
                return Unknown("timeout")

    def _snapshot(self, claim: Claim, answer: Answer) -> Snapshot | None:
        if claim.account is None:
            return None
        return Snapshot(Decimal(answer.version), answer.version)

    async def lookup(self, wire_key: str) -> LookupResult:
        """Ask the ledger's books."""
        found = await self.sink.get(wire_key)
        if found is None:
            return NotSure()
        return Found("ref") if found else Absent()


class Policy:
    """What is simulated: the adapter model and what is decided with its answers.

    The defaults are the adapter of the contract and the worker's own `AdapterProcessor`.
    """

    kinds: tuple[Kind, ...] = KINDS
    """Ledgers to simulate; a history has one of them for each instance."""

    def sink(self, kind: Kind) -> SimSink:
        """Return the books of a new ledger."""
        return SimSink(kind, dedups=kind in ("idempotent", "idempotent_lookup"))

    def adapter(self, sink: SimSink) -> Adapter:
        """Return the adapter model for a ledger; it may await the sink's methods only."""
        return SimAdapter(sink)

    def processor(
        self, instance_key: str, adapter: Adapter, telemetry: Telemetry, runtime: Runtime
    ) -> Processor:
        """Return what turns a claim into a report."""
        return AdapterProcessor(instance_key, adapter, telemetry, runtime)


class PolicyNotFound(Exception):  # noqa: N818
    """`module:object` names nothing that can be simulated; the text says why, and what to do."""


_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NEEDED = ("deliver", "lookup", "policy", "can_lookup", "in_flight", "announces_sending")
_OURS = str(Path(__file__).resolve().parents[1])
_PYTHONS = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def load_policy(name: str | None) -> Policy:
    """Return the policy that `module:object` names: a `Policy`, or a class or function that makes
    one. Modules in the current directory are found too.

    Raises:
        PolicyNotFound: no such module or object, it fails, or it isn't one. An error of the module
            is named by its type and place; its text isn't shown.
    """
    if name is None:
        return Policy()
    module_name, _, attribute = name.partition(":")
    if not (_NAME.fullmatch(module_name) and _NAME.fullmatch(attribute)):
        raise PolicyNotFound("name it as module:object, such as myservice.sim:Policy")
    found: object = _load_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise PolicyNotFound(
                f"{module_name} has no {attribute}: name a Policy, or a class or function that"
                " makes one, that is defined there"
            )
        found = getattr(found, part)
    named = found
    if callable(found) and not isinstance(found, Policy):
        with _told(f"{attribute}() fails", "it must be made without arguments", named):
            found = found()
    if not isinstance(found, Policy):
        raise PolicyNotFound(
            f"{name} isn't a trex_client.simulate.Policy: name a subclass of it, or a function"
            " that makes one"
        )
    _check_policy(found)
    return found


def _load_module(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        with _told(f"{name} fails on import", f"python -c 'import {name}' shows the whole error"):
            return importlib.import_module(name)
    except _Missing as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise PolicyNotFound(
                f"there is no module {name}: check its name; it must be in the current directory,"
                " in PYTHONPATH, or installed with trex"
            ) from None
        raise


def _check_policy(policy: Policy) -> None:
    """Make one of everything, so that what can't be made is said before anything is played."""
    whose = type(policy)
    kinds: object = policy.kinds
    if not (isinstance(kinds, tuple | list) and kinds and all(one in KINDS for one in kinds)):
        raise PolicyNotFound(
            f"kinds{_defined(whose)} must be some of {', '.join(KINDS)}, and at least one"
        )
    telemetry = Telemetry("policy", level="error", stream=io.StringIO())
    for kind in policy.kinds:
        with _told("sink() fails", "it must return a SimSink", whose.sink):
            sink = policy.sink(kind)
        if not isinstance(sink, SimSink):
            raise PolicyNotFound(f"sink(){_defined(whose.sink)} must return a SimSink")
        with _told("adapter() fails", "it must return an adapter", whose.adapter):
            adapter = policy.adapter(sink)
        lacks = [one for one in _NEEDED if not hasattr(adapter, one)]
        if lacks:
            raise PolicyNotFound(
                f"adapter(){_defined(whose.adapter)} must return an adapter; what it returns"
                f" lacks {', '.join(lacks)}: see trex_client.adapters.BaseAdapter"
            )
        if adapter.policy not in EFFECT_POLICIES:
            raise PolicyNotFound(
                f"policy{_defined(type(adapter))} must be one of {', '.join(EFFECT_POLICIES)}"
            )
        if not isinstance(adapter.in_flight, timedelta):
            raise PolicyNotFound(f"in_flight{_defined(type(adapter))} must be a timedelta")
        with _told("processor() fails", "it must return a processor", whose.processor):
            processor = policy.processor("policy", adapter, telemetry, Runtime())
        if not hasattr(processor, "process"):
            raise PolicyNotFound(f"processor(){_defined(whose.processor)} must return a processor")


class _Missing(PolicyNotFound):
    """An import failed because there is no module `name`."""

    name: str | None = None


@contextmanager
def _told(what: str, advice: str, code: object = None) -> Iterator[None]:
    """Turn an error of somebody's code into one that says its type and place, never its text; what
    it prints is no result."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:  # noqa: BLE001
        at = place_of(error, theirs=True)
        place = f" at {at}" if at else _defined(code)
        kind = _Missing if isinstance(error, ModuleNotFoundError) else PolicyNotFound
        told = kind(f"{what}: {type(error).__name__}{place}; {advice}")
        if isinstance(told, _Missing) and isinstance(error, ModuleNotFoundError):
            told.name = error.name
        raise told from None


def place_of(error: BaseException, *, theirs: bool = False) -> str:
    """File and line where it was raised, in a user's code if it passed through any. `theirs`: '' if
    it didn't."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    return _innermost([(frame.f_code.co_filename, line) for frame, line in frames], theirs=theirs)


def place_of_await(coroutine: object) -> str:
    """The same of the await at which a coroutine stands."""
    lines = []
    while coroutine is not None:
        kind = "gi" if inspect.isgenerator(coroutine) else "cr"
        frame: FrameType | None = getattr(coroutine, f"{kind}_frame", None)
        if frame is not None:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else "cr_await", None)
    return _innermost(lines)


def _innermost(lines: Sequence[tuple[str, int]], *, theirs: bool = False) -> str:
    others = [one for one in lines if not one[0].startswith((_OURS, "<frozen"))]
    own = [one for one in others if not one[0].startswith(_PYTHONS)]
    for found in (own, others, [] if theirs else lines):
        if found:
            return f"{_short(found[-1][0])}:{found[-1][1]}"
    return ""


def _defined(code: object) -> str:
    """Where a class or function is defined, for a sentence; '' where Python doesn't know."""
    try:
        file, (_, line) = inspect.getsourcefile(code), inspect.getsourcelines(code)  # type: ignore[arg-type]
    except (TypeError, OSError):
        return ""
    return f" at {_short(file)}:{line}" if file else ""


def _short(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
