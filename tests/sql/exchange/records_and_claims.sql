-- criterion: ac-0029
select test.put(4);
select array_agg(m) = array[1, 2]::bigint [] from test.claim(2) m;

select
    array_agg(x.message_id) = array[2, 1, 3, 4]::bigint [],
    array_agg(x.status) = array['recorded', 'claim_lost', null, null],
    array_agg(x.state) = array['delivered', null, null, null],
    array_agg(x.attempt) = array[null, null, 1, 1]
from trex.exchange(
    'shop', 'w', 10, null, 'outbox', 0, null, array[2, 1], array[test.fence(2), 7], array['completed', 'completed']
) x;

select r.message_id = 2 from trex.receipt r;

-- A released message may come back at once.
select array_agg(x.status) = array['recorded', null], array_agg(x.message_id) = array[1, 1]::bigint [], max(x.attempt) = 2
from trex.exchange('shop', 'w', 1, p_message_ids => array[1], p_fences => array[test.fence(1)], p_results => array['released']) x;
