-- criterion: ac-0031
select trex.register_instance('shop', 'me', 'why', p_on_parked => 'continue');
select test.put(2, 'lane');
select test.claim() = 1;
select test.park(1, 'permanent') = 'permanent';
select test.claim() = 2;
select r.status = 'redriven' from trex.redrive('shop', array[1], 'me', 'why') r;

-- 2 is in flight.
-- expect: no rows
select * from trex.claim('shop', 'w');

select r.status = 'recorded' from trex.complete('shop', 2, test.fence(2)) r;
select test.claim() = 1;
