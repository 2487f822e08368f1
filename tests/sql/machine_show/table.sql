-- criterion: ac-0057
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';

-- as: reader
select count(*) = 6, count(*) filter (where c.to_state is null) = 4 from trex.machine_show('shop', 'door') c;
select c.to_state = 'shut', c.roles = array['guard'], c.amount_max = 5, c.topic = 'door.shut', c.owner = 'ann'
from trex.machine_show('shop', 'door') c
where c.state = 'open' and c.event = 'shut';

-- expect: TX404
select trex.machine_show('shop', 'none');
