-- criterion: ac-0055
select r.status = 'received' from trex.receive('shop', 'p', 'a', 'e', 't', null, '', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select test.park(1, 'permanent') = 'permanent';

select r.status = 'revived', r.state = 'ready' from trex.receive('shop', 'p', 'a', 'e', 't', null, '', '{}') r;
select count(*) = 1 from trex.audit a where a.action = 'redrive' and a.message_id = 1;
select d.parked is null, d.tries = 0, d.attempts = 1, d.deferred_until = trex._now() from trex.delivery d;

-- A message that is live again is left alone.
select r.status = 'deduplicated' from trex.receive('shop', 'p', 'a', 'e', 't', null, '', '{}') r;
