-- criterion: ac-0040
-- expect: TX400
select trex.dead_letter('', 1, 1);
select trex.dead_letter(null, 1, 1);
select trex.dead_letter('shop', null, 1);
select trex.dead_letter('shop', 1, null);
select trex.dead_letter('shop', 0, 1);
select trex.dead_letter('shop', 1, 0);
select trex.dead_letter('shop', -1, 1);
select trex.dead_letter('shop', 1, -1);
select trex.dead_letter('shop', 1, 1, p_on_lost => null);
select trex.dead_letter('shop', 1, 1, p_on_lost => '');
select trex.dead_letter('shop', 1, 1, p_on_lost => 'ignore');
select trex.dead_letter('shop', 1, 1, p_reason => '');
select trex.dead_letter('shop', 1, 1, p_reason => 'because');
select trex.dead_letter('shop', 1, 1, p_reason => 'Timeout');
