-- criterion: ac-0040
select test.save();

-- expect: TX400
select trex.enqueue_many('', array['t'], array['a'], array['{}'::jsonb]);
select trex.enqueue_many('shop', null, array['a'], array['{}'::jsonb]);
select trex.enqueue_many('shop', array['t'], null, array['{}'::jsonb]);
select trex.enqueue_many('shop', array['t'], array['a'], null);
select trex.enqueue_many('shop', array['t'], array['a', 'b'], array['{}'::jsonb]);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], p_accounts => array['a', 'b']);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], p_delays => '{}');
select trex.enqueue_many('shop', array[null], array['a'], array['{}'::jsonb]);
select trex.enqueue_many('shop', array['t'], array[null], array['{}'::jsonb]);
select trex.enqueue_many('shop', array['t'], array['a'], array[null]::jsonb []);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], p_accounts => array['a']);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], array['a'], array['USD'], array['NaN'::numeric]);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], array['a'], array['QQQ'], array[1]);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], p_effect_policies => array['never']);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], p_delays => array[interval '1 month']);
select trex.enqueue_many('shop', array['t'], array['a'], array['{}'::jsonb], p_on_conflict => 'ignore');
select trex.enqueue_many('shop', array['t'], array['a'], array[to_jsonb(repeat('x', 1048575))]);

select test.unchanged();
