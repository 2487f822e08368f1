"""A provider that knows the truth, and a handler that asks it: what a service would write."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

ACCOUNT = "acct_1"


class Provider:
    """What the provider says when asked; None: it can't be reached."""

    def __init__(self) -> None:
        self.reachable = True
        self.invoices: dict[str, tuple[str, str]] = {}

    def ask(self, invoice_id: str) -> tuple[str, str] | None:
        """The invoice's status and the order it is for."""
        return self.invoices.get(invoice_id, ("unknown", "none")) if self.reachable else None


def order(client: Any, invoice_id: str = "in_1", order_id: str = "ord_1", **given: Any) -> str:
    details: dict[str, Any] = {
        "seller": "sel_1", "buyer": "buy_1", "item": "plan", "amount": Decimal("49.90"),
        "currency": "USD",
    } | given  # fmt: skip
    result: str = client.register_order(
        details.pop("account", ACCOUNT), invoice_id, order_id, **details
    )
    return result


def receive(client: Any, event_id: str, kind: str = "invoice.paid", invoice: str = "in_1") -> Any:
    return client.receive(
        "stripe", ACCOUNT, event_id, kind, invoice, f"{event_id}:{kind}".encode(),
        {"type": kind, "invoice": invoice},
    )  # fmt: skip


def handle(backend: Any, client: Any, claim: Any, provider: Provider) -> str:
    """One event: ask first, then one transaction."""
    invoice_id = claim.payload["invoice"]
    said = provider.ask(invoice_id)
    wait = timedelta(minutes=1)
    if said is None:
        client.postpone(claim.message_id, claim.fence, wait, reason="provider_unreachable")
        return "provider_unreachable"
    status, order_id = said
    with backend.transaction(client):
        client.hold(claim.message_id, claim.fence)
        done = client.finalize_paid(
            claim.message_id, claim.fence, account=ACCOUNT, invoice_id=invoice_id,
            order_id=order_id, status=status,
        )  # fmt: skip
        if done.status in ("not_paid", "no_order"):
            client.postpone(claim.message_id, claim.fence, wait, reason=done.status)
    result: str = done.status
    return result


def drain(backend: Any, client: Any, provider: Provider) -> list[str]:
    """Handle all that is due."""
    return [
        handle(backend, client, claim, provider) for claim in client.claim("w", 100, box="inbox")
    ]


def grant(
    backend: Any, client: Any, invoice_id: str = "in_1", event: str = "E", **given: Any
) -> Any:
    """An order that was paid and granted; returns the right's id."""
    order(client, invoice_id, f"ord-{invoice_id}", **given)
    received = receive(client, f"{event}-{invoice_id}", invoice=invoice_id)
    provider = Provider()
    provider.invoices[invoice_id] = ("paid", f"ord-{invoice_id}")
    assert drain(backend, client, provider) == ["granted"]
    return client.status(received.message_id).reference
