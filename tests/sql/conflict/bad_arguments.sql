-- criterion: ac-0040
-- expect: TX400
select trex.conflict('', 1, 1);
select trex.conflict(null, 1, 1);
select trex.conflict('shop', null, 1);
select trex.conflict('shop', 1, null);
select trex.conflict('shop', 0, 1);
select trex.conflict('shop', 1, 0);
select trex.conflict('shop', -1, 1);
select trex.conflict('shop', 1, -1);
select trex.conflict('shop', 1, 1, p_on_lost => null);
select trex.conflict('shop', 1, 1, p_on_lost => '');
select trex.conflict('shop', 1, 1, p_on_lost => 'ignore');
select trex.conflict('shop', 1, 1, p_reason => '');
select trex.conflict('shop', 1, 1, p_reason => 'because');
select trex.conflict('shop', 1, 1, p_reason => 'Timeout');
