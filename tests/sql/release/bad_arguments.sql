-- criterion: ac-0040
-- expect: TX400
select trex.release('', 1, 1);
select trex.release(null, 1, 1);
select trex.release('shop', null, 1);
select trex.release('shop', 1, null);
select trex.release('shop', 0, 1);
select trex.release('shop', 1, 0);
select trex.release('shop', -1, 1);
select trex.release('shop', 1, -1);
select trex.release('shop', 1, 1, p_on_lost => null);
select trex.release('shop', 1, 1, p_on_lost => '');
select trex.release('shop', 1, 1, p_on_lost => 'ignore');
select trex.release('shop', 1, 1, p_reason => '');
select trex.release('shop', 1, 1, p_reason => 'because');
select trex.release('shop', 1, 1, p_reason => 'Timeout');
