"""As `test_plans.py`, for inbox, operations, rights and reconciliation: what a call reads doesn't
grow with the instance, whatever the planner knew when it made its plans."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.counts import emit

MANY = 10_000
STATES = ("never", "empty", "fresh")
VIEW = "'admin', 'acct', null, 'acct'"
SELLER = "'seller', 'acct', 'few', 'acct'"
RARE = "'admin', 'rare', null, 'rare'"
LISTS = (
    "list_entitlements", "list_usage", "list_counters", "list_devices", "list_security_events",
)  # fmt: skip
CHECKS = (
    "messages", "deliveries", "receipts", "skips", "snapshots", "entities", "payments",
    "entitlements", "subscriptions", "licences",
)  # fmt: skip
MACHINE = """{
    "states": {"open": {"longest_stay": 999999999}, "held": {}},
    "transitions": [
        {"event": "open", "to": "open"},
        {"from": "open", "event": "hold", "to": "held"},
        {"from": "held", "event": "go_on", "to": "open", "topic": "told"}
    ]
}"""

# Ten rows of a rare account, ten of a seller who has few, many of others.
SPREAD = "case when g <= 10 then 'rare' else 'acct' end"
SOLD = "case when g between 11 and 20 then 'few' else 's' || g % 2 end"
FILL = f"""
insert into trex.message (instance_key, message_id, box, topic, idempotency_key, payload, digest,
    effect_policy, enqueued_at)
select 'shop', g + 1000000, case when g % 2 = 0 then 'inbox' else 'outbox' end, 'psp',
    trex._event_key('psp', 'acct', 'E' || g), '{{}}', sha256('{{}}'), 'idempotent', trex._now()
from generate_series(1, {MANY}) g;
insert into trex.receipt (instance_key, message_id, fence, attempt, duplicate, late, confirmed_by,
    delivered_at)
select 'shop', g + 1000000, g, 1, false, false, 'answer', trex._now()
from generate_series(1, {MANY}) g where g > 40;
insert into trex.delivery (instance_key, message_id, box)
select 'shop', g + 1000000, case when g % 2 = 0 then 'inbox' else 'outbox' end
from generate_series(1, 40) g;
insert into trex.inbox_event (instance_key, message_id, provider, account, event_id, event_type,
    raw, body_hash, received_at)
select 'shop', g + 1000000, 'psp', 'acct', 'E' || g, 'paid', '', sha256(''), trex._now()
from generate_series(2, {MANY}, 2) g;
insert into trex.entity (instance_key, machine, entity, state, version, operation_id, since)
select 'shop', 'm', 'e' || g, 'open', 1, 'op' || g, trex._now()
from generate_series(1, {MANY}) g;
insert into trex.operation (instance_key, operation_id, kind, machine, entity, event, from_state,
    to_state, version, actor, role, amount, arguments, digest, reason, done_at)
select 'shop', 'op' || g, 'transition', 'm', 'e' || g, 'open', '', 'open', 1, 'a', 'r', 5, '{{}}',
    sha256(''), 'r', trex._now()
from generate_series(1, {MANY}) g;
insert into trex.operation (instance_key, operation_id, kind, actor, role, amount, arguments,
    digest, reason, done_at)
select 'shop', trex._grant_id({SPREAD}, 'in' || g), 'grant_entitlement', 'a', 'r', 5,
    '{{"currency": "USD"}}', sha256(''), 'r', trex._now()
from generate_series(1, {MANY}) g;
insert into trex.adjustment (instance_key, adjustment_id, operation_id, version, kind, amount,
    balance, actor, role, reason, evidence, digest, adjusted_at)
select 'shop', 'adj' || g, 'op' || g, 1, 'fee', 0, 5, 'a', 'r', 'r', 'e', sha256(''), trex._now()
from generate_series(1, {MANY}) g;
insert into trex.order_invoice (instance_key, account, invoice_id, order_id, seller, buyer, item,
    amount, currency, registered_at)
select 'shop', {SPREAD}, 'in' || g, 'ord' || g, {SOLD}, 'b', 'plan', 5, 'USD', trex._now()
from generate_series(1, {MANY}) g;
insert into trex.entitlement (instance_key, entitlement_id, account, invoice_id, order_id, seller,
    buyer, item, state, version, granted_at, valid_until, changed_at)
select 'shop', trex._grant_id({SPREAD}, 'in' || g), {SPREAD}, 'in' || g, 'ord' || g, {SOLD}, 'b',
    'plan', 'active', 1, trex._now(),
    trex._now() + case when g <= 10 then interval '0' else interval '30 days' end, trex._now()
