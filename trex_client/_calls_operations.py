"""Operations and machines as SQL calls; see `trex_client._calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trex_client._calls import (
    _NUMBER,
    _OPERATOR,
    Call,
    Row,
    Statement,
    _int4,
    _integer,
    _money,
    _optional_text,
    _payload,
    _text,
    _text_value,
    _with_money,
    _with_times,
)
from trex_client._calls_inbox import InboxCalls
from trex_client.errors import InvalidArgument
from trex_client.model_operations import (
    Corrected,
    Effect,
    EffectState,
    EntityState,
    EntityStep,
    MachineCell,
    OnRefused,
    OperationLine,
    Overdue,
    Transitioned,
)

if TYPE_CHECKING:
    from decimal import Decimal

    from trex_client.model import Box


def _cells(rows: list[Row]) -> list[MachineCell]:
    return [MachineCell(*_with_money(row, 4, 5)) for row in rows]


def _transitioned(rows: list[Row]) -> Transitioned:
    return Transitioned(*_with_times(rows[0], 6))


def _entity_state(rows: list[Row]) -> EntityState:
    return EntityState(*_with_times(rows[0], 5, 6))


def _entity_steps(rows: list[Row]) -> list[EntityStep]:
    return [EntityStep(*_with_times(_with_money(row, 7), 10)) for row in rows]


def _corrected(rows: list[Row]) -> Corrected:
    return Corrected(*_with_times(_with_money(rows[0], 3), 6))


def _operation_lines(rows: list[Row]) -> list[OperationLine]:
    return [OperationLine(*_with_times(_with_money(row, 3, 4), 11)) for row in rows]


def _effect_states(rows: list[Row]) -> list[EffectState]:
    return [EffectState(*_with_times(row, 7, 8)) for row in rows]


def _overdues(rows: list[Row]) -> list[Overdue]:
    return [Overdue(*_with_times(row, 5, 6)) for row in rows]


_MACHINE_LOAD: Final = Statement(
    "machine_load", f"machine text, definition jsonb, {_OPERATOR}", "", _text_value
)
_MACHINE_SHOW: Final = Statement(
    "machine_show",
    "machine text",
    "state event to_state roles amount_min::text amount_max::text topic owner longest_stay "
    "next_action alert final revision",
    _cells,
)
_TRANSITION: Final = Statement(
    "transition",
    "machine text, entity text, event text, expected_version bigint, operation_id text, "
    "actor text, role text, reason text, amount numeric, arguments jsonb, on_refused text",
    "entity status state version operation_id message_id done_at",
    _transitioned,
)
_ENTITY_STATUS: Final = Statement(
    "entity_status",
    "machine text, entity text",
    "machine entity state version operation_id since deadline owner next_action alert final",
    _entity_state,
)
_ENTITY_HISTORY: Final = Statement(
    "entity_history",
    "machine text, entity text, limit integer, after bigint",
    "version operation_id event from_state to_state actor role amount::text reason message_id "
    "done_at",
    _entity_steps,
)
_CORRECT: Final = Statement(
    "correct",
    "operation_id text, adjustment_id text, kind text, amount numeric, expected_version bigint, "
    "actor text, role text, reason text, evidence text, expected_balance numeric, on_refused text",
    "adjustment_id status version balance::text on_state on_version adjusted_at",
    _corrected,
)
_OPERATION_HISTORY: Final = Statement(
    "operation_history",
    "operation_id text",
    "version kind id amount::text balance::text state entity_version actor role reason evidence at",
    _operation_lines,
)
_EFFECT_STATES: Final = Statement(
    "effect_states",
    "effect text, limit integer, after bigint, box text",
    "message_id box topic effect reason attempts uncertain since deadline owner next_action alert",
    _effect_states,
)
_OVERDUE: Final = Statement(
    "overdue",
    "limit integer",
    "source machine entity message_id state since deadline owner next_action alert",
    _overdues,
)


class OperationCalls(InboxCalls):
    """The functions of kernel and inbox, operations and machines."""

    __slots__ = ()

    def machine_load(
        self,
        machine: str,
        definition: Any = None,
        *,
        definition_json: str | None = None,
        actor: str,
        reason: str,
    ) -> Call[str]:
        """Load a machine's definition, as data or as JSON text: 'loaded', 'changed' or 'unchanged'.

        Raises:
            InvalidArgument: it is malformed; Forbidden: a state that it had is missing.
        """
        return _MACHINE_LOAD, (
            self.instance_key,
            _text("machine", machine),
            _payload("definition", definition, definition_json),
            _text("actor", actor),
            _text("reason", reason),
        )

    def machine_show(self, machine: str) -> Call[list[MachineCell]]:
        """The current machine as a table: each state with each event, the forbidden ones too.

        Raises:
            NotFound: there is no such machine in this instance.
        """
        return _MACHINE_SHOW, (self.instance_key, _text("machine", machine))

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
    ) -> Call[Transitioned]:
        """Move an entity by one event. `expected_version` 0: it doesn't exist yet. `operation_id`:
        the same one again is the same intent, and is answered `replayed`.

        Raises:
            NotFound: no such machine or entity; KeyReused: the operation id has another intent;
            VersionConflict: the entity has moved on; Forbidden: not from this state, not by this
            role, or not with this amount. Checked in this order.
        """
        return _TRANSITION, (
            self.instance_key,
            _text("machine", machine),
            _text("entity", entity),
            _text("event", event),
            _integer("expected_version", expected_version),
            _text("operation_id", operation_id),
            _text("actor", actor),
            _text("role", role),
            _text("reason", reason),
            _money("amount", amount),
            _payload("arguments", {} if arguments is None else arguments, None),
            _text("on_refused", on_refused),
        )

    def entity_status(self, machine: str, entity: str) -> Call[EntityState]:
        """Where an entity is, and who has to do what by when.

        Raises:
            NotFound: there is no such entity in this instance.
        """
        return _ENTITY_STATUS, (
            self.instance_key,
            _text("machine", machine),
            _text("entity", entity),
        )

    def entity_history(
        self, machine: str, entity: str, *, limit: int = 100, after: int = 0
    ) -> Call[list[EntityStep]]:
        """The steps of one entity in the order of versions, from the first above `after`."""
        return _ENTITY_HISTORY, (
            self.instance_key,
            _text("machine", machine),
            _text("entity", entity),
            _int4("limit", limit),
            _integer("after", after),
        )

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
    ) -> Call[Corrected]:
        """Append one correction to a done operation. `expected_version`: how many corrections the
        caller has seen.

        Raises:
            NotFound: no such operation; KeyReused: the adjustment id has another intent;
            VersionConflict: another version or balance; Forbidden: the balance would change its
            sign, or the operation has no amount. Checked in this order.
        """
        if amount is None:
            raise InvalidArgument(f"amount: {_NUMBER}")
        return _CORRECT, (
            self.instance_key,
            _text("operation_id", operation_id),
            _text("adjustment_id", adjustment_id),
            _text("kind", kind),
            _money("amount", amount),
            _integer("expected_version", expected_version),
            _text("actor", actor),
            _text("role", role),
            _text("reason", reason),
            _text("evidence", evidence),
            _money("expected_balance", expected_balance),
            _text("on_refused", on_refused),
        )

    def operation_history(self, operation_id: str) -> Call[list[OperationLine]]:
        """One operation and its corrections, with the balance after each.

        Raises:
            NotFound: there is no such operation in this instance.
        """
        return _OPERATION_HISTORY, (self.instance_key, _text("operation_id", operation_id))

    def effect_states(
        self,
        effect: Effect | None = None,
        *,
        limit: int = 100,
        after: int = 0,
        box: Box = "outbox",
    ) -> Call[list[EffectState]]:
        """The states of messages' effects by message id, from the first above `after`."""
        return _EFFECT_STATES, (
            self.instance_key,
            _optional_text("effect", effect),
            _int4("limit", limit),
            _integer("after", after),
            _text("box", box),
        )

    def overdue(self, *, limit: int = 100) -> Call[list[Overdue]]:
        """What is past the longest stay of its state, the oldest deadline first."""
        return _OVERDUE, (self.instance_key, _int4("limit", limit))
