-- criterion: ac-0035
select trex.register_instance('new', 'me', 'why', 5, '10 s', '1 day', '2 s', '1 day', 'continue', false, 100) = 'registered';
select trex.register_instance('new', 'me', 'why') = 'unchanged';
select trex.register_instance('new', 'me', 'why', 5, '10000 ms', '24 hours') = 'unchanged';
select trex.register_instance('new', 'me', 'why', p_wake => true) = 'changed';

select
    i.max_attempts = 5, i.lease_default = '10 s', i.lease_max = '24 h', i.backoff_base = '2 s', i.backoff_cap = '24 h',
    i.on_parked = 'continue', i.wake, i.payload_max = 100, i.registered_at = trex._now()
from trex.instance i
where i.instance_key = 'new';

-- A day is 24 hours, whatever the clocks do.
select i.lease_max::text = '24:00:00' from trex.instance i where i.instance_key = 'new';

-- It binds nobody.
-- expect: TX403
select trex.policy('new');

select count(*) = 2, bool_and(a.action = 'register_instance'), bool_and(a.actor = 'me'), bool_and(a.reason = 'why')
from trex.audit a
where a.instance_key = 'new';
