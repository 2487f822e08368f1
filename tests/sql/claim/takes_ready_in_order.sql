-- criterion: ac-0031
select test.put(5);

select
    array_agg(c.message_id) = array[1, 2, 3]::bigint [], bool_and(c.fence > 0), count(distinct c.fence) = 3, bool_and(c.attempt = 1),
    bool_and(c.tries = 1), bool_and(c.lease_until = trex._now() + interval '10 seconds'), bool_and(not c.uncertain),
    bool_and(c.box = 'outbox'), bool_and(c.topic = 'topic'), bool_and(c.payload = '{"n": 1}'),
    bool_and(c.effect_policy = 'idempotent'), bool_and(c.enqueued_at = trex._now())
from trex.claim('shop', 'w', 3, '10 seconds') c;

select array_agg(c.message_id) = array[4, 5]::bigint [] from trex.claim('shop', 'w', 3) c;

-- expect: no rows
select * from trex.claim('shop', 'w', 3);

select bool_and(d.worker = 'w'), bool_and(d.attempts = 1), bool_and(d.lease_until > trex._now()) from trex.delivery d;
