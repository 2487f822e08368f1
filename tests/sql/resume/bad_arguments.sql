-- criterion: ac-0040
-- expect: TX400
select trex.resume(null, 'me', 'why');
select trex.resume('', 'me', 'why');
select trex.resume('shop', null, 'why');
select trex.resume('shop', '', 'why');
select trex.resume('shop', ' me', 'why');
select trex.resume('shop', e'm\ne', 'why');
select trex.resume('shop', repeat('m', 256), 'why');
select trex.resume('shop', 'me', null);
select trex.resume('shop', 'me', '');
select trex.resume('shop', 'me', ' ');
select trex.resume('shop', 'me', e'w\nhy');
select trex.resume('shop', 'me', e'w\u0085');
select trex.resume('shop', 'me', repeat('w', 1001));
