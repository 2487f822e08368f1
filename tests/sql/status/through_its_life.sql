select e.message_id = 1 from trex.enqueue('shop', 't', 'k', '{}') e;
select s.state = 'ready', s.attempts = 0, s.fence = 0, s.reason is null, s.delivered_at is null, s.topic = 't'
from trex.status('shop', 1) s;

select test.claim() = 1;
select s.state = 'leased', s.worker = 'w', s.lease_until = trex._now() + interval '30 seconds', s.fence = test.fence(1)
from trex.status('shop', p_idempotency_key => 'k') s;

-- clock: 30 seconds
select s.state = 'lease_ended', s.due_at is null from trex.status('shop', 1) s;

select r.state = 'deferred' from trex.retry('shop', 1, test.fence(1), 'timeout') r;
select s.state = 'deferred', s.reason = 'timeout', s.due_at > trex._now(), s.worker is null from trex.status('shop', 1) s;

-- clock: 1 hours
select s.state = 'ready', s.due_at < trex._now(), s.tries = 1 from trex.status('shop', 1) s;

select test.claim() = 1;
select test.park(1, 'unknown') = 'unknown';
select s.state = 'unknown', s.reason = 'unspecified', s.uncertain, s.due_at is null from trex.status('shop', 1) s;
select r.status = 'recorded' from trex.resolve('shop', 1, 'delivered', 'seen', 'me', 'why', 'ref') r;
select
    s.state = 'delivered', s.reason is null, s.attempts = 2, s.tries = 0, s.fence = test.fence(1), not s.uncertain,
    s.delivered_at = trex._now(), not s.duplicate, s.confirmed_by = 'operator', s.reference = 'ref', s.due_at is null
from trex.status('shop', 1) s;
