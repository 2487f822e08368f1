-- criterion: ac-0057
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';
select t.status = 'applied' from trex.transition('shop', 'door', 'd1', 'build', 0, 'op-1', 'ann', 'mason', 'test') t;

-- as: reader
select e.state = 'open', e.version = 1, e.owner = 'ann', e.deadline = e.since + interval '60 seconds', not e.final
from trex.entity_status('shop', 'door', 'd1') e;

-- expect: TX404
select trex.entity_status('shop', 'door', 'd2');
select trex.entity_status('shop', 'gate', 'd1');
