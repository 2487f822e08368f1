-- criterion: ac-0029
select test.put();
select test.claim(p_lease => '30 seconds') = 1;

-- expect: no rows
select * from trex.claim('shop', 'w2');

-- At its very end a lease is over.
-- clock: 30 seconds
select c.message_id = 1, c.attempt = 2, c.tries = 2, c.uncertain, c.fence > test.fence(1) from trex.claim('shop', 'w2') c;

-- The ended claim has its end.
select o.fence = test.fence(1), o.kind = 'lease_expired', o.state = 'ready', o.reason = 'lease_expired', o.attempt = 1
from trex.outcome o;
