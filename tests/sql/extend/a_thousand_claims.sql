select test.put(1000);
select count(*) = 1000 from test.claim(1000);

select count(*) = 1000, bool_and(e.status = 'extended'), array_agg(e.message_id) = array(select generate_series(1, 1000)::bigint)
from trex.extend(
    'shop', array(select generate_series(1, 1000)::bigint), array(select test.fence(n) from generate_series(1, 1000) n)
) e;
