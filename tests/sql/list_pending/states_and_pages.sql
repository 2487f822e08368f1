-- criterion: ac-0031
select test.put(2, 'lane');
select test.put(5);
select count(*) = 6 from test.claim(6, '10 seconds');
select r.state = 'deferred' from trex.postpone('shop', 3, test.fence(3), '1 hour') r;
select test.park(4, 'permanent') = 'permanent';
select r.state = 'ready' from trex.release('shop', 5, test.fence(5)) r;
select e.status = 'extended' from trex.extend('shop', array[6], array[test.fence(6)], '1 minute') e;
select test.put(1, p_instance => 'other');
select test.put_inbox() = 9;

-- 1 and 7 lapsed, 2 waits behind 1, 4 is parked, 6 is leased.
-- clock: 10 seconds
select
    array_agg(p.message_id) = array[1, 2, 3, 5, 7]::bigint [],
    array_agg(p.state) = array['lease_ended', 'waiting', 'deferred', 'ready', 'lease_ended'],
    array_agg(p.due_at is not null) = array[false, false, true, true, false]
from trex.list_pending('shop') p;

select array_agg(p.message_id) = array[4, 5, 7]::bigint [], bool_or(p.state = 'permanent')
from trex.list_pending('shop', 3, 3, 'outbox', true) p;

select array_agg(p.message_id) = array[1, 2]::bigint [] from trex.list_pending('shop', 2) p;
select array_agg(p.message_id) = array[3, 5]::bigint [] from trex.list_pending('shop', 2, 2) p;
select p.message_id = 9, p.box = 'inbox' from trex.list_pending('shop', p_box => 'inbox') p;
