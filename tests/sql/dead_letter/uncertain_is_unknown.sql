-- criterion: ac-0034
select test.put(2);
select count(*) = 2 from test.claim();
select count(*) = 2 from generate_series(1, 2) n, trex.mark_unknown('shop', n, test.fence(n));

-- clock: 1 hours
select count(*) = 2 from test.claim();

select r.state = 'unknown' from trex.dead_letter('shop', 1, test.fence(1)) r;
select r.state = 'dead_letter' from trex.dead_letter('shop', 2, test.fence(2), p_absent => true) r;
