-- An adopted at_most_once message is parked by claim before any fence is drawn; its skip closes once it is delivered after all.
-- criterion: ac-0034
insert into trex.quarantine (source, source_key, topic, idempotency_key, payload) values ('old', '1', 't', 'k', '{}'), ('old', '2', 't', 'l', '{}');

select trex.adopt('shop', 1, 'seen', 'me', 'why', p_effect_policy => 'at_most_once') is not null;
select trex.adopt('shop', 2, 'seen', 'me', 'why', p_effect_policy => 'at_most_once') is not null;

-- expect: no rows
select * from trex.claim('shop', 'w', 10);

select bool_and(s.state = 'unknown'), bool_and(s.fence = 0) from generate_series(1, 2) n, trex.status('shop', n) s;
select r.state = 'delivered', r.fence = 0 from trex.resolve('shop', 1, 'delivered', 'seen', 'me', 'why') r;
select r.state = 'ready' from trex.resolve('shop', 2, 'resend', 'seen', 'me', 'why') r;
select test.claim() = 2;
select r.state = 'delivered' from trex.complete('shop', 2, test.fence(2)) r;

select bool_and(s.resolved_at is not null), count(*) = 2 from trex.ledger_skip s;
