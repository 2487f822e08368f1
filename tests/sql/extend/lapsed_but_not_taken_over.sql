-- criterion: ac-0029
select test.put(2);
select count(*) = 2 from test.claim();

-- clock: 1 hours
select count(*) = 1 from test.claim(1);

select array_agg(e.status) = array['claim_lost', 'extended']
from trex.extend('shop', array[1, 2], array[test.fence(1, 1), test.fence(2)]) e;
