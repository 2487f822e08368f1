"""Senders of others: a stateful fake of Stripe that is driven by the official SDK, sends real
webhooks, and answers what the handler asks.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import httpx
import pytest
import stripe

from examples.inbox import handlers as example
from tests.py.webhooks.conftest import SECRETS, sender
from tests.py.webhooks.test_handlers import run

pytest.importorskip("localstripe")


@pytest.fixture
def provider(tmp_path):
    """Base URL of a localstripe of our own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = "from localstripe.server import start; start()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "--port", str(port), "--from-scratch"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 60
        while True:
            try:
                httpx.get(url, trust_env=False, timeout=5)
                break
            except httpx.TransportError:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
        yield url
        process.kill()


def pay_an_invoice(url):
    """A customer with a card subscribes and so pays an invoice, which is for order_1; through the
    official SDK.
    """
    client = stripe.StripeClient("sk_test_12345", base_addresses={"api": url})
    api = client.v1
    method = api.payment_methods.create(
        {
            "type": "card",
            "card": {
                "number": "4242424242424242",
                "exp_month": 12,
                "exp_year": 2040,
                "cvc": "123",
            },
        }
    )
    customer = api.customers.create({"email": "someone@example.com"})
    api.payment_methods.attach(method.id, {"customer": customer.id})
    api.customers.update(customer.id, {"invoice_settings": {"default_payment_method": method.id}})
    product = api.products.create({"name": "licence", "type": "service"})
    plan = api.plans.create(
        {"amount": 500, "currency": "eur", "interval": "month", "product": product.id}
    )
    subscription = api.subscriptions.create({"customer": customer.id, "items": [{"plan": plan.id}]})
    invoice = str(subscription.latest_invoice)
    api.invoices.update(invoice, {"metadata": {"order_id": "order_1"}})
    return invoice


@pytest.mark.criterion("ac-0055")
def test_paid_at_the_provider_granted_here(pg_db, shop, rows, provider, monkeypatch):
    with sender(pg_db) as hooks:
        where = {"url": hooks.url + "/stripe/main", "secret": SECRETS["NEW"]}
        kinds = ["invoice.created", "invoice.payment_succeeded"]
        httpx.post(
            f"{provider}/_config/webhooks/main",
            json={**where, "events": kinds},
            trust_env=False,
            timeout=30,
        ).raise_for_status()
        invoice = pay_an_invoice(provider)
        end = time.monotonic() + 60
        while len(rows()) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        assert {row[1] for row in rows()} == set(kinds)
        assert {(row[2], row[3], row[5]) for row in rows()} == {(invoice, "acct_a", "current")}
        assert hooks.result("unauthorized") == 0
    shop.register_currency("EUR", 2, actor="test", reason="test")
    shop.register_order(
        "acct_a", invoice, "order_1", seller="s", buyer="b", item="i", amount=5, currency="EUR"
    )
    monkeypatch.setenv("PROVIDER_URL", provider)
    monkeypatch.setenv("PROVIDER_KEY", "sk_test_12345")
    assert run(pg_db, example.HANDLERS).delivered == 2
    granted = pg_db.connect().execute("select account, invoice_id from trex.entitlement").fetchall()
    assert granted == [("acct_a", invoice)]
