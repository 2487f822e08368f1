-- criterion: ac-0040
-- expect: TX400
select trex.pause(null, 'me', 'why');
select trex.pause('', 'me', 'why');
select trex.pause('shop', null, 'why');
select trex.pause('shop', '', 'why');
select trex.pause('shop', ' me', 'why');
select trex.pause('shop', e'm\ne', 'why');
select trex.pause('shop', repeat('m', 256), 'why');
select trex.pause('shop', 'me', null);
select trex.pause('shop', 'me', '');
select trex.pause('shop', 'me', ' ');
select trex.pause('shop', 'me', e'w\nhy');
select trex.pause('shop', 'me', e'w\u0085');
select trex.pause('shop', 'me', repeat('w', 1001));
