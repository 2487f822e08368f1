-- criterion: ac-0060
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;
select r.state = 'clean' from trex.reconcile('shop', 'me', 'why') r;

-- A correction that no function of today would leave beside an active right.
select c.status = 'applied', c.balance = 0
from trex._correct('shop', trex._grant_id('acct', 'in_1'), 'c-1', 'fee', -49.90, 0, null, 'ann', 'boss', 'r', 'e', now()) c;
select r.found = 1 from trex.reconcile('shop', 'me', 'why') r;
select f.type = 'refunded_but_valid_entitlement', f.actual = 'paid' from trex.reconcile_findings('shop', 2) f;
