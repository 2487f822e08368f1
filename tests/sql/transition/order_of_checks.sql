-- criterion: ac-0057
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';

-- as: app
select t.status = 'applied', t.state = 'open', t.version = 1
from trex.transition('shop', 'door', 'd1', 'build', 0, 'op-1', 'ann', 'mason', 'test') t;
select t.status = 'replayed', t.version = 1
from trex.transition('shop', 'door', 'd1', 'build', 0, 'op-1', 'ann', 'mason', 'test') t;

-- expect: TX404
select trex.transition('shop', 'door', 'd2', 'shut', 1, 'op-2', 'ann', 'guard', 'test', 1);
select trex.transition('shop', 'gate', 'd1', 'shut', 1, 'op-2', 'ann', 'guard', 'test', 1);

-- expect: TX422
select trex.transition('shop', 'door', 'd1', 'shut', 7, 'op-1', 'ann', 'guard', 'test', 1);

-- expect: TX423
select trex.transition('shop', 'door', 'd1', 'build', 1, 'op-2', 'ann', 'mason', 'test');
select trex.transition('shop', 'door', 'd1', 'shut', 1, 'op-2', 'ann', 'mason', 'test', 1);
select trex.transition('shop', 'door', 'd1', 'shut', 1, 'op-2', 'ann', 'guard', 'test', 6);
select trex.transition('shop', 'door', 'd1', 'shut', 1, 'op-2', 'ann', 'guard', 'test');

select t.status = 'version_conflict', t.state = 'open', t.version = 1
from trex.transition('shop', 'door', 'd1', 'shut', 2, 'op-2', 'ann', 'guard', 'test', 1, p_on_refused => 'report') t;
select t.status = 'applied', t.state = 'shut', t.version = 2, t.message_id is not null
from trex.transition('shop', 'door', 'd1', 'shut', 1, 'op-2', 'ann', 'guard', 'test', 1) t;

-- as: reader
-- expect: 42501
select trex.transition('shop', 'door', 'd3', 'build', 0, 'op-3', 'ann', 'mason', 'test');

-- as: worker
-- expect: TX403
select trex.transition('other', 'door', 'd3', 'build', 0, 'op-3', 'ann', 'mason', 'test');
