-- criterion: ac-0034
select test.put(1, p_policy => 'at_most_once');
select test.claim() = 1;

-- At its very end the lease is over: somebody else may call the sink from here on.
-- clock: 30 seconds
-- expect: TX409
select * from trex.mark_sent('shop', 1, test.fence(1));

select m.status = 'claim_lost', m.state is null from trex.mark_sent('shop', 1, test.fence(1), 'report') m;
select d.sent_fence is null from trex.delivery d;

-- It isn't an outcome, so there is nothing to keep as evidence.
select count(*) = 0 from trex.stale_report;

-- expect: TX404
select * from trex.mark_sent('shop', 2, 1);

select r.status = 'recorded' from trex.complete('shop', 1, test.fence(1)) r;

-- expect: TX410
select * from trex.mark_sent('shop', 1, test.fence(1));
