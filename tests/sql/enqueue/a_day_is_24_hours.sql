-- A session in a zone that changes its clocks defers by the same time as any other.
set timezone = 'America/New_York';

select trex.enqueue('shop', 't', 'key-' || n, '{}', p_delay => n * interval '1 day') from generate_series(1, 30) n;

select d.deferred_until - trex._now() = d.message_id * interval '24 hours' from trex.delivery d;

select m.status = 'enqueued'
from trex.enqueue_many('shop', array['t'], array['many'], array['{}'::jsonb], p_delays => array[interval '30 days']) m;

select extract(epoch from d.deferred_until) - extract(epoch from trex._now()) = 30 * 86400
from trex.delivery d
where d.message_id = 31;
