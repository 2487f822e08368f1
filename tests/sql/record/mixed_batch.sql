-- criterion: ac-0029
select test.put(9);
select count(*) = 9 from test.claim();

select
    array_agg(r.message_id) = array[9, 1, 2, 3, 4, 5, 6, 7, 8, 99]::bigint [],
    array_agg(r.status) = array_fill('recorded'::text, array[9]) || array['not_found'],
    array_agg(r.state) = array[
        'deferred', 'delivered', 'delivered', 'deferred', 'deferred', 'conflict', 'permanent', 'dead_letter', 'ready', null
    ],
    bool_and(not r.late)
from trex.record(
    'shop', array[9, 1, 2, 3, 4, 5, 6, 7, 8, 99],
    array(select test.fence(n) from unnest(array[9, 1, 2, 3, 4, 5, 6, 7, 8]) n) || 1::bigint,
    array[
        'postponed', 'completed', 'duplicate', 'retry', 'unknown', 'conflict', 'permanent', 'dead_letter', 'released',
        'completed'
    ],
    p_delays => array_fill(interval '1 hour', array[1]) || array_fill(null::interval, array[9])
) r;

select
    array_agg(o.kind order by o.message_id)
    = array['retry', 'unknown', 'conflict', 'permanent', 'dead_letter', 'released', 'postponed'],
    array_agg(o.state order by o.message_id)
    = array['deferred', 'deferred', 'conflict', 'permanent', 'dead_letter', 'ready', 'deferred']
from trex.outcome o;
select array_agg(r.duplicate order by r.message_id) = array[false, true] from trex.receipt r;
select array_agg(s.message_id order by s.message_id) = array[5, 6, 7]::bigint [] from trex.ledger_skip s;
select
    array_agg(d.tries order by d.message_id) = array[1, 1, 1, 1, 1, 0, 0], bool_and(d.attempts = 1),
    bool_and(d.lease_until is null), bool_and(d.worker is null)
from trex.delivery d;

-- Again: already recorded, each as it is now.
select bool_and(r.status = 'already_recorded'), array_agg(r.state) = array['delivered', 'deferred', 'conflict']
from trex.record(
    'shop', array[1, 3, 5], array(select test.fence(n) from unnest(array[1, 3, 5]) n), array['completed', 'retry', 'conflict']
) r;

-- Otherwise: the first end stays.
select bool_and(r.status = 'ended_otherwise'), array_agg(r.state) = array['delivered', 'deferred', 'conflict']
from trex.record(
    'shop', array[1, 3, 5], array(select test.fence(n) from unnest(array[1, 3, 5]) n), array['duplicate', 'completed', 'retry']
) r;

select count(*) = 0 from trex.stale_report;
