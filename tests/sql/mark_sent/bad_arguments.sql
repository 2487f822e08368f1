-- criterion: ac-0040
-- expect: TX400
select trex.mark_sent('', 1, 1);
select trex.mark_sent('shop', null, 1);
select trex.mark_sent('shop', 0, 1);
select trex.mark_sent('shop', 1, null);
select trex.mark_sent('shop', 1, -1);
select trex.mark_sent('shop', 1, 1, null);
select trex.mark_sent('shop', 1, 1, '');
select trex.mark_sent('shop', 1, 1, 'ignore');
