-- criterion: ac-0043
select test.put(1, p_cash => 7);
select test.claim() = 1;
select test.park(1, 'dead_letter') = 'dead_letter';
select s.cash_delta = 7, s.account = 'acct', s.currency = 'USD', s.resolved_at is null from trex.ledger_skip s;
select r.status = 'redriven' from trex.redrive('shop', array[1], 'me', 'why') r;
select test.claim() = 1;

select r.state = 'delivered' from trex.complete('shop', 1, test.fence(1), 'ref-1', 'lookup', 107, 5) r;

select
    r.fence = test.fence(1), r.attempt = 2, not r.duplicate, not r.late, r.confirmed_by = 'lookup', r.reference = 'ref-1',
    r.delivered_at = trex._now()
from trex.receipt r;
select s.resolved_at = trex._now(), s.resolved_fence = test.fence(1) from trex.ledger_skip s;
select s.balance = 107, s.version = 5 from trex.ledger_snapshot s;
select count(*) = 0 from trex.delivery;