from generate_series(1, {MANY}) g;
insert into trex.licence (instance_key, licence_id, entitlement_id, account, seller, issued_at)
select 'shop', e.entitlement_id, e.entitlement_id, e.account, e.seller, e.granted_at
from trex.entitlement e where e.instance_key = 'shop' and e.order_id like 'ord%';
insert into trex.capability (instance_key, capability_id, licence_id, subject, issued_at,
    expires_at)
select 'shop', 'c' || g, trex._grant_id({SPREAD}, 'in' || g), 'b', trex._now(),
    trex._now() + interval '1 day'
from generate_series(1, {MANY}) g;
insert into trex.license_usage (instance_key, usage_id, capability_id, licence_id, account, seller,
    subject, used_at)
select 'shop', 'old' || g, 'old' || g, trex._grant_id({SPREAD}, 'in' || g), {SPREAD}, {SOLD}, 'b',
    trex._now()
from generate_series(1, {MANY}) g;
insert into trex.usage_counter (instance_key, licence_id, period, account, seller, uses, counted_at)
select 'shop', trex._grant_id({SPREAD}, 'in' || g), p.period, {SPREAD}, {SOLD}, 1, trex._now()
from generate_series(1, {MANY}) g
cross join (values ('all'), (to_char(trex._now() at time zone 'UTC', 'YYYY-MM'))) p (period);
insert into trex.device_binding (instance_key, licence_id, thumbprint, account, seller, bound_at)
select 'shop', trex._grant_id({SPREAD}, 'in' || g), 't', {SPREAD}, {SOLD}, trex._now()
from generate_series(1, {MANY}) g;
insert into trex.security_event (instance_key, capability_id, kind, usage_id, licence_id, account,
    seller, subject, seen_at)
select 'shop', 'c' || g, 'expired', 'u' || g, 'l', {SPREAD}, {SOLD}, 'b', trex._now()
from generate_series(1, {MANY}) g;
insert into trex.payment (instance_key, account, invoice_id, asked, status, asked_at)
select 'shop', {SPREAD}, 'in' || g, n, case n when 1 then 'unpaid' else 'paid' end, trex._now()
from generate_series(1, {MANY}) g cross join generate_series(1, 2) n;
insert into trex.refund (instance_key, account, refund_id, invoice_id, amount, currency, message_id,
    refunded_at)
select 'shop', {SPREAD}, 'r' || g, 'in' || g, 1, 'USD', g, trex._now()
from generate_series(1, {MANY}) g;
insert into trex.subscription (instance_key, account, subscription_id, invoice_id, status,
    period_end, version, asked_at)
select 'shop', {SPREAD}, 'sub' || g, 'in' || g, 'active', trex._now(), 1,
    trex._now() - interval '1 minute'
from generate_series(1, {MANY}) g;
insert into trex.reconcile_finding (instance_key, finding_id, type, ref_ids, expected, actual,
    causal_events, recoverable, recommended_action, state, first_run, last_run, found_at, seen_at)
select 'shop', encode(sha256(g::text::bytea), 'hex'), 'orphan_row', '{{}}', 'e', 'a', '[]', false,
    'r', 'needs_review', 1, 1, trex._now(), trex._now()
