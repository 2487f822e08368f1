-- criterion: ac-0029
select test.put();
select test.claim() = 1;

-- clock: 1 hours
select r.status = 'recorded', r.late from trex.record('shop', array[1], array[test.fence(1)], array['completed']) r;

select r.late from trex.receipt r;
