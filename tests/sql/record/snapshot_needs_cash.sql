-- criterion: ac-0043
select test.put();
select test.claim();

-- expect: TX400
select * from trex.complete('shop', 1, test.fence(1), p_balance => 1, p_version => 1);

select count(*) = 0 from trex.receipt;
