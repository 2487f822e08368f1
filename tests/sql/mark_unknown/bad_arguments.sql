-- criterion: ac-0040
-- expect: TX400
select trex.mark_unknown('', 1, 1);
select trex.mark_unknown(null, 1, 1);
select trex.mark_unknown('shop', null, 1);
select trex.mark_unknown('shop', 1, null);
select trex.mark_unknown('shop', 0, 1);
select trex.mark_unknown('shop', 1, 0);
select trex.mark_unknown('shop', -1, 1);
select trex.mark_unknown('shop', 1, -1);
select trex.mark_unknown('shop', 1, 1, p_on_lost => null);
select trex.mark_unknown('shop', 1, 1, p_on_lost => '');
select trex.mark_unknown('shop', 1, 1, p_on_lost => 'ignore');
select trex.mark_unknown('shop', 1, 1, p_reason => '');
select trex.mark_unknown('shop', 1, 1, p_reason => 'because');
select trex.mark_unknown('shop', 1, 1, p_reason => 'Timeout');
select trex.mark_unknown('shop', 1, 1, p_delay => '-1 s');
select trex.mark_unknown('shop', 1, 1, p_delay => '1 month');
select trex.mark_unknown('shop', 1, 1, p_delay => '721 hours');
