-- criterion: ac-0029
select test.put();
select test.claim() = 1;
select test.fence(1) >> 42 = 1;
select trex.bump_epoch('me', 'why') = 2;

-- clock: 30 seconds
select c.fence >> 42 = 2 from trex.claim('shop', 'w') c;

-- Another start time of the server is another history.
update trex.epoch set postmaster_start = postmaster_start - interval '1 second';

-- clock: 30 seconds
select c.fence >> 42 = 3 from trex.claim('shop', 'w') c;

select e.epoch = 3, e.postmaster_start = pg_postmaster_start_time() from trex.epoch e;
