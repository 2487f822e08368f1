"""Operations and machines in the simulation; import it through `trex_client.memory`.

Rows are named and ordered like the columns in `sql/migrations/0003.operations.sql`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trex_client._memory_inbox import MemoryInbox
from trex_client.errors import Forbidden, KeyReused, NotFound, VersionConflict
from trex_client.memory import (
    _LAST_ID,
    _WIDE,
    EXTENSIONS,
    _amount,
    _call,
    _canonical,
    _check_act,
    _check_on,
    _check_payload,
    _check_read,
    _is_integer,
    _is_key,
    _is_number,
    _is_slug,
    _is_text,
    _require,
    canonical_json,
)
from trex_client.model_operations import (
    Corrected,
    Effect,
    EffectState,
    EntityState,
    EntityStep,
    MachineCell,
    OnRefused,
    OperationLine,
    OperationStatus,
    Overdue,
    Transitioned,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from trex_client.memory import DeliveryRow
    from trex_client.model import Box, EffectPolicy

_EFFECT_MACHINE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "machines" / "effect.json").read_text(encoding="utf-8")
)
_AMOUNT_TEXT = re.compile(r"-?[0-9]{1,20}([.][0-9]{1,18})?")
_ENDS_OF_RIGHTS = ("refund:", "cancelled:", "expired:", "revoked:")
_SECONDS = re.compile("[1-9][0-9]{0,8}")


@dataclass(slots=True)
class MachineRow:
    instance_key: str
    machine: str
    revision: int
    definition: str
    digest: bytes
    loaded_at: datetime


@dataclass(slots=True)
class MachineStateRow:
    instance_key: str
    machine: str
    revision: int
    state: str
    owner: str | None
    longest_stay: timedelta | None
    next_action: str | None
    alert: str | None
    final: bool


@dataclass(slots=True)
class MachineTransitionRow:
    instance_key: str
    machine: str
    revision: int
    from_state: str
    event: str
    to_state: str
    roles: str
    amount_min: Decimal | None
    amount_max: Decimal | None
    topic: str | None
    effect_policy: EffectPolicy


@dataclass(slots=True)
class EntityRow:
    instance_key: str
    machine: str
    entity: str
    state: str
    version: int
    operation_id: str
    since: datetime


@dataclass(slots=True)
class OperationRow:
    instance_key: str
    operation_id: str
    kind: str
    machine: str | None
    entity: str | None
    event: str | None
    from_state: str | None
    to_state: str | None
    version: int | None
    actor: str
    role: str
    amount: Decimal | None
    arguments: str
    digest: bytes
    reason: str
    message_id: int | None
    done_at: datetime


@dataclass(slots=True)
class AdjustmentRow:
    instance_key: str
    adjustment_id: str
    operation_id: str
    version: int
    kind: str
    amount: Decimal
    balance: Decimal
    on_state: str | None
    on_version: int | None
    actor: str
    role: str
    reason: str
    evidence: str
    digest: bytes
    adjusted_at: datetime


@dataclass
class OperationTables:
    machine: dict[tuple[str, str, int], MachineRow] = field(default_factory=dict)
    machine_state: dict[tuple[str, str, int, str], MachineStateRow] = field(default_factory=dict)
    machine_transition: dict[tuple[str, str, int, str, str], MachineTransitionRow] = field(
        default_factory=dict
    )
    entity: dict[tuple[str, str, str], EntityRow] = field(default_factory=dict)
    operation: dict[tuple[str, str], OperationRow] = field(default_factory=dict)
    adjustment: dict[tuple[str, str], AdjustmentRow] = field(default_factory=dict)


EXTENSIONS.append(OperationTables)


def _trim(value: Decimal | int | None) -> Decimal | None:
    """Without trailing zeros."""
    if value is None:
        return None
    exact = Decimal(value).normalize(_WIDE)
    return Decimal(f"{exact:f}") if exact else Decimal(0)


def _operation_digest(
    kind: str,
    machine: str | None,
    entity: str | None,
    event: str | None,
    amount: Decimal | int | None,
    arguments: str,
) -> bytes:
    """What makes two operations the same intent; 1.50 and 1.5 are one."""
    intent = {
        "kind": kind,
        "machine": machine,
        "entity": entity,
        "event": event,
        "amount": _trim(amount),
        "arguments": _json(arguments),
    }
    return hashlib.sha256(_canonical(intent).encode()).digest()


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def _refuse_operation(status: OperationStatus) -> None:
    """The answers that stop a transaction."""
    if status == "not_found":
        raise NotFound
    if status == "operation_conflict":
        raise KeyReused
    if status == "version_conflict":
        raise VersionConflict
    if status == "forbidden":
        raise Forbidden("not in this state, by this role or with this amount")


def _is_amount_text(value: object) -> bool:
    if isinstance(value, Decimal):
        value = _canonical(value)
    return isinstance(value, str) and _AMOUNT_TEXT.fullmatch(value) is not None


_STATE_FIELDS: dict[str, Callable[[Any], bool]] = {
    "owner": _is_key,
    "next_action": _is_key,
    "alert": _is_slug,
    "longest_stay": lambda v: (
        isinstance(v, Decimal) and _SECONDS.fullmatch(_canonical(v)) is not None
    ),
    "final": lambda v: isinstance(v, bool),
}
_TRANSITION_FIELDS: dict[str, Callable[[Any], bool]] = {
    "event": _is_slug,
    "topic": _is_slug,
    "effect_policy": lambda v: v in ("idempotent", "lookup", "at_most_once"),
    "roles": lambda v: isinstance(v, list) and all(map(_is_slug, v)),
    "amount_min": _is_amount_text,
    "amount_max": _is_amount_text,
}


def _check_machine(definition: Any) -> None:
    """What is wrong with a machine's definition."""

    def require(ok: bool) -> None:
        _require(ok, "definition")

    require(isinstance(definition, dict) and definition.keys() == {"states", "transitions"})
    states, transitions = definition["states"], definition["transitions"]
    require(isinstance(states, dict) and isinstance(transitions, list))
    require(1 <= len(states) <= 100 and 1 <= len(transitions) <= 1000)
    for name, state in states.items():
        require(_is_slug(name) and isinstance(state, dict))
        for key, value in state.items():
            require(key in _STATE_FIELDS and _STATE_FIELDS[key](value))
    steps = set()
    for step in transitions:
        require(isinstance(step, dict) and step.keys() >= {"event", "to"})
        for key, value in step.items():
            if key in ("from", "to"):
                require(
                    (isinstance(value, str) and value in states) or (key, value) == ("from", None)
                )
            else:
                require(key in _TRANSITION_FIELDS and _TRANSITION_FIELDS[key](value))
        least, most = step.get("amount_min"), step.get("amount_max")
        require(least is None or most is None or Decimal(least) <= Decimal(most))
        before = step.get("from")
        require(before is None or states[before].get("final") is not True)
        require((before, step["event"]) not in steps)
        steps.add((before, step["event"]))


