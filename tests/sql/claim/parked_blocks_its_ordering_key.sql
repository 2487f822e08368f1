-- criterion: ac-0031
select test.put(2, 'lane');
select test.claim() = 1;
select test.park(1, 'dead_letter') = 'dead_letter';

-- expect: no rows
select * from trex.claim('shop', 'w');

select s.blocked_keys = 1, s.waiting = 1, s.dead_letter = 1 from trex.stats('shop') s;

-- The operator decides: the key goes on without it.
select trex.register_instance('shop', 'me', 'why', p_on_parked => 'continue') = 'changed';
select s.blocked_keys = 0 from trex.stats('shop') s;
select test.claim() = 2;
