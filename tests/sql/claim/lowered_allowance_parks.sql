select test.put(2);
select test.claim() > 0;
select r.state = 'deferred' from trex.retry('shop', 1, test.fence(1)) r;
select r.state = 'deferred' from trex.mark_unknown('shop', 2, test.fence(2)) r;
select trex.register_instance('shop', 'me', 'why', p_max_attempts => 1);

-- clock: 1 hours
-- expect: no rows
select * from trex.claim('shop', 'w');

select array_agg(d.parked order by d.message_id) = array['dead_letter', 'unknown'] from trex.delivery d;
select bool_and(s.reason = 'attempts_exhausted'), count(*) = 2 from trex.ledger_skip s;

-- No claim was open, so nothing ended.
select count(*) = 2, bool_and(o.kind <> 'lease_expired') from trex.outcome o;
