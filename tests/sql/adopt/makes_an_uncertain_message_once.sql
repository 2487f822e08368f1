-- criterion: ac-0036
insert into trex.quarantine (source, source_key, topic, idempotency_key, correlation_id, account, currency, cash_delta, payload, source_attempts)
values ('old', '1', 'payout', 'k', 'c', 'acct', 'USD', 3.5, '{"n": 1}', 7);

select a.message_id = 1, a.status = 'enqueued' from trex.adopt('shop', 1, 'the old table''s owner column', 'dba', 'moved') a;
select
    m.topic = 'payout', m.idempotency_key = 'k', m.correlation_id = 'c', m.account = 'acct', m.cash_delta::text = '3.50',
    m.effect_policy = 'lookup', m.box = 'outbox', m.payload = '{"n": 1}'
from trex.message m;
select d.uncertain, d.attempts = 0, d.parked is null, d.deferred_until is null from trex.delivery d;
select q.instance_key is null, q.adopted_message_id = 1, q.adopted_at = trex._now() from trex.quarantine q;
select a.message_id = 1, a.detail = '{"quarantine_id": 1, "evidence": "the old table''s owner column"}'
from trex.audit a
where a.action = 'adopt';
select c.uncertain = 3.5, c.pending = 0 from trex.pending_cash_delta('shop') c;

-- Once per source row; somebody else's looks like none.
select a.message_id = 1, a.status = 'duplicate' from trex.adopt('shop', 1, 'seen', 'dba', 'why') a;

-- expect: TX404
select trex.adopt('other', 1, 'seen', 'dba', 'why');
select trex.adopt('shop', 2, 'seen', 'dba', 'why');

select count(*) = 1 from trex.message;

-- The worker is told.
select c.uncertain from trex.claim('shop', 'w') c;
