select test.put(5, p_cash => 3);
select count(*) = 4 from test.claim(4);
select test.park(1, 'conflict'), test.park(2, 'unknown'), test.park(3, 'dead_letter');

-- clock: 1 minutes
select test.park(4, 'permanent');

select
    array_agg(p.message_id) = array[1, 2, 3, 4]::bigint [],
    array_agg(p.parked) = array['conflict', 'unknown', 'dead_letter', 'permanent'],
    bool_and(p.reason = 'unspecified'), array_agg(p.uncertain) = array[false, true, false, false],
    array_agg(trex._now() - p.parked_at) = array['1 min', '1 min', '1 min', '0']::interval [], bool_and(p.cash_delta = 3)
from trex.list_parked('shop') p;

select array_agg(p.message_id) = array[3]::bigint [] from trex.list_parked('shop', 1, 2) p;
