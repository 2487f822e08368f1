-- criterion: ac-0058
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';
select t.status = 'applied' from trex.transition('shop', 'door', 'd1', 'build', 0, 'op-1', 'ann', 'mason', 'test', 10) t;
select c.status = 'applied' from trex.correct('shop', 'op-1', 'c-1', 'refund', -3, 0, 'ann', 'boss', 'r', 'e') c;

-- as: reader
select array_agg(h.id order by h.version) = array['op-1', 'c-1'], array_agg(h.balance order by h.version) = array[10, 7]::numeric[]
from trex.operation_history('shop', 'op-1') h;

-- expect: TX404
select trex.operation_history('shop', 'op-2');
