-- criterion: ac-0030
select e.message_id = 1, e.status = 'enqueued'
from trex.enqueue('shop', 'payout', 'k', '{"b": 1, "a": [1.50]}', 'acct', 'USD', 1, 'corr', 'lane', 'lookup') e;

select
    m.payload::text = '{"a": [1.50], "b": 1}', m.cash_delta::text = '1.00', m.box = 'outbox', m.topic = 'payout',
    m.digest = sha256(convert_to(m.payload::text, 'UTF8')), m.effect_policy = 'lookup', m.enqueued_at = trex._now(),
    m.correlation_id = 'corr', m.ordering_key = 'lane', m.account = 'acct', m.currency = 'USD'
from trex.message m
where m.instance_key = 'shop' and m.message_id = 1;

select
    d.fence = 0, d.attempts = 0, d.tries = 0, d.deferred_until is null, d.lease_until is null, d.parked is null,
    not d.uncertain, d.ordering_key = 'lane', d.box = 'outbox'
from trex.delivery d
where d.instance_key = 'shop' and d.message_id = 1;
