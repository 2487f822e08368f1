select test.put(2, 'lane');
select test.put(10);
select count(*) = 10 from test.claim(10, '10 seconds');
select r.state = 'deferred' from trex.postpone('shop', 3, test.fence(3), '1 hour') r;
select r.state = 'ready' from trex.release('shop', 4, test.fence(4)) r;
select test.park(5, 'dead_letter'), test.park(6, 'permanent'), test.park(7, 'conflict'), test.park(8, 'unknown');
select e.status = 'extended' from trex.extend('shop', array[9], array[test.fence(9)], '1 minute') e;

-- Leased: 9. Lapsed: 1, 10, 11. Waiting: 2. Ready: 12.
-- clock: 10 seconds
select
    s.box = 'outbox', s.ready = 1, s.due = 1, s.deferred = 1, s.waiting = 1, s.leased = 1, s.lease_ended = 3,
    s.dead_letter = 1, s.permanent = 1, s.conflict = 1, s.unknown = 1, s.blocked_keys = 0, not s.capped,
    s.oldest_due_at = trex._now() - interval '10 seconds', s.oldest_parked_at = trex._now() - interval '10 seconds'
from trex.stats('shop') s;

select s.capped, s.ready = 0, s.due = 1, s.waiting = 1, s.unknown = 0 from trex.stats('shop', 'outbox', 1) s;
select s.ready = 0, s.oldest_due_at is null, s.oldest_parked_at is null, not s.capped from trex.stats('shop', 'inbox') s;
