-- criterion: ac-0043
select test.put(1, p_cash => 1);
select test.put(1, p_cash => 2);
select test.put(1, p_cash => 4);
select test.put(1, p_cash => 8);
select test.put(1, p_cash => -16);
select test.put(1, p_cash => 32, p_account => 'b');
select test.put(1);
select test.put(1, p_cash => 64, p_instance => 'other');
select count(*) = 5 from test.claim(5);
select r.state = 'deferred' from trex.mark_unknown('shop', 2, test.fence(2)) r;
select test.park(3, 'dead_letter'), test.park(4, 'unknown');
select r.state = 'delivered' from trex.complete('shop', 5, test.fence(5)) r;

select
    array_agg(c.account) = array['acct', 'b'], array_agg(c.pending) = array[1, 32]::numeric [], array_agg(c.uncertain) = array[10, 0]::numeric [],
    array_agg(c.skipped) = array[4, 0]::numeric [], array_agg(c.entries) = array[4, 1]::bigint [], bool_and(c.currency = 'USD')
from trex.pending_cash_delta('shop') c;

select c.pending = 32 from trex.pending_cash_delta('shop', 'b') c;

-- expect: no rows
select * from trex.pending_cash_delta('shop', 'nobody');
select * from trex.pending_cash_delta('shop', null, 'KRW');

-- expect: TX400
select trex.pending_cash_delta('');
select trex.pending_cash_delta('shop', '');
select trex.pending_cash_delta('shop', 'a', 'usd');
select trex.pending_cash_delta('shop', null, 'QQQ');
