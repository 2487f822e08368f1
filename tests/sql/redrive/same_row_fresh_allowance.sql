-- criterion: ac-0035
select test.put(1, p_cash => 3);
select test.claim() = 1;
select r.state = 'deferred' from trex.mark_unknown('shop', 1, test.fence(1)) r;

-- clock: 1 hours
select test.claim() = 1;

select r.state = 'permanent' from trex.fail('shop', 1, test.fence(1)) r;
select r.message_id = 1, r.status = 'redriven' from trex.redrive('shop', array[1], 'me', 'fixed') r;

-- attempts, fence and uncertain stay.
select
    d.parked is null, d.deferred_until = trex._now(), d.tries = 0, d.attempts = 2, d.fence = test.fence(1), d.uncertain,
    d.lease_until is null
from trex.delivery d;
select a.message_id = 1, a.actor = 'me', a.reason = 'fixed', a.detail = '{"parked": "permanent"}', a.at = trex._now()
from trex.audit a
where a.action = 'redrive';

-- A late worker is still refused, the next claim gets a higher fence.
select r.status = 'already_recorded' from trex.fail('shop', 1, test.fence(1)) r;

-- expect: TX410
select * from trex.complete('shop', 1, test.fence(1));

select test.claim() = 1;
select test.fence(1, 3) > test.fence(1, 2);
