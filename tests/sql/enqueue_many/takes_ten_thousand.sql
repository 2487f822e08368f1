select count(*) = 10000, bool_and(m.status = 'enqueued'), min(m.message_id) = 1, max(m.message_id) = 10000
from trex.enqueue_many(
    'shop', array_fill('t'::text, array[10000]),
    array(select 'k' || n from generate_series(1, 10000) n), array_fill('{}'::jsonb, array[10000])
) m;

select count(*) = 10000, bool_and(m.status = 'duplicate')
from trex.enqueue_many(
    'shop', array_fill('t'::text, array[10000]),
    array(select 'k' || n from generate_series(1, 10000) n), array_fill('{}'::jsonb, array[10000])
) m;

-- expect: TX400
select * from trex.enqueue_many(
    'shop', array_fill('t'::text, array[10001]),
    array(select 'k' || n from generate_series(1, 10001) n), array_fill('{}'::jsonb, array[10001])
);

-- expect: no rows
select * from trex.enqueue_many('shop', '{}', '{}', '{}');
