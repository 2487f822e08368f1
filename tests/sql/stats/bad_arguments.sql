-- criterion: ac-0040
-- expect: TX400
select trex.stats('');
select trex.stats('shop', null);
select trex.stats('shop', 'x');
select trex.stats('shop', 'outbox', null);
select trex.stats('shop', 'outbox', 0);
select trex.stats('shop', 'outbox', 10000001);
