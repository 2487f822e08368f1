-- criterion: ac-0034
select test.put(2, p_policy => 'at_most_once');
select count(*) = 2 from test.claim();
select count(*) = 2 from generate_series(1, 2) n, trex.mark_sent('shop', n, test.fence(n));

-- Sent, and nobody knows: never again without an operator. Certainly absent: a dead letter.
select r.state = 'unknown' from trex.retry('shop', 1, test.fence(1)) r;
select r.state = 'dead_letter' from trex.retry('shop', 2, test.fence(2), p_absent => true) r;
select array_agg(d.uncertain order by d.message_id) = array[true, false] from trex.delivery d;
