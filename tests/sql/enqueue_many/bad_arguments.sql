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
-- Arrays of another shape: an element would go to the wrong movement, or be lost.
select trex.enqueue_many(
    'shop', '[2:3]={p,q}'::text[], array['a1', 'a2'], array['{}', '{}']::jsonb[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], '[2:3]={p,q}'::text[], array['{}', '{}']::jsonb[]
);
select trex.enqueue_many('shop', array['p', 'q'], array['a1', 'a2'], '[0:1]={"{}","{}"}'::jsonb[]);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_currencies => array['USD', 'USD'], p_cash_deltas => array[1, 1], p_accounts => '[2:3]={p,q}'::text[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_accounts => array['a', 'a'], p_cash_deltas => array[1, 1], p_currencies => '[2:3]={USD,USD}'::text[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_accounts => array['a', 'a'], p_currencies => array['USD', 'USD'], p_cash_deltas => '[0:1]={1,1}'::numeric[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_correlation_ids => '[2:3]={p,q}'::text[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_ordering_keys => '[2:3]={p,q}'::text[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_effect_policies => '[2:3]={lookup,lookup}'::text[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_delays => '[0:1]={1h,2h}'::interval[]
);
select trex.enqueue_many('shop', array[['p', 'q']], array['a1', 'a2'], array['{}', '{}']::jsonb[]);
select trex.enqueue_many('shop', array['p', 'q'], array[['p', 'q']], array['{}', '{}']::jsonb[]);
select trex.enqueue_many('shop', array['p', 'q'], array['a1', 'a2'], array[['{}', '{}']]::jsonb[]);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_currencies => array['USD', 'USD'], p_cash_deltas => array[1, 1], p_accounts => array[['p', 'q']]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_accounts => array['a', 'a'], p_cash_deltas => array[1, 1], p_currencies => array[['USD', 'USD']]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_accounts => array['a', 'a'], p_currencies => array['USD', 'USD'], p_cash_deltas => array[[1, 1]]::numeric[]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_correlation_ids => array[['p', 'q']]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_ordering_keys => array[['p', 'q']]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_effect_policies => array[['lookup', 'lookup']]
);
select trex.enqueue_many(
    'shop', array['p', 'q'], array['a1', 'a2'], array['{}', '{}']::jsonb[],
    p_delays => array[['1h', '2h']]::interval[]
);

select test.unchanged();
