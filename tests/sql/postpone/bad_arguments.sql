-- criterion: ac-0040
-- expect: TX400
select trex.postpone('', 1, 1, '1 minute');
select trex.postpone(null, 1, 1, '1 minute');
select trex.postpone('shop', null, 1, '1 minute');
select trex.postpone('shop', 1, null, '1 minute');
select trex.postpone('shop', 0, 1, '1 minute');
select trex.postpone('shop', 1, 0, '1 minute');
select trex.postpone('shop', -1, 1, '1 minute');
select trex.postpone('shop', 1, -1, '1 minute');
select trex.postpone('shop', 1, 1, '1 minute', p_on_lost => null);
select trex.postpone('shop', 1, 1, '1 minute', p_on_lost => '');
select trex.postpone('shop', 1, 1, '1 minute', p_on_lost => 'ignore');
select trex.postpone('shop', 1, 1, '1 minute', p_reason => '');
select trex.postpone('shop', 1, 1, '1 minute', p_reason => 'because');
select trex.postpone('shop', 1, 1, '1 minute', p_reason => 'Timeout');
select trex.postpone('shop', 1, 1, null);
select trex.postpone('shop', 1, 1, '-1 s');
select trex.postpone('shop', 1, 1, '1 month');
select trex.postpone('shop', 1, 1, '721 hours');
