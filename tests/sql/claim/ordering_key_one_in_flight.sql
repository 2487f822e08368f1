-- criterion: ac-0031
select test.put(3, 'lane');
select test.put(1, 'lane2');
select test.put(1);

select array_agg(m order by m) = array[1, 4, 5]::bigint [] from test.claim() m;

-- The others wait, and stats say so.
select s.waiting = 2, s.leased = 3 from trex.stats('shop') s;

-- A retry keeps its place.
select r.state = 'deferred' from trex.retry('shop', 1, test.fence(1)) r;

-- expect: no rows
select * from trex.claim('shop', 'w');

-- clock: 1 hours
select array_agg(m order by m) = array[1, 4, 5]::bigint [] from test.claim() m;
select r.status = 'recorded' from trex.complete('shop', 1, test.fence(1)) r;
select array_agg(m) = array[2]::bigint [] from test.claim() m;
select r.status = 'recorded' from trex.complete('shop', 2, test.fence(2)) r;
select array_agg(m) = array[3]::bigint [] from test.claim() m;
