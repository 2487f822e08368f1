-- criterion: ac-0060
select test.put();

-- clock: 2 hours
select r.state = 'findings' from trex.reconcile('shop', 'ann', 'daily') r;

-- as: operator
select f.type = 'failed_or_stuck_outbox', f.ref_ids = '{"message_id": 1}', f.state = 'needs_review' from trex.reconcile_findings('shop', 1) f;

-- as: operator
-- expect: TX404
select trex.reconcile_findings('shop', 2);

-- as: app
-- expect: 42501
select trex.reconcile_findings('shop');
