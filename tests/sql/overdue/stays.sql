-- criterion: ac-0057
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';
select t.status = 'applied' from trex.transition('shop', 'door', 'd1', 'build', 0, 'op-1', 'ann', 'mason', 'test') t;
select test.put();

-- expect: no rows
-- clock: 60 seconds
select trex.overdue('shop');

-- as: reader
-- clock: 1 seconds
select o.source = 'entity', o.entity = 'd1', o.alert = 'door.open' from trex.overdue('shop') o;

-- clock: 1 hours
select array_agg(o.source) = array['entity', 'effect'] from trex.overdue('shop') o;
select count(*) = 1 from trex.overdue('shop', 1);
