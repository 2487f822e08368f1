"""State machines as data: load one, show it as a table, see where entities are."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trex_client._calls import Call
from trex_client._calls_reconcile import AllCalls
from trex_client.cli._input import refuse_twins
from trex_client.cli._run import call_command
from trex_client.cli._types import (
    Actor,
    After,
    BoxOption,
    Evidence,
    ReadLimit,
    Reason,
    Report,
    parse_amount,
)
from trex_client.errors import InvalidArgument

MachineName = Annotated[str, typer.Argument(help="Name of the machine.")]
Role = Annotated[str, typer.Option("--role", help="As what, of the roles that the machine names.")]
Entity = Annotated[str, typer.Argument(help="What moves, such as an order's number.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True, help="State machines and the entities that move by them."
    )
    app.add_typer(group, name="machine", rich_help_panel="Operations")
    _register_definitions(group)
    _register_steps(group)
    _register_reads(group)


def _register_definitions(group: typer.Typer) -> None:
    @call_command(
        group,
        "load",
        """
        trex machine load order.json --reason 'returns'
        trex machine load order-v2.json --name order --reason 'returns'
        """,
    )
    def load(
        calls: AllCalls,
        file: Annotated[
            Path, typer.Argument(help="JSON file with states and transitions.", show_default=False)
        ],
        actor: Actor,
        reason: Reason,
        name: Annotated[
            str | None,
            typer.Option(
                "--name", help="Name of the machine; else the file's, without its ending."
            ),
        ] = None,
    ) -> Call[Any]:
        """Load a machine, or change it; states that it has must stay."""
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise typer.BadParameter("the file can't be read", param_hint="FILE") from None
        refuse_twins("definition", text)
        return calls.machine_load(
            name or file.stem, definition_json=text, actor=actor, reason=reason
        )

    @call_command(group, "show", "trex machine show order")
    def show_machine(calls: AllCalls, machine: MachineName) -> Call[Any]:
        """A machine as a table. In JSON each state with each event; no to_state: forbidden."""
        return calls.machine_show(machine)


def _register_steps(group: typer.Typer) -> None:
    @call_command(
        group,
        "transition",
        "trex machine transition order 4711 place --version 0 --operation buy-1 --role buyer"
        " --amount 100 --reason checkout\n"
        "trex machine transition order 4711 cancel --version 1 --operation cancel-1 --role support"
        " --reason 'ticket 12'",
    )
    def transition(
        calls: AllCalls,
        machine: MachineName,
        entity: Entity,
        event: Annotated[str, typer.Argument(help="What happens to it.")],
        version: Annotated[
            int,
            typer.Option("--version", help="The version that was seen; 0: it doesn't exist yet."),
        ],
        operation: Annotated[
            str, typer.Option("--operation", help="Id of this intent; again it is a replay.")
        ],
        role: Role,
        actor: Actor,
        reason: Reason,
        amount: Annotated[
            Decimal | None,
            typer.Option("--amount", parser=parse_amount, metavar="AMOUNT", help="What it is for."),
        ] = None,
        arguments: Annotated[
            str | None, typer.Option("--arguments", help="More of the intent: a JSON object.")
        ] = None,
        report: Report = False,
    ) -> Call[Any]:
        """Move an entity by one event, for operators too. Somebody else was faster: code 8, look at
        `trex machine status` and decide again."""
        return calls.transition(
            machine,
            entity,
            event,
            version,
            operation,
            actor=actor,
            role=role,
            reason=reason,
            amount=amount,
            arguments=None if arguments is None else _parsed(arguments),
            on_refused="report" if report else "raise",
        )

    @call_command(
        group,
        "correct",
        "trex machine correct buy-1 refund-1 refund --amount -30 --version 0 --role support"
        " --evidence 'photo 7' --reason damaged",
    )
    def correct(
        calls: AllCalls,
        operation_id: Annotated[str, typer.Argument(help="Id of the operation that is done.")],
        adjustment_id: Annotated[
            str, typer.Argument(help="Id of this correction; again it is a replay.")
        ],
        kind: Annotated[str, typer.Argument(help="What it is, such as refund.")],
        amount: Annotated[
            Decimal,
            typer.Option(
                "--amount", parser=parse_amount, metavar="AMOUNT", help="By how much, signed."
            ),
        ],
        version: Annotated[int, typer.Option("--version", help="How many corrections were seen.")],
        role: Role,
        evidence: Evidence,
        actor: Actor,
        reason: Reason,
        balance: Annotated[
            Decimal | None,
            typer.Option(
                "--balance",
                parser=parse_amount,
                metavar="AMOUNT",
                help="The balance that was seen.",
            ),
        ] = None,
        report: Report = False,
    ) -> Call[Any]:
        """Append a correction to a done operation, which stays as it is."""
        return calls.correct(
            operation_id,
            adjustment_id,
            kind,
            amount,
            version,
            actor=actor,
            role=role,
            reason=reason,
            evidence=evidence,
            expected_balance=balance,
            on_refused="report" if report else "raise",
        )


def _parsed(text: str) -> Any:
    refuse_twins("arguments", text)
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise InvalidArgument("arguments: not JSON") from None


def _register_reads(group: typer.Typer) -> None:
    @call_command(group, "status", "trex machine status order 4711")
    def status(calls: AllCalls, machine: MachineName, entity: Entity) -> Call[Any]:
        """Where an entity is, and who has to do what by when."""
        return calls.entity_status(machine, entity)

    @call_command(group, "history", "trex machine history order 4711")
    def history(
        calls: AllCalls,
        machine: MachineName,
        entity: Entity,
        limit: ReadLimit = 100,
        after: Annotated[int, typer.Option("--after", help="Only steps to a higher version.")] = 0,
    ) -> Call[Any]:
        """The steps of an entity: event, actor, reason, operation."""
        return calls.entity_history(machine, entity, limit=limit, after=after)

    @call_command(group, "operation", "trex machine operation order-4711-refund")
    def operation(
        calls: AllCalls,
        operation_id: Annotated[str, typer.Argument(help="Id of the operation.")],
    ) -> Call[Any]:
        """One operation and its corrections, with the balance after each."""
        return calls.operation_history(operation_id)

    @call_command(group, "overdue", "trex machine overdue")
    def overdue(calls: AllCalls, limit: ReadLimit = 100) -> Call[Any]:
        """What is past the longest stay of its state, the oldest deadline first."""
        return calls.overdue(limit=limit)

    @call_command(
        group,
        "effects",
        """
        trex machine effects
        trex machine effects --effect unknown
        """,
    )
    def effects(
        calls: AllCalls,
        effect: Annotated[
            Literal[
                "rejected",
                "intent_recorded",
                "in_progress",
                "waiting",
                "succeeded",
                "failed",
                "unknown",
            ]
            | None,
            typer.Option(
                "--effect",
                metavar="rejected|intent_recorded|in_progress|waiting|succeeded|failed|unknown",
                help="Only messages whose effect is in this state.",
            ),
        ] = None,
        limit: ReadLimit = 100,
        after: After = 0,
        box: BoxOption = "outbox",
    ) -> Call[Any]:
        """The state of each message's effect, and who has to do what by when."""
        return calls.effect_states(effect, limit=limit, after=after, box=box)
