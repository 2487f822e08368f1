-- criterion: ac-0040
-- expect: TX400
select trex.retry('', 1, 1);
select trex.retry(null, 1, 1);
select trex.retry('shop', null, 1);
select trex.retry('shop', 1, null);
select trex.retry('shop', 0, 1);
select trex.retry('shop', 1, 0);
select trex.retry('shop', -1, 1);
select trex.retry('shop', 1, -1);
select trex.retry('shop', 1, 1, p_on_lost => null);
select trex.retry('shop', 1, 1, p_on_lost => '');
select trex.retry('shop', 1, 1, p_on_lost => 'ignore');
select trex.retry('shop', 1, 1, p_reason => '');
select trex.retry('shop', 1, 1, p_reason => 'because');
select trex.retry('shop', 1, 1, p_reason => 'Timeout');
select trex.retry('shop', 1, 1, p_delay => '-1 s');
select trex.retry('shop', 1, 1, p_delay => '1 month');
select trex.retry('shop', 1, 1, p_delay => '721 hours');
