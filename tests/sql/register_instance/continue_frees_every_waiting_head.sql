-- criterion: ac-0031
-- More keys than one sweep of claim looks at.
select count(*) = 2400
from trex.enqueue_many(
    'shop', array_fill('t'::text, array[2400]), array(select 'k' || n from generate_series(1, 2400) n),
    array_fill('{}'::jsonb, array[2400]), p_ordering_keys => array(select 'lane-' || n % 1200 from generate_series(1, 2400) n)
);
select count(*) = 1000 from test.claim(1000);
select count(*) = 200 from test.claim(1000);
select count(*) = 1200 from trex.delivery d, trex.fail('shop', d.message_id, d.fence) where d.fence > 0;

-- expect: no rows
select * from trex.claim('shop', 'w', 1000);

select s.waiting = 1200, s.permanent = 1200, s.blocked_keys = 1200 from trex.stats('shop') s;
select trex.register_instance('shop', 'me', 'why', p_on_parked => 'continue') = 'changed';
select s.waiting = 0, s.due = 1200, s.blocked_keys = 0 from trex.stats('shop') s;
