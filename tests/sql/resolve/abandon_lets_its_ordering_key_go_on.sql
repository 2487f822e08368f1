-- criterion: ac-0031
-- A message given up holds up nobody; one that may be redriven still does.
select test.put(4, 'lane');
select test.claim() = 1;
select test.park(1, 'permanent') = 'permanent';

-- expect: no rows
select * from trex.claim('shop', 'w');

select r.status = 'recorded', r.state = 'permanent'
from trex.resolve('shop', 1, 'abandon', 'the account is closed', 'me', 'why') r;
select s.blocked_keys = 0, s.permanent = 0, s.abandoned = 1, s.oldest_parked_at is null from trex.stats('shop') s;
select test.claim() = 2;
select test.park(2, 'dead_letter') = 'dead_letter';

-- expect: no rows
select * from trex.claim('shop', 'w');

select s.blocked_keys = 1 from trex.stats('shop') s;

-- What is live again stands before what hasn't gone on.
select r.status = 'redriven' from trex.redrive('shop', array[1], 'me', 'why') r;
select not d.abandoned from trex.delivery d where d.message_id = 1;
select test.claim() = 1;
