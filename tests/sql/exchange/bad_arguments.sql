-- criterion: ac-0040
-- expect: TX400
select trex.exchange('', 'w', 1);
select trex.exchange('shop', '', 1);
select trex.exchange('shop', 'w', 0);
select trex.exchange('shop', 'w', 1001);
select trex.exchange('shop', 'w', null);
select trex.exchange('shop', 'w', 1, '0');
select trex.exchange('shop', 'w', 1, '-1 second');
select trex.exchange('shop', 'w', 1, '99 milliseconds');
select trex.exchange('shop', 'w', 1, '15 minutes 1 microsecond');
select trex.exchange('shop', 'w', 1, '25 hours');
select trex.exchange('shop', 'w', 1, '1 month');
select trex.exchange('shop', 'w', 1, '1 month -29 days -23 hours');
select trex.exchange('shop', 'w', 1, '100000 hours');
select trex.exchange('shop', 'w', 1, null, 'x');
select trex.exchange('shop', 'w', 1, p_after => -1);
select trex.exchange('shop', 'w', 1, p_message_ids => array[1]);
select trex.exchange('shop', 'w', 1, p_message_ids => array[1, 1], p_fences => array[1, 2], p_results => array['completed', 'completed']);
select trex.exchange('shop', 'w', 1, p_message_ids => array[1], p_fences => array[1], p_results => array['done']);
