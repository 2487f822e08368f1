-- criterion: ac-0034
select test.put();
select test.put(1, p_policy => 'at_most_once');
select count(*) = 2 from test.claim();

select r.state = 'unknown' from trex.mark_unknown('shop', 1, test.fence(1), 'unsupported_policy', p_park => true) r;
select r.state = 'unknown' from trex.mark_unknown('shop', 2, test.fence(2)) r;
select bool_and(d.uncertain), bool_and(d.parked = 'unknown') from trex.delivery d;
select array_agg(s.reason::text order by s.message_id) = array['unsupported_policy', 'unspecified'] from trex.ledger_skip s;
