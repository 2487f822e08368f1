-- criterion: ac-0035
select test.put(7);
select count(*) = 6 from test.claim(6);
select test.park(1, 'dead_letter'), test.park(2, 'permanent'), test.park(3, 'conflict'), test.park(4, 'unknown');
select r.state = 'delivered' from trex.complete('shop', 5, test.fence(5)) r;
select test.put(1, p_instance => 'other') = 8;

select
    array_agg(r.message_id) = array[8, 7, 6, 5, 4, 3, 2, 1, 99]::bigint [],
    array_agg(r.status) = array[
        'not_found', 'not_parked', 'not_parked', 'delivered', 'needs_resolve', 'needs_resolve', 'redriven', 'redriven',
        'not_found'
    ]
from trex.redrive('shop', array[8, 7, 6, 5, 4, 3, 2, 1, 99], 'me', 'why') r;

select count(*) = 2 from trex.audit a where a.action = 'redrive';

-- The lease of 6 wasn't touched.
select d.lease_until is not null from trex.delivery d where d.message_id = 6;

-- expect: no rows
select * from trex.redrive('shop', '{}', 'me', 'why');