from generate_series(1, {MANY}) g;
"""


class Measured:
    """One database in one state of its statistics, and what calls cost in it."""

    def __init__(self, database, state: str) -> None:
        self.conn = database.connect()
        run = self.conn.execute
        database.clock.freeze()
        run("select trex.register_instance('shop', 'me', 'why')")
        run("select trex.bind('shop', session_user::text, 'me', 'why')")
        run("select trex.machine_load('shop', 'm', %s, 'me', 'why')", (MACHINE,))
        tables = [
            name
            for (name,) in run(
                "select relname from pg_class"
                " where relnamespace = 'trex'::regnamespace and relkind = 'r'"
            ).fetchall()
        ]
        for table in tables:
            run(f"alter table trex.{table} set (autovacuum_enabled = off)")
            if state == "empty":
                run(f"analyze trex.{table}")
        if state != "fresh":
            # A plan that isn't pinned is made for each call, five times; then it may be kept.
            for number in range(6):
                self.everything(f"early{number}")
        run(FILL)
        if state == "fresh":
            for table in tables:
                run(f"vacuum analyze trex.{table}")

    def everything(self, name: str) -> None:
        """Call what shall be measured, so that this session keeps plans made on small tables."""
        for call in self.calls(name):
            self.conn.execute(f"select * from trex.{call}")

    def calls(self, name: str) -> list[str]:
        run = self.conn.execute
        order = (
            f"register_order('shop', 'acct', '{name}', 'o', 's0', 'b', 'plan', 5, 'USD',"
            " p_valid_for => '1 hour')"
        )
        run(f"select trex.{order}")
        # One call ends one event.
        claims = []
        for event in (name, f"{name}-refunded", f"{name}-cancelled"):
            received = f"receive('shop', 'psp', 'acct', '{event}', 'x', '{event}', 'raw', '{{}}')"
            run(f"select trex.{received}")
            ((number, fence),) = run(
                "select message_id, fence from trex.claim('shop', 'w', 10, null, 'inbox', %s)",
                (event,),
            ).fetchall()
            claims.append(f"{number}, {fence}, 'acct', '{name}'")
        paid, refunded, cancelled = claims
        message = int(paid.split(",")[0])
        act = "'me', 'clerk', 'why'"
        licence = f"(select trex._grant_id('acct', '{name}'))"
        again = f"receive('shop', 'psp', 'acct', '{name}', 'x', '{name}', 'raw2', '{{}}')"
        return [
            again,
            f"inbox_status('shop', {message})",
            ("inbox_status('shop', p_provider => 'psp', p_account => 'acct',"
            f" p_event_id => '{name}')"),
            f"inbox_event('shop', {message})",
            order,
            f"record_payment('shop', 'acct', '{name}', 'paid')",
            f"finalize_paid('shop', {paid}, 'o', 'paid')",
            f"issue_capability('shop', 'cap-{name}', {licence}, 'b')",
            f"execute_licence('shop', 'cap-{name}', 'b', 'use-{name}')",
            f"execute_licence('shop', 'cap-{name}', 'b', 'use-{name}')",
            f"bind_device('shop', {licence}, 't')",
            (f"update_subscription('shop', 'acct', 'sub-{name}', '{name}', 'active', now(),"
            " trex._now())"),
            f"transition('shop', 'm', '{name}', 'open', 0, '1-{name}', {act}, 5)",
            f"transition('shop', 'm', '{name}', 'hold', 1, '2-{name}', {act})",
            f"transition('shop', 'm', '{name}', 'go_on', 2, '3-{name}', {act})",
            f"correct('shop', '1-{name}', 'adj-{name}', 'fee', -1, 0, {act}, 'seen')",
            f"entity_status('shop', 'm', '{name}')",
            f"entity_history('shop', 'm', '{name}')",
            f"operation_history('shop', '1-{name}')",
            "machine_show('shop', 'm')",
            f"effect_states('shop', null, 20, {message - 1}, 'inbox')",
            "expire_entitlements('shop', 'me', 'why', 10)",
            *(f"{read}('shop', {view}, null, 20)" for read in LISTS
              for view in (VIEW, SELLER, RARE)),
            "reconcile_findings('shop', null, null, 20)",
            "reconcile_reports('shop', 20)",
            f"apply_refund('shop', {refunded}, 'r-{name}', 1, 'USD', 'seen')",
            f"apply_provider_cancel('shop', {cancelled}, 'cancelled', 'seen')",
            *(f"_reconcile_page('shop', '{check}', '{self.place(check)}', 20, '1 hour', now())"
              for check in CHECKS),
            "overdue('shop', 20)",
            "effect_states('shop', 'unknown', 20)",
            "effect_states('shop', 'in_progress', 20)",
        ]  # fmt: skip

    @staticmethod
    def place(check: str) -> str:
        return "0" if check in CHECKS[:4] else "[]"

    def cost(self, call: str) -> int:
        """Run a call; return how many buffers it touched."""
        answer = self.conn.execute(
            f"explain (analyze, buffers, timing off, format json) select * from trex.{call}"
        ).fetchone()
        plan = (answer[0] if not isinstance(answer[0], str) else json.loads(answer[0]))[0]["Plan"]
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@pytest.mark.criterion("ac-0031")
@pytest.mark.parametrize("state", STATES)
def test_buffers(pg_db, state):
    started = time.monotonic()
    measured = Measured(pg_db, state)
    costs = {call: measured.cost(call) for call in measured.calls("late")}
    print("\n".join(f"{cost:8} {call[:90]}" for call, cost in costs.items()))
    # A page of twenty, or one row with all that belongs to it.
    most = {call: 150 if call.startswith("list_") else 1_500 for call in costs}
    assert {call: cost for call, cost in costs.items() if cost > most[call]} == {}
    emit("planner", {"plans": len(costs)}, seconds=time.monotonic() - started, state=state)
