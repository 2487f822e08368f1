-- criterion: ac-0031
select trex.register_instance('shop', 'me', 'why', p_on_parked => 'continue');
select test.put(3, 'lane');
select test.claim() = 1;
select test.park(1, 'permanent') = 'permanent';
select test.claim(p_lease => '10 seconds') = 2;
select r.status = 'redriven' from trex.redrive('shop', array[1], 'me', 'why') r;

-- 2 lapsed, and 1 of the same key is in flight since.
-- clock: 10 seconds
select test.claim(1) = 1;

select e.status = 'claim_lost' from trex.extend('shop', array[2], array[test.fence(2)]) e;

-- Once 1 is done, 2 may go on.
select r.status = 'recorded' from trex.complete('shop', 1, test.fence(1)) r;
select e.status = 'extended' from trex.extend('shop', array[2], array[test.fence(2)]) e;
