-- criterion: ac-0040
-- expect: TX400
select trex.extend('', array[1], array[1]);
select trex.extend('shop', null, array[1]);
select trex.extend('shop', array[1], null);
select trex.extend('shop', array[1], array[1, 2]);
select trex.extend('shop', array[1, 1], array[1, 2]);
select trex.extend('shop', array[0], array[1]);
select trex.extend('shop', array[null]::bigint [], array[1]);
select trex.extend('shop', array[1], array[0]);
select trex.extend('shop', array[1], array[null]::bigint []);
select trex.extend('shop', '[2:2]={1}', array[1]);
select trex.extend('shop', array[1], '[2:2]={1}');
select trex.extend('shop', '{{1},{2}}', array[1, 2]);
select trex.extend('shop', array(select generate_series(1, 1001)), array_fill(1::bigint, array[1001]));
select trex.extend('shop', array[1], array[1], '0');
select trex.extend('shop', array[1], array[1], '-1 second');
select trex.extend('shop', array[1], array[1], '99 milliseconds');
select trex.extend('shop', array[1], array[1], '15 minutes 1 microsecond');
select trex.extend('shop', array[1], array[1], '25 hours');
select trex.extend('shop', array[1], array[1], '1 month');
select trex.extend('shop', array[1], array[1], '1 month -29 days -23 hours');
select trex.extend('shop', array[1], array[1], '100000 hours');
