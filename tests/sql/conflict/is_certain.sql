-- criterion: ac-0034
select test.put();
select test.claim() = 1;
select r.state = 'deferred' from trex.mark_unknown('shop', 1, test.fence(1)) r;

-- The ledger has the key with other content, so it doesn't have this one.
-- clock: 1 hours
select test.claim() = 1;

select r.state = 'conflict' from trex.conflict('shop', 1, test.fence(1)) r;
select d.parked = 'conflict', not d.uncertain from trex.delivery d;
select s.parked = 'conflict', s.reason = 'key_conflict' from trex.ledger_skip s;
