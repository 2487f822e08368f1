-- criterion: ac-0029
select test.put();
select test.claim() = 1;

select r.message_id = 1, r.fence = test.fence(1), r.status = 'recorded', r.state = 'delivered', not r.late
from trex.complete_duplicate('shop', 1, test.fence(1)) r;

-- The answer was lost: the same call again.
select r.status = 'already_recorded', r.state = 'delivered' from trex.complete_duplicate('shop', 1, test.fence(1)) r;

-- Another end for the same claim.
-- expect: TX410
select * from trex.retry('shop', 1, test.fence(1));

select r.status = 'ended_otherwise', r.state = 'delivered' from trex.retry('shop', 1, test.fence(1), p_on_lost => 'report') r;
select (select count(*) from trex.receipt) + (select count(*) from trex.outcome) = 1;
select count(*) = 0 from trex.stale_report;
