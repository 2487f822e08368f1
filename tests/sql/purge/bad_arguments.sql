-- criterion: ac-0040
-- expect: TX400
select trex.purge('', '0', 'me', 'why');
select trex.purge('shop', null, 'me', 'why');
select trex.purge('shop', '-1 s', 'me', 'why');
select trex.purge('shop', '1 month', 'me', 'why');
select trex.purge('shop', '36526 days', 'me', 'why');
select trex.purge('shop', '0', null, 'why');
select trex.purge('shop', '0', '', 'why');
select trex.purge('shop', '0', ' me', 'why');
select trex.purge('shop', '0', e'm\ne', 'why');
select trex.purge('shop', '0', repeat('m', 256), 'why');
select trex.purge('shop', '0', 'me', null);
select trex.purge('shop', '0', 'me', '');
select trex.purge('shop', '0', 'me', ' ');
select trex.purge('shop', '0', 'me', e'w\nhy');
select trex.purge('shop', '0', 'me', e'w\u0085');
select trex.purge('shop', '0', 'me', repeat('w', 1001));
select trex.purge('shop', '0', 'me', 'why', null);
select trex.purge('shop', '0', 'me', 'why', 0);
select trex.purge('shop', '0', 'me', 'why', -1);
select trex.purge('shop', '0', 'me', 'why', 10001);
select trex.purge('shop', '0', 'me', 'why', 1, null);
select trex.purge('shop', '0', 'me', 'why', 1, -1);
select trex.purge('shop', '0', 'me', 'why', 1, 0, null);
