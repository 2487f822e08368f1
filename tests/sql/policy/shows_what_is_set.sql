select
    p.instance_key = 'shop', not p.paused, p.max_attempts = 12, p.lease_default = '30 s', p.lease_max = '15 min',
    p.backoff_base = '1 s', p.backoff_cap = '1 h', p.on_parked = 'block', p.wake, p.payload_max = 1048576,
    p.bound_roles @> array['trex_test_app', 'trex_test_worker'], p.registered_at is not null
from trex.policy('shop') p;

select trex.pause('shop', 'me', 'why');
select p.paused from trex.policy('shop') p;

-- expect: TX400
select trex.policy('');
select trex.policy(null);
