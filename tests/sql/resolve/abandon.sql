-- criterion: ac-0034
select test.put(1, p_cash => 3);
select test.claim() = 1;
select test.park(1, 'unknown') = 'unknown';

select r.status = 'recorded', r.state = 'permanent', r.due_at is null
from trex.resolve('shop', 1, 'abandon', 'cancelled', 'me', 'why') r;
select d.parked = 'permanent', d.uncertain from trex.delivery d;
select s.parked = 'permanent', s.reason = 'operator', s.resolved_at is null from trex.ledger_skip s;
select c.skipped = 0, c.uncertain = 3 from trex.pending_cash_delta('shop') c;

select r.status = 'already_recorded', r.state = 'permanent'
from trex.resolve('shop', 1, 'abandon', 'cancelled', 'me', 'why') r;

select p.abandoned from trex.list_parked('shop') p;

select r.status = 'redriven' from trex.redrive('shop', array[1], 'me', 'why') r;
select not d.abandoned from trex.delivery d;
