-- criterion: ac-0034
select test.put(1, p_cash => 3);
select test.claim() = 1;
select test.park(1, 'unknown') = 'unknown';

select r.status = 'recorded', r.state = 'permanent', r.due_at is null
from trex.resolve('shop', 1, 'absent', 'on no statement', 'me', 'why') r;
select d.parked = 'permanent', not d.uncertain, d.abandoned from trex.delivery d;
select c.skipped = 3, c.uncertain = 0 from trex.pending_cash_delta('shop') c;

select r.status = 'already_recorded', r.state = 'permanent'
from trex.resolve('shop', 1, 'absent', 'on no statement', 'me', 'why') r;
select r.status = 'already_recorded'
from trex.resolve('shop', 1, 'abandon', 'cancelled', 'me', 'why') r;
select count(*) = 1 from trex.audit a where a.action = 'resolve';

select r.status = 'redriven' from trex.redrive('shop', array[1], 'me', 'why') r;
select not d.abandoned from trex.delivery d;
