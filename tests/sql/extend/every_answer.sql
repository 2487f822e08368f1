-- criterion: ac-0029
select test.put(3);
select count(*) = 3 from test.claim();
select r.status = 'recorded' from trex.complete('shop', 1, test.fence(1)) r;
select r.status = 'recorded' from trex.retry('shop', 2, test.fence(2)) r;

select
    array_agg(e.status) = array['not_found', 'extended', 'ended_otherwise', 'ended_otherwise'],
    count(e.lease_until) = 1
from trex.extend('shop', array[9, 3, 2, 1], array[1, test.fence(3), test.fence(2), test.fence(1)]) e;

-- A fence of another message, and one that was never given out.
select bool_and(e.status = 'claim_lost') from trex.extend('shop', array[3, 2], array[test.fence(2), 77]) e;

-- expect: no rows
select * from trex.extend('shop', '{}', '{}');
