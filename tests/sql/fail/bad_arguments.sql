-- criterion: ac-0040
-- expect: TX400
select trex.fail('', 1, 1);
select trex.fail(null, 1, 1);
select trex.fail('shop', null, 1);
select trex.fail('shop', 1, null);
select trex.fail('shop', 0, 1);
select trex.fail('shop', 1, 0);
select trex.fail('shop', -1, 1);
select trex.fail('shop', 1, -1);
select trex.fail('shop', 1, 1, p_on_lost => null);
select trex.fail('shop', 1, 1, p_on_lost => '');
select trex.fail('shop', 1, 1, p_on_lost => 'ignore');
select trex.fail('shop', 1, 1, p_reason => '');
select trex.fail('shop', 1, 1, p_reason => 'because');
select trex.fail('shop', 1, 1, p_reason => 'Timeout');
