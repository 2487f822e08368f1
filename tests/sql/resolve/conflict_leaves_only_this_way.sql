-- criterion: ac-0034
select test.put(4);
select count(*) = 3 from test.claim(3);
select test.park(1, 'conflict'), test.park(2, 'dead_letter');
select r.state = 'ready' from trex.resolve('shop', 1, 'resend', 'other key removed', 'me', 'why') r;

-- Neither parked as unknown or conflict, nor known.
-- expect: TX423
select * from trex.resolve('shop', 2, 'resend', 'seen', 'me', 'why');
select * from trex.resolve('shop', 3, 'delivered', 'seen', 'me', 'why');
select * from trex.resolve('shop', 4, 'abandon', 'seen', 'me', 'why');

-- expect: TX404
select * from trex.resolve('shop', 99, 'resend', 'seen', 'me', 'why');
select * from trex.resolve('other', 2, 'resend', 'seen', 'me', 'why');
