-- criterion: ac-0040
-- expect: TX400
select trex.list_parked('');
select trex.list_parked(null);
select trex.list_parked('Shop');
select trex.list_parked('shop', null);
select trex.list_parked('shop', 0);
select trex.list_parked('shop', -1);
select trex.list_parked('shop', 10001);
select trex.list_parked('shop', 1, null);
select trex.list_parked('shop', 1, -1);
select trex.list_parked('shop', 1, 0, null);
select trex.list_parked('shop', 1, 0, 'Outbox');
