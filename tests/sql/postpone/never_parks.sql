select trex.register_instance('shop', 'me', 'why', p_max_attempts => 1);
select test.put();
select test.claim() = 1;
select r.state = 'deferred', r.due_at = trex._now() + interval '1 minute' from trex.postpone('shop', 1, test.fence(1), '1 minute') r;

-- clock: 1 minutes
select test.claim() = 1;

select r.state = 'deferred' from trex.postpone('shop', 1, test.fence(1), '0') r;
select d.attempts = 2, d.tries = 0 from trex.delivery d;
