-- criterion: ac-0057
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';

-- As its own files say it, the same again is nothing.
select trex.machine_load('shop', 'door', m.definition, 'ann', 'test') = 'unchanged' from trex.machine m;
select count(*) = 1 from trex.machine;

-- A state that is gone.
-- expect: TX423
select trex.machine_load('shop', 'door', '{"states": {"open": {}}, "transitions": [{"event": "build", "to": "open"}]}', 'a', 'r');

-- expect: TX400
select trex.machine_load('shop', 'door', null, 'a', 'r');
select trex.machine_load('shop', 'door', '[]', 'a', 'r');
select trex.machine_load('shop', 'Door', '{}', 'a', 'r');
select trex.machine_load('shop', 'door', '{"states": {"a": {}}, "transitions": [{"event": "e", "to": "b"}]}', 'a', 'r');

-- as: operator
-- expect: TX403
select trex.machine_load('other', 'm', '{"states": {"a": {}}, "transitions": [{"event": "e", "to": "a"}]}', 'a', 'r');

-- as: app
-- expect: 42501
select trex.machine_load('shop', 'm', '{"states": {"a": {}}, "transitions": [{"event": "e", "to": "a"}]}', 'a', 'r');
