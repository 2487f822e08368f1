-- criterion: ac-0060
select r.state = 'clean' from trex.reconcile('shop', 'ann', 'daily') r;
select r.state = 'clean' from trex.reconcile('shop', 'ann', 'daily') r;

-- as: operator
select array_agg(r.run_id) = array[2, 1]::bigint[] from trex.reconcile_reports('shop') r;
select r.run_id = 1 from trex.reconcile_reports('shop', p_before => 2) r;

-- as: reader
-- expect: 42501
select trex.reconcile_reports('shop');
