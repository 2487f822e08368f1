-- criterion: ac-0034
select trex.register_instance('shop', 'me', 'why', p_max_attempts => 3);
select test.put(2);
select count(*) = 2 from test.claim();
select r.state = 'deferred' from trex.mark_unknown('shop', 1, test.fence(1), 'timeout') r;
select r.state = 'deferred' from trex.mark_unknown('shop', 2, test.fence(2), 'timeout') r;

-- A retry doesn't clear it, certain absence does.
-- clock: 1 hours
select bool_and(c.uncertain), count(*) = 2 from trex.claim('shop', 'w', 2) c;
select r.state = 'deferred' from trex.delivery d, trex.retry('shop', 1, d.fence) r where d.message_id = 1;
select r.state = 'deferred' from trex.delivery d, trex.retry('shop', 2, d.fence, p_absent => true) r where d.message_id = 2;
select array_agg(d.uncertain order by d.message_id) = array[true, false] from trex.delivery d;

-- An uncertain one whose allowance is used up is unknown, not dead.
-- clock: 1 hours
select count(*) = 2 from trex.claim('shop', 'w', 2);

select array_agg(r.state order by r.message_id) = array['unknown', 'dead_letter']
from trex.delivery d, trex.retry('shop', d.message_id, d.fence) r;
