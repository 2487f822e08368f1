-- criterion: ac-0034
select test.put(1, p_policy => 'at_most_once');
select test.claim() = 1;
select m.status = 'recorded' from trex.mark_sent('shop', 1, test.fence(1)) m;
select r.state = 'unknown' from trex.retry('shop', 1, test.fence(1)) r;

select r.status = 'recorded', r.state = 'ready', r.due_at = trex._now()
from trex.resolve('shop', 1, 'resend', 'not there', 'me', 'why') r;
select d.parked is null, not d.uncertain, d.tries = 0, d.attempts = 1 from trex.delivery d;

select c.attempt = 2, not c.uncertain from trex.claim('shop', 'w') c;

-- It is in flight now.
-- expect: TX423
select * from trex.resolve('shop', 1, 'resend', 'not there', 'me', 'why');
