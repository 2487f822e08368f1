-- criterion: ac-0060
select test.put(3);
select test.claim(1) = 1;

-- as: operator
-- clock: 2 hours
select r.state = 'running', r.examined = 2, r.at_check = 'messages' from trex.reconcile('shop', 'ann', 'daily', p_limit => 2) r;
select r.state = 'findings', r.found = 3, r.fresh = 3, r.repaired = 1 from trex.reconcile('shop', 'ann', 'daily', 1) r;
select r.state = 'findings', r.found = 3 from trex.reconcile('shop', 'ann', 'daily', 1) r;

select d.lease_until is null, d.deferred_until = trex._now() from trex.delivery d where d.message_id = 1;

-- as: operator
-- expect: TX404
select trex.reconcile('shop', 'ann', 'daily', 2);

-- as: operator
-- expect: TX400
select trex.reconcile('shop', 'ann', 'daily', 0);
select trex.reconcile('shop', 'ann', '');
select trex.reconcile('shop', 'ann', 'daily', p_longest_stay => '1 month');

-- as: operator
-- expect: TX403
select trex.reconcile('other', 'ann', 'daily');

-- as: worker
-- expect: 42501
select trex.reconcile('shop', 'ann', 'daily');
