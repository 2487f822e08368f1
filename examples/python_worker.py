"""A worker in few lines: claim, call, record. The daemon `trex daemon` does the same, and more.

    TREX_DSN=... TREX_INSTANCE=... LEDGER_DSN=... python examples/python_worker.py

It posts to the demo's ledger by the same key on every attempt, and ends when nothing is left.
"""

from __future__ import annotations

import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

import psycopg

from trex_client.adapters import wire_key
from trex_client.errors import ClaimLost, TrexError
from trex_client.postgres import PostgresClient

if TYPE_CHECKING:
    from trex_client.model import Claim

RESULTS = (
    "select result, reference, balance, version from ledger.post(%s, %s, %s, %s, %s, %s, %s, %s)"
)
LOOKUP = (
    "select found, reference, balance, version,"
    " (account, currency, amount) is not distinct from (%s::text, %s::text, %s::numeric)"
    " from ledger.lookup(%s)"
)


def deliver(client: PostgresClient, ledger: psycopg.Connection[Any], claim: Claim) -> str:
    """Bring one message to the ledger and record what became of it."""
    message, fence = claim.message_id, claim.fence
    key = wire_key(client.instance_key, claim.box, claim.idempotency_key)
    if claim.uncertain:
        # An earlier attempt may have arrived: ask before anything is sent again.
        asked = (claim.account, claim.currency, claim.cash_delta, key)
        try:
            row = ledger.execute(LOOKUP, asked).fetchone()
        except psycopg.Error:
            row = None
        if row is None:
            # Nobody knows, so nothing is sent.
            client.mark_unknown(message, fence, reason="lookup_failed")
            return "lookup failed"
        found, reference, balance, version, ours = row
        if found and not ours:
            # Somebody else has used the key; our movement isn't in the ledger.
            client.conflict(message, fence)
            return "conflict"
        if found:
            client.complete(
                message, fence, reference=reference, confirmed_by="lookup",
                balance=balance, version=version,
            )  # fmt: skip
            return "found"
    if claim.effect_policy == "at_most_once":
        client.mark_sent(message, fence)
    values = (
        key, fence, claim.attempt, claim.topic, claim.account, claim.currency, claim.cash_delta,
        claim.payload_json,
    )  # fmt: skip
    try:
        result, reference, balance, version = ledger.execute(RESULTS, values).fetchone() or (
            "",
            None,
            None,
            None,
        )
    except psycopg.Error as error:
        if ledger.closed:
            client.mark_unknown(message, fence, reason="connection_lost")
            raise
        client.retry(message, fence, reason="server_error")
        return f"retry after {error.sqlstate}"
    match result:
        case "posted":
            client.complete(message, fence, reference=reference, balance=balance, version=version)
        case "duplicate":
            client.complete_duplicate(
                message, fence, reference=reference, balance=balance, version=version
            )
        case "conflict":
            client.conflict(message, fence)
        case "refused":
            client.fail(message, fence, absent=True)
        case "retry":
            client.retry(message, fence, reason="unavailable")
        case _:
            client.mark_unknown(message, fence, reason="response_invalid")
    return str(result)


def main() -> None:
    """Work until nothing can be claimed."""
    try:
        work()
    except KeyError as error:
        sys.exit(f"{error.args[0]} isn't set")
    except psycopg.Error:
        sys.exit("no connection to trex or to the ledger, or it was lost")
    except TrexError as error:
        sys.exit(str(error))


def work() -> None:
    """Claim and deliver. Raises what connecting raises, and what the functions of trex raise."""
    worker = f"python-{secrets.token_hex(8)}"
    with (
        psycopg.connect(os.environ["TREX_DSN"], autocommit=True) as conn,
        psycopg.connect(os.environ["LEDGER_DSN"], autocommit=True) as ledger,
    ):
        client = PostgresClient(conn, os.environ["TREX_INSTANCE"])
        while claims := client.claim(worker, limit=20):
            for claim in claims:
                try:
                    print(claim.message_id, deliver(client, ledger, claim))
                except ClaimLost:
                    # Somebody else has it now, and nothing of ours was recorded.
                    print(claim.message_id, "claim lost")


if __name__ == "__main__":
    main()
