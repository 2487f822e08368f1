select test.put();
select test.claim() = 1;
select r.state = 'ready', r.due_at = trex._now() from trex.release('shop', 1, test.fence(1)) r;
select d.attempts = 1, d.tries = 0, d.worker is null from trex.delivery d;
select o.kind = 'released', o.reason = 'not_started' from trex.outcome o;

select c.attempt = 2, c.tries = 1, c.fence > test.fence(1) from trex.claim('shop', 'w') c;
