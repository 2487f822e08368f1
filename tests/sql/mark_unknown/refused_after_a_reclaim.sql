-- criterion: ac-0029
select test.put();
select test.claim() = 1;

-- clock: 30 seconds
select test.claim() = 1;
select test.save();

-- expect: TX409
select * from trex.mark_unknown('shop', 1, test.fence(1, 1));
select * from trex.mark_unknown('shop', 1, 1);

-- expect: TX404
select * from trex.mark_unknown('shop', 2, test.fence(1, 2));
select * from trex.mark_unknown('other', 1, test.fence(1, 2));

select test.unchanged();

-- As data, it is kept as evidence.
select r.status = 'claim_lost', r.state is null from trex.mark_unknown('shop', 1, test.fence(1, 1), p_on_lost => 'report') r;
select r.status = 'not_found' from trex.mark_unknown('shop', 2, 1, p_on_lost => 'report') r;
select count(*) = 1, bool_and(s.result = 'unknown'), bool_and(s.fence = test.fence(1, 1)) from trex.stale_report s;

-- The holder records.
select r.status = 'recorded' from trex.mark_unknown('shop', 1, test.fence(1, 2)) r;