class MemoryOperations(MemoryInbox):
    """Operations, machines, corrections, effect states."""

    @property
    def _operations(self) -> OperationTables:
        return self.db.extension(OperationTables)

    @_call
    def machine_load(
        self,
        machine: str,
        definition: Any = None,
        *,
        definition_json: str | None = None,
        actor: str,
        reason: str,
    ) -> str:
        _require(_is_slug(machine), "machine")
        text = canonical_json(definition, definition_json, "definition")
        data = _json(text)
        _check_machine(data)
        _check_act(actor, reason)
        self._durable()
        instance = self._enter()
        _require(len(text.encode()) <= instance.payload_max, "definition")
        db, tables = self.db, self._operations
        now = db._now()
        digest = hashlib.sha256(text.encode()).digest()
        revision = self._revision(machine)
        if revision:
            old = tables.machine[self._instance_key, machine, revision]
            if old.digest == digest:
                return "unchanged"
            if not _json(old.definition)["states"].keys() <= data["states"].keys():
                raise Forbidden("a state of the machine is missing: entities may be in it")
        revision += 1
        key = (self._instance_key, machine, revision)
        db.put(tables.machine, key, MachineRow(*key, text, digest, now))
        for name, state in data["states"].items():
            stay = state.get("longest_stay")
            row = MachineStateRow(
                *key, name, state.get("owner"), None if stay is None else timedelta(0, int(stay)),
                state.get("next_action"), state.get("alert"), state.get("final", False),
            )  # fmt: skip
            db.put(tables.machine_state, (*key, name), row)
        for step in data["transitions"]:
            before = step.get("from") or ""
            least, most = (step.get(name) for name in ("amount_min", "amount_max"))
            moved = MachineTransitionRow(
                *key, before, step["event"], step["to"], _canonical(step.get("roles", [])),
                None if least is None else _trim(Decimal(least)),
                None if most is None else _trim(Decimal(most)),
                step.get("topic"), step.get("effect_policy", "idempotent"),
            )  # fmt: skip
            db.put(tables.machine_transition, (*key, before, step["event"]), moved)
        detail: dict[str, object] = {
            "machine": machine,
            "revision": revision,
            "digest": digest.hex(),
        }
        self._audit("machine_load", None, actor, reason, detail, now)
        return "loaded" if revision == 1 else "changed"

    def _revision(self, machine: str) -> int:
        """The newest revision of a machine; 0 = there is none."""
        revision = 0
        while (self._instance_key, machine, revision + 1) in self._operations.machine:
            revision += 1
        return revision

    @_call
    def machine_show(self, machine: str) -> list[MachineCell]:
        _require(_is_slug(machine), "machine")
        self._enter()
        revision = self._revision(machine)
        if not revision:
            raise NotFound
        tables = self._operations
        key = (self._instance_key, machine, revision)
        states = [k[3] for k in tables.machine_state if k[:3] == key]
        events = {k[4] for k in tables.machine_transition if k[:3] == key}
        cells = []
        for state in sorted(["", *states]):
            s = tables.machine_state.get((*key, state))
            for event in sorted(events):
                t = tables.machine_transition.get((*key, state, event))
                cells.append(
                    MachineCell(
                        state, event, t.to_state if t else None, json.loads(t.roles) if t else [],
                        t.amount_min if t else None, t.amount_max if t else None,
                        t.topic if t else None, s.owner if s else None,
                        s.longest_stay if s else None, s.next_action if s else None,
                        s.alert if s else None, s is not None and s.final, revision,
                    )
                )  # fmt: skip
        return cells

    @_call
    def transition(
        self,
        machine: str,
        entity: str,
        event: str,
        expected_version: int,
        operation_id: str,
        *,
        actor: str,
        role: str,
        reason: str,
        amount: Decimal | int | None = None,
        arguments: Any = None,
        on_refused: OnRefused = "raise",
    ) -> Transitioned:
        _require(_is_slug(machine), "machine")
        _require(_is_key(entity), "entity")
        _require(_is_slug(event), "event")
        _require(_is_integer(expected_version, 0, _LAST_ID), "expected_version")
        _require(_is_key(operation_id), "operation_id")
        _require(not operation_id.startswith("grant_entitlement:"), "operation_id")
        _check_act(actor, reason)
        _require(_is_slug(role), "role")
        _require(
            amount is None or (_is_number(amount) and _amount(amount, 18) is not None), "amount"
        )
        text = canonical_json({} if arguments is None else arguments)
        _require(text.startswith("{"), "arguments")
        _check_on(on_refused, "on_refused")
        self._durable()
        instance = self._enter()
        _require(len(text.encode()) <= instance.payload_max, "arguments")
        digest = _operation_digest("transition", machine, entity, event, amount, text)
        db, tables = self.db, self._operations
        now = db._now()
        row = tables.entity.get((self._instance_key, machine, entity))
        revision = self._revision(machine)
        done = tables.operation.get((self._instance_key, operation_id))
        before = row.state if row is not None else ""
        step = tables.machine_transition.get((self._instance_key, machine, revision, before, event))
        status: OperationStatus = "applied"
        if not revision or (row is None and expected_version > 0):
            status = "not_found"
        elif done is not None:
            status = "replayed" if done.digest == digest else "operation_conflict"
        elif (row.version if row is not None else 0) != expected_version:
            status = "version_conflict"
        elif step is None or not _allows(step, role, amount):
            status = "forbidden"
        if status == "replayed" and done is not None:
            return Transitioned(
                entity, status, done.to_state, done.version, operation_id, done.message_id,
                done.done_at,
            )  # fmt: skip
        if status != "applied" or step is None:
            if on_refused == "raise":
                _refuse_operation(status)
            return Transitioned(
                entity, status, row.state if row else None, row.version if row else None,
                operation_id, None, None,
            )  # fmt: skip
        version = expected_version + 1
        message_id = None
        if step.topic is not None:
            payload = {
                "machine": machine,
                "entity": entity,
                "event": event,
                "state": step.to_state,
                "version": version,
                "operation_id": operation_id,
                "amount": _trim(amount),
                "arguments": _json(text),
            }
            key = "operation:" + hashlib.sha256(operation_id.encode()).hexdigest()
            message = self._message(
                step.topic, key, payload, None, None, None, None, entity, None,
                step.effect_policy, None,
            )  # fmt: skip
            _check_payload(instance, message)
            enqueued = self._enqueue([message], [None], "report")[0]
            if enqueued.status == "conflict":
                if on_refused == "raise":
                    _refuse_operation("operation_conflict")
                return Transitioned(
                    entity, "operation_conflict", row.state if row else None,
                    row.version if row else None, operation_id, None, None,
                )  # fmt: skip
            message_id = enqueued.message_id
        if row is None:
            where = (self._instance_key, machine, entity)
            db.put(tables.entity, where, EntityRow(*where, step.to_state, 1, operation_id, now))
        else:
            db.change(row)
            row.state, row.version = step.to_state, version
            row.operation_id, row.since = operation_id, now
        operation = OperationRow(
            self._instance_key, operation_id, "transition", machine, entity, event, before,
            step.to_state, version, actor, role, _trim(amount), text, digest, reason, message_id,
            now,
        )  # fmt: skip
        db.put(tables.operation, (self._instance_key, operation_id), operation)
        detail: dict[str, object] = {
            "machine": machine,
            "entity": entity,
            "event": event,
            "from": before,
            "to": step.to_state,
            "version": version,
            "operation_id": operation_id,
            "role": role,
        }
        self._audit("transition", message_id, actor, reason, detail, now)
        return Transitioned(
            entity, "applied", step.to_state, version, operation_id, message_id, now
        )

    @_call
    def entity_status(self, machine: str, entity: str) -> EntityState:
        _require(_is_slug(machine), "machine")
        _require(_is_key(entity), "entity")
        self._enter()
        row = self._operations.entity.get((self._instance_key, machine, entity))
        if row is None:
            raise NotFound
        s = self._operations.machine_state[
            self._instance_key, machine, self._revision(machine), row.state
        ]
        deadline = None if s.longest_stay is None else row.since + s.longest_stay
        return EntityState(
            row.machine, row.entity, row.state, row.version, row.operation_id, row.since, deadline,
            s.owner, s.next_action, s.alert, s.final,
        )  # fmt: skip

    @_call
    def entity_history(
        self, machine: str, entity: str, *, limit: int = 100, after: int = 0
    ) -> list[EntityStep]:
        _require(_is_slug(machine), "machine")
        _require(_is_key(entity), "entity")
        _check_read(limit, after, "outbox")
        self._enter()
        steps = [
            EntityStep(
                o.version, o.operation_id, o.event, o.from_state, o.to_state, o.actor, o.role,
                o.amount, o.reason, o.message_id, o.done_at,
            )
            for o in self._operations.operation.values()
            if (o.instance_key, o.machine, o.entity) == (self._instance_key, machine, entity)
            and o.version is not None and o.version > after
            and o.event is not None and o.from_state is not None and o.to_state is not None
        ]  # fmt: skip
        return sorted(steps, key=lambda step: step.version)[:limit]

    @_call
    def correct(
        self,
        operation_id: str,
        adjustment_id: str,
        kind: str,
        amount: Decimal | int,
        expected_version: int,
        *,
        actor: str,
        role: str,
        reason: str,
        evidence: str,
        expected_balance: Decimal | int | None = None,
        on_refused: OnRefused = "raise",
    ) -> Corrected:
        _require(_is_key(operation_id), "operation_id")
        _require(_is_key(adjustment_id), "adjustment_id")
        _require(not adjustment_id.startswith(_ENDS_OF_RIGHTS), "adjustment_id")
        _require(_is_slug(kind), "kind")
        _require(_is_number(amount) and _amount(amount, 18) is not None, "amount")
        _require(_is_integer(expected_version, 0, _LAST_ID), "expected_version")
        _check_act(actor, reason)
        _require(_is_slug(role), "role")
        _require(_is_text(evidence), "evidence")
        _require(
            expected_balance is None
            or (_is_number(expected_balance) and _amount(expected_balance, 18) is not None),
            "expected_balance",
        )
        _check_on(on_refused, "on_refused")
        self._durable()
        self._enter()
        operation = self._operations.operation.get((self._instance_key, operation_id))
        if operation is not None and operation.kind == "grant_entitlement":
            if on_refused == "raise":
                raise Forbidden
            last = self._adjustments(operation_id)[-1:]
            return Corrected(
                adjustment_id, "forbidden", last[0].version if last else 0,
                last[0].balance if last else operation.amount, None, None, None,
            )  # fmt: skip
        corrected = self._correct(
            operation_id, adjustment_id, kind, Decimal(amount), expected_version,
            None if expected_balance is None else Decimal(expected_balance), actor, role, reason,
            evidence, self.db._now(),
        )  # fmt: skip
        if on_refused == "raise":
            _refuse_operation(corrected.status)
        return corrected

    def _adjustments(self, operation_id: str) -> list[AdjustmentRow]:
        rows = [
            row
            for row in self._operations.adjustment.values()
            if row.instance_key == self._instance_key and row.operation_id == operation_id
        ]
        return sorted(rows, key=lambda row: row.version)

    def _correct(
        self,
        operation_id: str,
        adjustment_id: str,
        kind: str,
        amount: Decimal,
        expected_version: int,
        expected_balance: Decimal | None,
        actor: str,
        role: str,
        reason: str,
        evidence: str,
        now: datetime,
    ) -> Corrected:
        """One correction, checked and appended."""
        db, tables = self.db, self._operations
        operation = tables.operation.get((self._instance_key, operation_id))
        if operation is None:
            return Corrected(adjustment_id, "not_found", None, None, None, None, None)
        entity = tables.entity.get(
            (self._instance_key, operation.machine or "", operation.entity or "")
        )
        on_state = entity.state if entity else None
        on_version = entity.version if entity else None
        last = self._adjustments(operation_id)[-1:]
        version = last[0].version if last else 0
        before = last[0].balance if last else operation.amount or Decimal(0)
        balance = _trim(_WIDE.add(before, amount)) or Decimal(0)
        digest = _operation_digest(kind, None, operation_id, None, amount, "{}")
        known = tables.adjustment.get((self._instance_key, adjustment_id))
        if known is not None and known.digest == digest:
            return Corrected(
                adjustment_id, "replayed", known.version, known.balance, known.on_state,
                known.on_version, known.adjusted_at,
            )  # fmt: skip
        status: OperationStatus = "applied"
        if known is not None:
            status = "operation_conflict"
        elif version != expected_version or expected_balance not in (None, before):
            status = "version_conflict"
        elif (
            (operation.amount is None and amount != 0)
            or balance * (operation.amount or 0) < 0
            or abs(balance) >= Decimal(10) ** 20
        ):
            status = "forbidden"
        if status != "applied":
            return Corrected(adjustment_id, status, version, before, on_state, on_version, None)
        row = AdjustmentRow(
            self._instance_key, adjustment_id, operation_id, version + 1, kind,
            _trim(amount) or Decimal(0), balance, on_state, on_version, actor, role, reason,
            evidence, digest, now,
        )  # fmt: skip
        db.put(tables.adjustment, (self._instance_key, adjustment_id), row)
        detail: dict[str, object] = {
            "operation_id": operation_id,
            "adjustment_id": adjustment_id,
            "kind": kind,
            "version": version + 1,
            "role": role,
        }
        self._audit("correct", None, actor, reason, detail, now)
        return Corrected(adjustment_id, "applied", version + 1, balance, on_state, on_version, now)

    @_call
    def operation_history(self, operation_id: str) -> list[OperationLine]:
        _require(_is_key(operation_id), "operation_id")
        self._enter()
        o = self._operations.operation.get((self._instance_key, operation_id))
        if o is None:
            raise NotFound
        lines = [
            OperationLine(
                0, o.kind, o.operation_id, o.amount, o.amount, o.to_state, o.version, o.actor,
                o.role, o.reason, None, o.done_at,
            )
        ]  # fmt: skip
        lines += [
            OperationLine(
                a.version, a.kind, a.adjustment_id, a.amount, a.balance, a.on_state,
                a.on_version, a.actor, a.role, a.reason, a.evidence, a.adjusted_at,
            )
            for a in self._adjustments(operation_id)
        ]  # fmt: skip
        return lines

    def _effect(self, message_id: int) -> tuple[Effect, str | None, datetime, datetime | None]:
        """The view trex.effect for one message: effect, reason, since, lease_until."""
        db = self.db
        key = (self._instance_key, message_id)
        enqueued_at = db.message[key].enqueued_at
        row = db.delivery.get(key)
        if row is None:
            return "succeeded", None, db.receipt[key].delivered_at, None
        fences = db.outcome_fences.get(key)
        last = db.outcome[*key, fences[-1]] if fences else None
        effect = _effect_of(row, last.kind if last else None)
        since = enqueued_at
        if last is not None and row.lease_until is None and (row.parked or row.uncertain):
            since = last.recorded_at
        return effect, last.reason if last else None, since, row.lease_until

    def _effect_meaning(self, effect: str) -> dict[str, Any]:
        """One state of the machine that explains effects."""
        revision = self._revision("effect")
        machine = _EFFECT_MACHINE
        if revision:
            machine = _json(
                self._operations.machine[self._instance_key, "effect", revision].definition
            )
        state: dict[str, Any] = machine["states"].get(effect, {})
        return state

    @_call
    def effect_states(
        self,
        effect: Effect | None = None,
        *,
        limit: int = 100,
        after: int = 0,
        box: Box = "outbox",
    ) -> list[EffectState]:
        _check_read(limit, after, box)
        _require(effect in (None, *_EFFECT_MACHINE["states"]), "effect")
        self._enter()
        db = self.db
        found: list[EffectState] = []
        for instance_key, message_id in sorted(db.message):
            m = db.message[instance_key, message_id]
            if instance_key != self._instance_key or message_id <= after or m.box != box:
                continue
            known, reason, since, lease_until = self._effect(message_id)
            if effect not in (None, known):
                continue
            row = db.delivery.get((instance_key, message_id))
            attempts = row.attempts if row else db.receipt[instance_key, message_id].attempt
            meaning = self._effect_meaning(known)
            found.append(
                EffectState(
                    message_id, m.box, m.topic, known, reason, attempts,
                    row is not None and row.uncertain, since,
                    lease_until or _deadline(since, meaning), meaning.get("owner"),
                    meaning.get("next_action"), meaning.get("alert"),
                )
            )  # fmt: skip
            if len(found) == limit:
                break
        return found

    @_call
    def overdue(self, *, limit: int = 100) -> list[Overdue]:
        _check_read(limit, 0, "outbox")
        self._enter()
        return self._overdue(limit, self.db._now())

    def _overdue(self, limit: int, now: datetime) -> list[Overdue]:
        tables = self._operations
        found: list[Overdue] = []
        for e in tables.entity.values():
            if e.instance_key != self._instance_key:
                continue
            s = tables.machine_state[e.instance_key, e.machine, self._revision(e.machine), e.state]
            if s.longest_stay is not None and e.since < now - s.longest_stay:
                found.append(
                    Overdue(
                        "entity", e.machine, e.entity, None, e.state, e.since,
                        e.since + s.longest_stay, s.owner, s.next_action, s.alert,
                    )
                )  # fmt: skip
        for (instance_key, message_id), row in self.db.delivery.items():
            if instance_key != self._instance_key or row.abandoned:
                continue
            effect, _, since, lease_until = self._effect(message_id)
            meaning = self._effect_meaning(effect)
            deadline = lease_until or _deadline(since, meaning)
            if deadline is not None and deadline < now:
                found.append(
                    Overdue(
                        "effect", "effect", None, message_id, effect, since, deadline,
                        meaning.get("owner"), meaning.get("next_action"), meaning.get("alert"),
                    )
                )  # fmt: skip
        found.sort(key=_deadline_first)
        return found[:limit]


