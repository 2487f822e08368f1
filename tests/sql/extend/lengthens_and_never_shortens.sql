-- criterion: ac-0029
select test.put(2);
select count(*) = 2 from test.claim(p_lease => '30 seconds');

-- clock: 10 seconds
select
    array_agg(e.message_id) = array[2, 1]::bigint [], bool_and(e.status = 'extended'),
    bool_and(e.lease_until = trex._now() + interval '1 minute'), array_agg(e.fence) = array[test.fence(2), test.fence(1)]
from trex.extend('shop', array[2, 1], array[test.fence(2), test.fence(1)], '1 minute') e;

select e.status = 'extended', e.lease_until = trex._now() + interval '1 minute'
from trex.extend('shop', array[1], array[test.fence(1)], '1 second') e;

-- Null is the default of the instance.
-- clock: 50 seconds
select e.lease_until = trex._now() + interval '30 seconds' from trex.extend('shop', array[1], array[test.fence(1)]) e;

-- The claim itself is as it was.
select d.attempts = 1, d.tries = 1, d.fence = test.fence(1), d.worker = 'w' from trex.delivery d where d.message_id = 1;
