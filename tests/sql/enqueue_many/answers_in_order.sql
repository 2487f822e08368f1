-- criterion: ac-0030
select trex.enqueue('shop', 't', 'b', '{}');

select array_agg(m.message_id) = array[2, 1, 4, 4]::bigint [], array_agg(m.status) = array['enqueued', 'duplicate', 'enqueued', 'duplicate']
from trex.enqueue_many(
    'shop', array['t', 't', 't', 't'], array['z', 'b', 'a', 'a'], array['{}', '{}', '{}', '{}']::jsonb []
) m;

select count(*) = 3 from trex.message;
select count(*) = 3 from trex.delivery;
