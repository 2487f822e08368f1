-- criterion: ac-0034
select test.put(2);
select count(*) = 2 from test.claim();
select count(*) = 2 from generate_series(1, 2) n, trex.mark_unknown('shop', n, test.fence(n));

-- clock: 1 hours
select count(*) = 2 from test.claim();

select r.state = 'permanent' from trex.fail('shop', 1, test.fence(1)) r;
select r.state = 'permanent' from trex.fail('shop', 2, test.fence(2), p_absent => true) r;
select array_agg(d.uncertain order by d.message_id) = array[true, false] from trex.delivery d;
