-- criterion: ac-0043
select test.put(6, p_cash => 1);
select count(*) = 6 from test.claim();

select bool_and(r.status = 'recorded')
from trex.record(
    'shop', array[1, 2, 3], array(select test.fence(n) from generate_series(1, 3) n),
    array['completed', 'completed', 'completed'], p_balances => array[10, 30, 20.5], p_versions => array[1, 3, 2]
) r;

select s.balance = 30, s.version = 3, s.message_id = 2, s.fence = test.fence(2), s.account = 'acct', s.currency = 'USD'
from trex.ledger_snapshot s;

-- Older: ignored and counted. The same version with another balance: counted, never taken.
select r.status = 'recorded' from trex.complete('shop', 4, test.fence(4), p_balance => 11, p_version => 1) r;
select r.status = 'recorded' from trex.complete('shop', 5, test.fence(5), p_balance => 31, p_version => 3) r;
select s.balance = 30, s.version = 3, s.ignored = 1, s.contradicted = 1 from trex.ledger_snapshot s;

-- Too many decimals: the whole call is refused.
-- expect: TX400
select * from trex.complete('shop', 6, test.fence(6), p_balance => 1.001, p_version => 9);

select count(*) = 5 from trex.receipt;
select s.version = 3 from trex.ledger_snapshot s;
