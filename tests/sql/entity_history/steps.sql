-- criterion: ac-0057
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';
select t.status = 'applied' from trex.transition('shop', 'door', 'd1', 'build', 0, 'op-1', 'ann', 'mason', 'test') t;
select t.status = 'applied' from trex.transition('shop', 'door', 'd1', 'shut', 1, 'op-2', 'bob', 'guard', 'test', 1) t;

-- as: reader
select array_agg(h.event) = array['build', 'shut'], array_agg(h.from_state) = array['', 'open'] from trex.entity_history('shop', 'door', 'd1') h;
select h.version = 2, h.actor = 'bob', h.amount = 1 from trex.entity_history('shop', 'door', 'd1', p_after => 1) h;

-- expect: no rows
select trex.entity_history('shop', 'door', 'd2');

-- expect: TX400
select trex.entity_history('shop', 'door', 'd1', 0);
