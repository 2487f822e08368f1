-- criterion: ac-0030
select trex.enqueue('shop', 't', 'k', '{"n": 1}', 'a', 'USD', 1.5, 'c', 'o');

-- The same content, written in another way.
select e.message_id = 1, e.status = 'duplicate'
from trex.enqueue('shop', 't', 'k', '{ "n":1 }', 'a', 'USD', 1.500, 'c', 'o', p_delay => '1 hour') e;

-- expect: TX422
select trex.enqueue('shop', 'u', 'k', '{"n": 1}', 'a', 'USD', 1.5, 'c', 'o');
select trex.enqueue('shop', 't', 'k', '{"n": 1.0}', 'a', 'USD', 1.5, 'c', 'o');
select trex.enqueue('shop', 't', 'k', '{"n": 1}', 'b', 'USD', 1.5, 'c', 'o');
select trex.enqueue('shop', 't', 'k', '{"n": 1}', 'a', 'EUR', 1.5, 'c', 'o');
select trex.enqueue('shop', 't', 'k', '{"n": 1}', 'a', 'USD', 1.51, 'c', 'o');
select trex.enqueue('shop', 't', 'k', '{"n": 1}', 'a', 'USD', 1.5, null, 'o');
select trex.enqueue('shop', 't', 'k', '{"n": 1}', 'a', 'USD', 1.5, 'c', 'p');
select trex.enqueue('shop', 't', 'k', '{"n": 1}', 'a', 'USD', 1.5, 'c', 'o', 'lookup');
select trex.enqueue('shop', 't', 'k', '{"n": 1}', p_correlation_id => 'c', p_ordering_key => 'o');

select e.message_id = 1, e.status = 'conflict'
from trex.enqueue('shop', 'u', 'k', '{"n": 1}', p_on_conflict => 'report') e;

-- Keys are compared byte by byte, and per instance.
select e.status = 'enqueued' from trex.enqueue('shop', 't', 'K', '{"n": 1}') e;
select e.status = 'enqueued' from trex.enqueue('other', 't', 'k', '{"n": 1}') e;

select count(*) = 3 from trex.message;
