-- criterion: ac-0035
select trex.bump_epoch('me', 'why') = 1;
select trex.bump_epoch('me', 'why') = 2;
select count(*) = 2, bool_and(a.instance_key is null), max(a.detail::text) = '{"epoch": 2}' from trex.audit a where a.action = 'bump_epoch';
select test.put() = 1;
select c.fence >> 42 = 3 from trex.claim('shop', 'w') c;

-- expect: TX400
select trex.bump_epoch(null, 'why');
select trex.bump_epoch('', 'why');
select trex.bump_epoch(' me', 'why');
select trex.bump_epoch(e'm\ne', 'why');
select trex.bump_epoch(repeat('m', 256), 'why');
select trex.bump_epoch('me', null);
select trex.bump_epoch('me', '');
select trex.bump_epoch('me', ' ');
select trex.bump_epoch('me', e'w\nhy');
select trex.bump_epoch('me', e'w\u0085');
select trex.bump_epoch('me', repeat('w', 1001));

-- The end of the epochs is an answer, not a broken rule of a table.
update trex.epoch set epoch = 2097151;

-- expect: TX902
select trex.bump_epoch('me', 'why');
