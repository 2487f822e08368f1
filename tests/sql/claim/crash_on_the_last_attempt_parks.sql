-- criterion: ac-0034
select trex.register_instance('shop', 'me', 'why', p_max_attempts => 1);
select test.put(3);
select test.put(1, p_policy => 'at_most_once');
select count(*) = 3 from test.claim(3, '10 seconds');

-- Parked rows don't use up the limit. What may have been sent is unknown, never a dead letter.
-- clock: 10 seconds
select array_agg(c.message_id) = array[4]::bigint [] from trex.claim('shop', 'w2', 1) c;

select bool_and(d.parked = 'unknown'), bool_and(d.uncertain), bool_and(d.deferred_until = 'infinity'), count(*) = 3
from trex.delivery d
where d.message_id < 4;

select count(*) = 3, bool_and(o.kind = 'lease_expired'), bool_and(o.state = 'unknown') from trex.outcome o;
select count(*) = 3, bool_and(s.parked = 'unknown'), bool_and(s.reason = 'lease_expired') from trex.ledger_skip s;

-- Not marked as sent: an at_most_once message was certainly not called, so its crash ends as a dead letter.
-- clock: 15 minutes
-- expect: no rows
select * from trex.claim('shop', 'w2', 1);

select d.parked = 'dead_letter', not d.uncertain from trex.delivery d where d.message_id = 4;
