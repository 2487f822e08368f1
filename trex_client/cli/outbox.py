"""Write movements and read what isn't delivered."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from trex_client._calls import Call, Calls
from trex_client.cli._input import read_text, refuse_twins
from trex_client.cli._run import call_command
from trex_client.cli._types import (
    After,
    BoxOption,
    Delay,
    Policy,
    ReadLimit,
    parse_amount,
)

PANEL = "Outbox"


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @call_command(
        app,
        "enqueue",
        """
        trex enqueue post order-17 --payload '{"order": 17}'
        trex enqueue post o-18 --payload-file - --account a-1 --currency USD --cash-delta -12.50
        """,
        panel=PANEL,
    )
    def enqueue(
        calls: Calls,
        topic: Annotated[str, typer.Argument(help="What it is: a slug such as ledger.post.")],
        idempotency_key: Annotated[str, typer.Argument(help="Unique name of this movement.")],
        payload: Annotated[str | None, typer.Option("--payload", help="JSON text.")] = None,
        payload_file: Annotated[
            Path | None, typer.Option("--payload-file", help="File with JSON text; - is stdin.")
        ] = None,
        account: Annotated[str | None, typer.Option("--account", help="Whose money.")] = None,
        currency: Annotated[
            str | None, typer.Option("--currency", help="A registered currency, such as USD.")
        ] = None,
        cash_delta: Annotated[
            Decimal | None,
            typer.Option(
                "--cash-delta", parser=parse_amount, metavar="AMOUNT", help="Exact amount."
            ),
        ] = None,
        correlation_id: Annotated[
            str | None, typer.Option("--correlation", help="What it belongs to.")
        ] = None,
        ordering_key: Annotated[
            str | None, typer.Option("--ordering-key", help="Delivered in order within this key.")
        ] = None,
        effect_policy: Policy = "idempotent",
        delay: Delay = None,
    ) -> Call[Any]:
        """Put one movement into the outbox, once per idempotency key."""
        if (payload is None) == (payload_file is None):
            raise typer.BadParameter("give either --payload or --payload-file")
        text = read_text(payload_file) if payload_file is not None else payload or ""
        refuse_twins("payload", text)
        return calls.enqueue(
            topic,
            idempotency_key,
            payload_json=text,
            account=account,
            currency=currency,
            cash_delta=cash_delta,
            correlation_id=correlation_id,
            ordering_key=ordering_key,
            effect_policy=effect_policy,
            delay=delay,
            on_conflict="report",
        )

    @call_command(app, "pending", "trex pending --limit 20", panel=PANEL)
    def pending(
        calls: Calls,
        limit: ReadLimit = 100,
        after: After = 0,
        box: BoxOption = "outbox",
        parked: Annotated[bool, typer.Option("--parked", help="Parked ones as well.")] = False,
    ) -> Call[Any]:
        """List undelivered messages that aren't under an active lease."""
        return calls.list_pending(limit=limit, after=after, box=box, include_parked=parked)

    @call_command(app, "cash", "trex cash\ntrex cash --account acc-1 --json", panel=PANEL)
    def cash(
        calls: Calls,
        account: Annotated[str | None, typer.Option("--account", help="One account only.")] = None,
        currency: Annotated[
            str | None, typer.Option("--currency", help="One currency only.")
        ] = None,
    ) -> Call[Any]:
        """Sum up what the ledger hasn't got yet, per account and currency."""
        return calls.pending_cash_delta(account=account, currency=currency)

    @call_command(app, "status", "trex status 4711\ntrex status --key order-17", panel=PANEL)
    def status(
        calls: Calls,
        message_id: Annotated[int | None, typer.Argument(help="Number of the message.")] = None,
        idempotency_key: Annotated[
            str | None, typer.Option("--key", help="Idempotency key instead of the number.")
        ] = None,
        box: BoxOption = "outbox",
    ) -> Call[Any]:
        """Show where one message stands."""
        return calls.status(message_id, idempotency_key=idempotency_key, box=box)

    @call_command(app, "parked", "trex parked", panel=PANEL)
    def parked_messages(
        calls: Calls, limit: ReadLimit = 100, after: After = 0, box: BoxOption = "outbox"
    ) -> Call[Any]:
        """List parked messages and why they are."""
        return calls.list_parked(limit=limit, after=after, box=box)

    @call_command(app, "stats", "trex stats --json", panel=PANEL)
    def stats(
        calls: Calls,
        box: BoxOption = "outbox",
        cap: Annotated[int, typer.Option("--cap", help="Stop counting a state here.")] = 100_000,
    ) -> Call[Any]:
        """Count undelivered messages by state."""
        return calls.stats(box=box, cap=cap)
