-- criterion: ac-0034
select trex.register_instance('shop', 'me', 'why', p_max_attempts => 3, p_backoff_base => '2 s', p_backoff_cap => '3 s');
select test.put();
select test.claim() = 1;

-- base * 2^(tries - 1), up to half of it taken off.
select r.state = 'deferred', r.due_at - trex._now() between interval '1 second' and interval '2 seconds'
from trex.retry('shop', 1, test.fence(1), 'timeout') r;
select o.kind = 'retry', o.reason = 'timeout', o.attempt = 1 from trex.outcome o;

-- expect: no rows
select * from trex.claim('shop', 'w');

-- clock: 2 seconds
select test.claim() = 1;

-- Capped, but what the sink asks for is waited.
select r.due_at - trex._now() = interval '24 hours' from trex.retry('shop', 1, test.fence(1), p_delay => '1 day') r;

-- clock: 24 hours
select test.claim() = 1;

select r.state = 'dead_letter', r.due_at is null from trex.retry('shop', 1, test.fence(1), 'server_error') r;
select s.parked = 'dead_letter', s.reason = 'attempts_exhausted', s.resolved_at is null from trex.ledger_skip s;
select d.attempts = 3, d.tries = 3, d.deferred_until = 'infinity', d.lease_until is null from trex.delivery d;
