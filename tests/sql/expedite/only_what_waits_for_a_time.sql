-- criterion: ac-0035
select test.put(2, 'lane');
select test.put(5);
select count(*) = 6 from test.claim(6);
select r.state = 'deferred' from trex.retry('shop', 3, test.fence(3)) r;
select test.park(4, 'dead_letter') = 'dead_letter';
select r.state = 'delivered' from trex.complete('shop', 5, test.fence(5)) r;
select e.status = 'enqueued' from trex.enqueue('shop', 't', 'later', '{}', p_delay => '30 days') e;

select
    array_agg(e.status) = array[
        'not_deferred', 'not_deferred', 'expedited', 'not_deferred', 'delivered', 'not_deferred', 'expedited', 'not_found'
    ]
from trex.expedite('shop', array[1, 2, 3, 4, 5, 6, 8, 99], 'me', 'why') e;

select bool_and(d.deferred_until = trex._now()), max(d.tries) = 1 from trex.delivery d where d.message_id in (3, 8);
select count(*) = 2, bool_and(a.detail = '{}') from trex.audit a where a.action = 'expedite';
select bool_and(e.status = 'not_deferred') from trex.expedite('shop', array[3, 8], 'me', 'why') e;
