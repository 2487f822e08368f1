-- criterion: ac-0034
select test.put(1, p_policy => 'at_most_once');
select test.claim();
select m.status = 'recorded' from trex.mark_sent('shop', 1, test.fence(1)) m;

-- clock: 30 seconds
-- expect: no rows
select * from trex.claim('shop', 'w2');

select d.parked = 'unknown', d.uncertain, d.lease_until is null from trex.delivery d;
