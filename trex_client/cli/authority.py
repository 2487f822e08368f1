"""Orders, payments, rights, licences and their use: one command for each function."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import typer

from trex_client._calls import Call
from trex_client._calls_reconcile import AllCalls
from trex_client.cli._run import call_command
from trex_client.cli._types import (
    Actor,
    Evidence,
    Fence,
    MessageId,
    ReadLimit,
    Reason,
    Report,
    parse_amount,
    parse_duration,
    parse_time,
)

Account = Annotated[str, typer.Option("--account", help="The provider's account.")]
Invoice = Annotated[str, typer.Option("--invoice", help="The provider's number of the invoice.")]
Status = Annotated[str, typer.Option("--status", help="What the provider answered when asked.")]
Amount = Annotated[
    Decimal, typer.Option("--amount", parser=parse_amount, metavar="AMOUNT", help="Exact.")
]
Currency = Annotated[str, typer.Option("--currency", help="Code of a registered currency.")]
Licence = Annotated[str, typer.Argument(help="Id of the licence.")]
Capability = Annotated[str, typer.Argument(help="Id of the capability, chosen by the caller.")]
Subject = Annotated[str, typer.Option("--subject", help="Who uses it.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Rights for what was paid, once for each invoice, and the use of licences. What the"
        " provider says is asked before, never inside.",
    )
    app.add_typer(group, name="authority", rich_help_panel="Operations")
    _register_orders(group)
    _register_ends(group)
    _register_licences(group)


def _register_orders(group: typer.Typer) -> None:
    @call_command(
        group,
        "register-order",
        "trex authority register-order in_1 ord_1 --account acct_main --seller s1 --buyer b1"
        " --item plan --amount 50 --currency USD --uses-max 10",
    )
    def register_order(
        calls: AllCalls,
        invoice_id: Annotated[str, typer.Argument(help="The provider's number of the invoice.")],
        order_id: Annotated[str, typer.Argument(help="Number of the order.")],
        account: Account,
        seller: Annotated[str, typer.Option("--seller", help="Who sells.")],
        buyer: Annotated[str, typer.Option("--buyer", help="Who buys.")],
        item: Annotated[str, typer.Option("--item", help="What is bought.")],
        amount: Amount,
        currency: Currency,
        uses_max: Annotated[int | None, typer.Option("--uses-max", help="Most uses.")] = None,
        devices_max: Annotated[
            int | None, typer.Option("--devices-max", help="Most devices.")
        ] = None,
        valid_for: Annotated[
            timedelta | None,
            typer.Option(
                "--valid-for",
                parser=parse_duration,
                metavar="DURATION",
                help="How long the right lasts; without it for ever.",
            ),
        ] = None,
    ) -> Call[Any]:
        """Register what was ordered under one invoice."""
        return calls.register_order(
            account,
            invoice_id,
            order_id,
            seller=seller,
            buyer=buyer,
            item=item,
            amount=amount,
            currency=currency,
            uses_max=uses_max,
            devices_max=devices_max,
            valid_for=valid_for,
        )

    @call_command(
        group,
        "record-payment",
        "trex authority record-payment --account acct_main --invoice in_1 --status paid",
    )
    def record_payment(
        calls: AllCalls, account: Account, invoice: Invoice, status: Status
    ) -> Call[Any]:
        """Store what the provider says of an invoice now."""
        return calls.record_payment(account, invoice, status)

    @call_command(
        group,
        "finalize-paid",
        "trex authority finalize-paid 4711 17 --account acct_main --invoice in_1 --order ord_1"
        " --status paid",
    )
    def finalize_paid(
        calls: AllCalls,
        message_id: MessageId,
        fence: Fence,
        account: Account,
        invoice: Invoice,
        order: Annotated[str, typer.Option("--order", help="Number of the order.")],
        status: Status,
    ) -> Call[Any]:
        """Grant what was paid, once, and complete the claimed event; or do neither. After not_paid
        and no_order the claim is still held: postpone it."""
        return calls.finalize_paid(
            message_id, fence, account=account, invoice_id=invoice, order_id=order, status=status
        )

    @call_command(
        group,
        "update-subscription",
        "trex authority update-subscription sub_1 --account acct_main --invoice in_1"
        " --status active --period-end 2027-01-31 --asked-at 2026-12-31T09:00:00Z",
    )
    def update_subscription(
        calls: AllCalls,
        subscription_id: Annotated[str, typer.Argument(help="The provider's number of it.")],
        account: Account,
        invoice: Invoice,
        status: Annotated[
            Literal["active", "past_due", "cancelled", "expired"],
            typer.Option(
                "--status",
                metavar="active|past_due|cancelled|expired",
                help="What the provider answered when asked.",
            ),
        ],
        period_end: Annotated[
            datetime,
            typer.Option(
                "--period-end", parser=parse_time, metavar="TIME", help="Paid until then."
            ),
        ],
        asked_at: Annotated[
            datetime,
            typer.Option(
                "--asked-at", parser=parse_time, metavar="TIME", help="When the provider was asked."
            ),
        ],
    ) -> Call[Any]:
        """Store a subscription as the provider states it; an older answer is stale."""
        return calls.update_subscription(
            account,
            subscription_id,
            invoice,
            status=status,
            period_end=period_end,
            asked_at=asked_at,
        )


def _register_ends(group: typer.Typer) -> None:
    @call_command(
        group,
        "apply-provider-cancel",
        "trex authority apply-provider-cancel 4711 17 --account acct_main --invoice in_1"
        " --cause cancelled --evidence evt_9",
    )
    def apply_provider_cancel(
        calls: AllCalls,
        message_id: MessageId,
        fence: Fence,
        account: Account,
        invoice: Invoice,
        cause: Annotated[
            Literal["cancelled", "expired", "revoked"],
            typer.Option("--cause", metavar="cancelled|expired|revoked", help="Why it ends."),
        ],
        evidence: Evidence,
    ) -> Call[Any]:
        """End a right because the provider did, and complete the claimed event."""
        return calls.apply_provider_cancel(
            message_id, fence, account=account, invoice_id=invoice, cause=cause, evidence=evidence
        )

    @call_command(
        group,
        "apply-refund",
        "trex authority apply-refund 4711 17 --account acct_main --invoice in_1 --refund re_1"
        " --amount 20 --currency USD --evidence evt_9",
    )
    def apply_refund(
        calls: AllCalls,
        message_id: MessageId,
        fence: Fence,
        account: Account,
        invoice: Invoice,
        refund: Annotated[str, typer.Option("--refund", help="The provider's number of it.")],
        amount: Amount,
        currency: Currency,
        evidence: Evidence,
    ) -> Call[Any]:
        """Correct a grant by money that went back, and complete the claimed event. The right ends
        when nothing is left."""
        return calls.apply_refund(
            message_id,
            fence,
            account=account,
            invoice_id=invoice,
            refund_id=refund,
            amount=amount,
            currency=currency,
            evidence=evidence,
        )

    @call_command(
        group,
        "expire-entitlements",
        "trex authority expire-entitlements --reason nightly --limit 10000",
    )
    def expire_entitlements(
        calls: AllCalls, actor: Actor, reason: Reason, limit: ReadLimit = 1000
    ) -> Call[Any]:
        """End the rights whose time is over, at most so many; 0 are left when it says 0."""
        return calls.expire_entitlements(actor=actor, reason=reason, limit=limit)


def _register_licences(group: typer.Typer) -> None:
    @call_command(
        group,
        "issue-capability",
        "trex authority issue-capability cap_1 lic_1 --subject b1 --lifetime 10m",
    )
    def issue_capability(
        calls: AllCalls,
        capability_id: Capability,
        licence_id: Licence,
        subject: Subject,
        lifetime: Annotated[
            timedelta | None,
            typer.Option(
                "--lifetime", parser=parse_duration, metavar="DURATION", help="1s to 30d; else 5m."
            ),
        ] = None,
    ) -> Call[Any]:
        """Issue one use of a licence by one subject."""
        return calls.issue_capability(
            capability_id, licence_id, subject, lifetime=lifetime or timedelta(minutes=5)
        )

    @call_command(
        group,
        "execute-licence",
        "trex authority execute-licence cap_1 use_1 --subject b1 --report",
    )
    def execute_licence(
        calls: AllCalls,
        capability_id: Capability,
        usage_id: Annotated[
            str, typer.Argument(help="Id of this use; the same again is no other.")
        ],
        subject: Subject,
        thumbprint: Annotated[
            str | None, typer.Option("--thumbprint", help="Of the device's key, where bound.")
        ] = None,
        report: Report = False,
    ) -> Call[Any]:
        """Use a licence once: take the capability, record the use, count it; or nothing of it. With
        --report a refusal is kept as a security event."""
        return calls.execute_licence(
            capability_id,
            subject,
            usage_id,
            thumbprint=thumbprint,
            on_refused="report" if report else "raise",
        )

    @call_command(group, "bind-device", "trex authority bind-device lic_1 c2hhMjU2LXRodW1icHJpbnQ")
    def bind_device(
        calls: AllCalls,
        licence_id: Licence,
        thumbprint: Annotated[str, typer.Argument(help="Thumbprint of the device's key.")],
    ) -> Call[Any]:
        """Bind one more device to a licence, by its key's thumbprint, never the key."""
        return calls.bind_device(licence_id, thumbprint)
