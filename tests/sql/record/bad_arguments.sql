-- criterion: ac-0040
select test.put(2);
select test.claim() > 0;
select test.save();

-- expect: TX400
select trex.record('', '{}', '{}', '{}');
select trex.record('shop', null, '{}', '{}');
select trex.record('shop', '{}', null, '{}');
select trex.record('shop', '{}', '{}', null);
select trex.record('shop', array[1], array[1, 2], array['completed']);
select trex.record('shop', array[1], array[1], array['completed'], p_reasons => '{}');
select trex.record('shop', array[1], array[1], array['completed'], p_versions => array[1, 2]);
select trex.record('shop', array[null]::bigint [], array[1], array['completed']);
select trex.record('shop', array[0], array[1], array['completed']);
select trex.record('shop', array[-1], array[1], array['completed']);
select trex.record('shop', array[1], array[0], array['completed']);
select trex.record('shop', array[1], array[null]::bigint [], array['completed']);
select trex.record('shop', array[1], array[1], array[null]);
select trex.record('shop', array[1], array[1], array['lease_expired']);
select trex.record('shop', array[1], array[1], array['delivered']);
select trex.record('shop', array[1, 1], array[1, 1], array['completed', 'retry']);
select trex.record('shop', array[1], array[1], array['retry'], p_reasons => array['because']);
select trex.record('shop', array[1], array[1], array['retry'], p_reasons => array['Timeout']);
select trex.record('shop', array[1], array[1], array['completed'], p_reasons => array['timeout']);
select trex.record('shop', array[1], array[1], array['postponed']);
select trex.record('shop', array[1], array[1], array['postponed'], p_delays => array[interval '-1 s']);
select trex.record('shop', array[1], array[1], array['retry'], p_delays => array[interval '31 days']);
select trex.record('shop', array[1], array[1], array['retry'], p_delays => array[interval '1 month']);
select trex.record('shop', array[1], array[1], array['completed'], p_delays => array[interval '1 s']);
select trex.record('shop', array[1], array[1], array['released'], p_delays => array[interval '1 s']);
select trex.record('shop', array[1], array[1], array['completed'], p_absent => array[true]);
select trex.record('shop', array[1], array[1], array['unknown'], p_absent => array[true]);
select trex.record('shop', array[1], array[1], array['retry'], p_park => array[true]);
select trex.record('shop', array[1], array[1], array['completed'], p_confirmed_by => array['operator']);
select trex.record('shop', array[1], array[1], array['completed'], p_confirmed_by => array['']);
select trex.record('shop', array[1], array[1], array['retry'], p_confirmed_by => array['answer']);
select trex.record('shop', array[1], array[1], array['completed'], p_references => array['']);
select trex.record('shop', array[1], array[1], array['retry'], p_references => array['r']);
select trex.record('shop', array[1], array[1], array['completed'], p_balances => array[1]);
select trex.record('shop', array[1], array[1], array['completed'], p_versions => array[1]);
select trex.record('shop', array[1], array[1], array['completed'], p_balances => array['NaN'::numeric], p_versions => array[1]);
select trex.record('shop', array[1], array[1], array['completed'], p_balances => array['Infinity'::numeric], p_versions => array[1]);
select trex.record('shop', array[1], array[1], array['completed'], p_balances => array[1], p_versions => array[-1]);
select trex.record('shop', array[1], array[1], array['retry'], p_balances => array[1], p_versions => array[1]);

-- One bad element: nothing of the batch is recorded.
-- expect: TX400
select trex.record('shop', array[1, 2], array[test.fence(1), test.fence(2)], array['completed', 'nonsense']);
select trex.record('shop', array_fill(1::bigint, array[1001]), array_fill(1::bigint, array[1001]), array_fill('retry'::text, array[1001]));

-- Arrays of another shape.
-- expect: TX400
select trex.record('shop', '[2:2]={1}', array[1], array['completed']);
select trex.record('shop', '{{1},{2}}', '{{1},{2}}', '{{completed},{completed}}');
select trex.record('shop', array[1, 2], '{{1},{2}}', array['completed', 'completed']);

select test.unchanged();

-- expect: no rows
select * from trex.record('shop', '{}', '{}', '{}');
