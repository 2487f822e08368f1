-- criterion: ac-0040
-- expect: TX400
select trex.redrive(null, array[1], 'me', 'why');
select trex.redrive('shop', null, 'me', 'why');
select trex.redrive('shop', array[0], 'me', 'why');
select trex.redrive('shop', array[-1], 'me', 'why');
select trex.redrive('shop', array[null]::bigint [], 'me', 'why');
select trex.redrive('shop', array[1, 1], 'me', 'why');
select trex.redrive('shop', '[2:2]={1}', 'me', 'why');
select trex.redrive('shop', '{{1},{2}}', 'me', 'why');
select trex.redrive('shop', array(select generate_series(1, 1001)), 'me', 'why');
select trex.redrive('shop', array[1], null, 'why');
select trex.redrive('shop', array[1], '', 'why');
select trex.redrive('shop', array[1], ' me', 'why');
select trex.redrive('shop', array[1], e'm\ne', 'why');
select trex.redrive('shop', array[1], repeat('m', 256), 'why');
select trex.redrive('shop', array[1], 'me', null);
select trex.redrive('shop', array[1], 'me', '');
select trex.redrive('shop', array[1], 'me', ' ');
select trex.redrive('shop', array[1], 'me', e'w\nhy');
select trex.redrive('shop', array[1], 'me', e'w\u0085');
select trex.redrive('shop', array[1], 'me', repeat('w', 1001));
