-- criterion: ac-0031
select test.put(2);
select test.put(3, p_correlation_id => 'c');
select test.put(1, p_correlation_id => 'd');
select test.put(1, p_correlation_id => 'c', p_instance => 'other');

select array_agg(c.message_id order by c.message_id) = array[3, 4]::bigint [], bool_and(c.correlation_id = 'c')
from trex.claim('shop', 'w', 2, p_correlation_id => 'c') c;
