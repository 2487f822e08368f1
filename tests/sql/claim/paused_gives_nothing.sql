select test.put();
select trex.pause('shop', 'me', 'why');

-- expect: no rows
select * from trex.claim('shop', 'w');

select trex.resume('shop', 'me', 'why');
select c.message_id = 1 from trex.claim('shop', 'w') c;
