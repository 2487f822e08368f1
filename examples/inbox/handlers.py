"""Handlers for events of a payment provider, run by

    trex daemon --box inbox --handlers handlers:HANDLERS -c 8

An event only says that something happened. What is true now is asked from the provider, before the
transaction; then the right is granted in the same transaction as the receipt of the event.
"""

from __future__ import annotations

import os
from datetime import timedelta
from urllib.parse import quote

import httpx

from trex_client.worker import Incoming, Refused, Steps, Waiting


async def ask_for_invoice(incoming: Incoming) -> dict[str, str] | Waiting | Refused:
    """The invoice as the provider has it now; unreachable is Waiting by itself."""
    invoice_id = incoming.event.object_id
    if invoice_id is None:
        return Refused("invalid_request")
    async with httpx.AsyncClient(
        base_url=os.environ["PROVIDER_URL"],
        auth=(os.environ["PROVIDER_KEY"], ""),
        timeout=10,
    ) as provider:
        answer = await provider.get(f"/v1/invoices/{quote(invoice_id, safe='')}")
    if answer.status_code == 404:
        return Refused("not_found")
    if answer.status_code != 200:
        return Waiting("provider_unreachable", timedelta(seconds=30))
    invoice = answer.json()
    return {
        "invoice_id": invoice_id,
        "order_id": str(invoice["metadata"].get("order_id", "none")),
        "status": str(invoice["status"]),
    }


async def grant(incoming: Incoming) -> Waiting | None:
    """Operation, right, licence and receipt together, or nothing. What was asked is kept either
    way, so that reconciliation sees a payment that waits for its order."""
    done = await incoming.kernel.finalize_paid(
        incoming.claim.message_id,
        incoming.claim.fence,
        account=incoming.event.account,
        **incoming.asked,
    )
    if done.status in {"not_paid", "no_order"}:
        return Waiting(done.status, timedelta(minutes=5))
    return None


async def ignore(incoming: Incoming) -> None:
    """Done: nothing of ours depends on it."""


HANDLERS = {
    "invoice.paid": Steps(ask=ask_for_invoice, apply=grant),
    "invoice.payment_succeeded": Steps(ask=ask_for_invoice, apply=grant),
    "*": ignore,
}
