"""What operators do. Each act names its actor and reason, and leaves a row in trex.audit."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from trex_client._calls import Call, Calls
from trex_client.cli._run import call_command
from trex_client.cli._types import (
    Actor,
    Evidence,
    MessageId,
    MessageIds,
    Policy,
    Reason,
    Reference,
    parse_duration,
)
from trex_client.model import Resolution

PANEL = "Operators"


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @call_command(
        app,
        "redrive",
        "trex redrive 4711 4712 --reason 'the account was opened'",
        panel=PANEL,
    )
    def redrive(calls: Calls, message_ids: MessageIds, actor: Actor, reason: Reason) -> Call[Any]:
        """Bring parked messages (dead letter, permanent) back to work, with the same key."""
        return calls.redrive(message_ids, actor=actor, reason=reason)

    @call_command(
        app,
        "resolve",
        """
        trex resolve 4711 delivered --evidence 'statement of May 3' --reason 'asked the bank'
        trex resolve 4711 resend --evidence 'not on any statement' --reason 'asked the bank'
        trex resolve 4711 absent --evidence 'not on any statement' --reason 'order cancelled'
        trex resolve 4711 abandon --evidence 'order was cancelled' --reason 'ticket 12'
        """,
        panel=PANEL,
    )
    def resolve(
        calls: Calls,
        message_id: MessageId,
        resolution: Annotated[
            Resolution,
            typer.Argument(
                help="It took effect; it didn't, send it; it didn't, don't send it; give it up."
            ),
        ],
        evidence: Evidence,
        actor: Actor,
        reason: Reason,
        reference: Reference = None,
    ) -> Call[Any]:
        """Decide about a parked message. resend is for doubt about its outcome, without doubt it is
        redrive; the others are for every parked message. With absent and abandon its ordering key
        goes on without it; abandon doesn't end doubt: it isn't evidence."""
        return calls.resolve(
            message_id,
            resolution,
            evidence=evidence,
            actor=actor,
            reason=reason,
            reference=reference,
        )

    @call_command(
        app,
        "expedite",
        "trex expedite 4711 --reason 'the bank is back'",
        panel=PANEL,
    )
    def expedite(calls: Calls, message_ids: MessageIds, actor: Actor, reason: Reason) -> Call[Any]:
        """Make deferred messages due now."""
        return calls.expedite(message_ids, actor=actor, reason=reason)

    @call_command(
        app,
        "purge",
        """
        trex purge --older-than 400d --dry-run --reason 'retention'
        trex purge --older-than 400d --limit 10000 --reason 'retention'
        """,
        panel=PANEL,
    )
    def purge(
        calls: Calls,
        older_than: Annotated[
            timedelta,
            typer.Option(
                "--older-than",
                parser=parse_duration,
                metavar="DURATION",
                help="Delivered longer ago than that.",
            ),
        ],
        actor: Actor,
        reason: Reason,
        limit: Annotated[int, typer.Option("--limit", "-n", help="Look at so many.")] = 1000,
        after: Annotated[
            int, typer.Option("--after", help="Go on after last_message_id of the last call.")
        ] = 0,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    ) -> Call[Any]:
        """Remove payloads of delivered messages; keys, digests and receipts stay."""
        return calls.purge(
            older_than, actor=actor, reason=reason, limit=limit, after=after, dry_run=dry_run
        )

    @call_command(
        app,
        "adopt",
        "trex adopt 17 --evidence 'ticket 81' --reason 'belongs to shop'",
        panel=PANEL,
    )
    def adopt(
        calls: Calls,
        quarantine_id: Annotated[int, typer.Argument(help="Number of the quarantined row.")],
        evidence: Evidence,
        actor: Actor,
        reason: Reason,
        topic: Annotated[str | None, typer.Option("--topic", help="If the row has none.")] = None,
        idempotency_key: Annotated[
            str | None, typer.Option("--key", help="If the row has no idempotency key.")
        ] = None,
        effect_policy: Policy = "lookup",
    ) -> Call[Any]:
        """Copy a row of an older outbox into this instance's outbox, as uncertain, once."""
        return calls.adopt(
            quarantine_id,
            evidence=evidence,
            actor=actor,
            reason=reason,
            topic=topic,
            idempotency_key=idempotency_key,
            effect_policy=effect_policy,
        )

    @call_command(
        app,
        "bump-epoch",
        "trex bump-epoch --reason 'restored from a backup'",
        panel=PANEL,
        instance=False,
    )
    def bump_epoch(calls: Calls, actor: Actor, reason: Reason) -> Call[Any]:
        """Raise the epoch of all fences, after a restore or a fail-over that may have lost
        commits.
        """
        return calls.bump_epoch(actor=actor, reason=reason)

    @call_command(
        app,
        "currency",
        "trex currency SHELL 4 --reason 'new asset'",
        panel=PANEL,
        instance=False,
    )
    def currency(
        calls: Calls,
        code: Annotated[str, typer.Argument(help="3 to 12 of A-Z 0-9, a letter first.")],
        exponent: Annotated[int, typer.Argument(help="Number of decimals, 0 to 18.")],
        actor: Actor,
        reason: Reason,
    ) -> Call[Any]:
        """Make a currency known. Its number of decimals can't be changed later."""
        return calls.register_currency(code, exponent, actor=actor, reason=reason)
