-- criterion: ac-0034
select test.put(2, 'lane', p_cash => 3);
select test.claim() = 1;
select test.park(1, 'unknown') = 'unknown';

select r.status = 'recorded', r.state = 'delivered', r.fence = test.fence(1)
from trex.resolve('shop', 1, 'delivered', 'booking 17 of 3 May', 'me', 'asked the ledger', 'ref-17') r;

select r.confirmed_by = 'operator', r.reference = 'ref-17', r.fence = test.fence(1), r.attempt = 1, not r.duplicate
from trex.receipt r;
select s.resolved_at = trex._now(), s.resolved_fence = test.fence(1) from trex.ledger_skip s;
select a.detail = '{"resolution": "delivered", "evidence": "booking 17 of 3 May", "parked": "unknown"}'
from trex.audit a
where a.action = 'resolve';

-- Its ordering key goes on.
select test.claim() = 2;

-- Again: it is so. Otherwise: it isn't.
select r.status = 'already_recorded', r.state = 'delivered' from trex.resolve('shop', 1, 'delivered', 'seen', 'me', 'why') r;

-- expect: TX410
select * from trex.resolve('shop', 1, 'resend', 'seen', 'me', 'why');
select * from trex.resolve('shop', 1, 'abandon', 'seen', 'me', 'why');

select count(*) = 1 from trex.audit a where a.action = 'resolve';
