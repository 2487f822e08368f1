-- criterion: ac-0040
-- expect: TX400
select trex.expedite(null, array[1], 'me', 'why');
select trex.expedite('shop', null, 'me', 'why');
select trex.expedite('shop', array[0], 'me', 'why');
select trex.expedite('shop', array[-1], 'me', 'why');
select trex.expedite('shop', array[null]::bigint [], 'me', 'why');
select trex.expedite('shop', array[1, 1], 'me', 'why');
select trex.expedite('shop', '[2:2]={1}', 'me', 'why');
select trex.expedite('shop', '{{1},{2}}', 'me', 'why');
select trex.expedite('shop', array(select generate_series(1, 1001)), 'me', 'why');
select trex.expedite('shop', array[1], null, 'why');
select trex.expedite('shop', array[1], '', 'why');
select trex.expedite('shop', array[1], ' me', 'why');
select trex.expedite('shop', array[1], e'm\ne', 'why');
select trex.expedite('shop', array[1], repeat('m', 256), 'why');
select trex.expedite('shop', array[1], 'me', null);
select trex.expedite('shop', array[1], 'me', '');
select trex.expedite('shop', array[1], 'me', ' ');
select trex.expedite('shop', array[1], 'me', e'w\nhy');
select trex.expedite('shop', array[1], 'me', e'w\u0085');
select trex.expedite('shop', array[1], 'me', repeat('w', 1001));