def _deadline_first(o: Overdue) -> tuple[datetime, str, bool, str, int]:
    return o.deadline, o.machine, o.entity is None, o.entity or "", o.message_id or 0


def _allows(step: MachineTransitionRow, role: str, amount: Decimal | int | None) -> bool:
    """The step is for this role and this amount."""
    roles = json.loads(step.roles)
    if roles and role not in roles:
        return False
    bounds = [bound for bound in (step.amount_min, step.amount_max) if bound is not None]
    if amount is None:
        return not bounds
    return (step.amount_min is None or amount >= step.amount_min) and (
        step.amount_max is None or amount <= step.amount_max
    )


def _deadline(since: datetime, meaning: dict[str, Any]) -> datetime | None:
    stay = meaning.get("longest_stay")
    return None if stay is None else since + timedelta(seconds=int(stay))


def _effect_of(row: DeliveryRow, last: str | None) -> Effect:
    effect: Effect = "intent_recorded"
    if row.parked in ("conflict", "permanent"):
        effect = "rejected"
    elif row.parked == "dead_letter":
        effect = "failed"
    elif row.parked == "unknown":
        effect = "unknown"
    elif row.lease_until is not None:
        effect = "in_progress"
    elif row.uncertain:
        effect = "unknown"
    elif last == "postponed":
        effect = "waiting"
    elif last in ("retry", "dead_letter", "permanent", "conflict"):
        effect = "failed"
    return effect
