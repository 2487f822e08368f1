-- criterion: ac-0031
select trex.register_instance('shop', 'me', 'why', p_on_parked => 'continue', p_max_attempts => 1);
select test.put(3, 'lane');
select test.claim() = 1;
select test.park(1, 'permanent') = 'permanent';
select test.claim() = 2;

-- Parked by claim itself after a crash.
-- clock: 30 seconds
select test.claim() = 3;
