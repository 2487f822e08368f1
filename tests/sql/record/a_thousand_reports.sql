select test.put(1000);
select count(*) = 1000 from test.claim(1000);

select count(*) = 1000, bool_and(r.status = 'recorded'), array_agg(r.message_id) = array(select generate_series(1, 1000)::bigint)
from trex.record(
    'shop', array(select generate_series(1, 1000)::bigint), array(select test.fence(n) from generate_series(1, 1000) n),
    array(select case n % 3 when 0 then 'completed' when 1 then 'retry' else 'dead_letter' end from generate_series(1, 1000) n)
) r;

select count(*) = 333 from trex.receipt;
select count(*) = 333 from trex.ledger_skip;
select count(*) = 667 from trex.outcome;
