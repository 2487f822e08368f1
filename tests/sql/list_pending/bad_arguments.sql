-- criterion: ac-0040
-- expect: TX400
select trex.list_pending('');
select trex.list_pending(null);
select trex.list_pending('Shop');
select trex.list_pending('shop', null);
select trex.list_pending('shop', 0);
select trex.list_pending('shop', -1);
select trex.list_pending('shop', 10001);
select trex.list_pending('shop', 1, null);
select trex.list_pending('shop', 1, -1);
select trex.list_pending('shop', 1, 0, null);
select trex.list_pending('shop', 1, 0, 'Outbox');
select trex.list_pending('shop', 1, 0, 'outbox', null);
