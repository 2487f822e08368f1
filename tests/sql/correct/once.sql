-- criterion: ac-0058
select trex.machine_load(
    'shop', 'door', '{"states": {"open": {"owner": "ann", "longest_stay": 60, "alert": "door.open"}, "shut": {"final": true}},
    "transitions": [{"event": "build", "to": "open"}, {"from": "open", "event": "shut", "to": "shut", "roles": ["guard"], "amount_max": 5, "topic": "door.shut"}]}',
    'ann', 'test'
) = 'loaded';
select t.status = 'applied' from trex.transition('shop', 'door', 'd1', 'build', 0, 'op-1', 'ann', 'mason', 'test', 10) t;

-- as: operator
select c.status = 'applied', c.version = 1, c.balance = 7, c.on_state = 'open', c.on_version = 1
from trex.correct('shop', 'op-1', 'c-1', 'refund', -3, 0, 'ann', 'boss', 'r', 'e') c;
select c.status = 'replayed', c.balance = 7
from trex.correct('shop', 'op-1', 'c-1', 'refund', -3.00, 5, 'ann', 'boss', 'r', 'e') c;

-- expect: TX404
select trex.correct('shop', 'op-2', 'c-2', 'refund', -3, 0, 'ann', 'boss', 'r', 'e');

-- expect: TX422
select trex.correct('shop', 'op-1', 'c-1', 'refund', -4, 1, 'ann', 'boss', 'r', 'e');

-- expect: TX412
select trex.correct('shop', 'op-1', 'c-2', 'refund', -3, 0, 'ann', 'boss', 'r', 'e');
select trex.correct('shop', 'op-1', 'c-2', 'refund', -3, 1, 'ann', 'boss', 'r', 'e', 10);

-- expect: TX423
select trex.correct('shop', 'op-1', 'c-2', 'refund', -8, 1, 'ann', 'boss', 'r', 'e');

-- expect: TX400
select trex.correct('shop', 'op-1', 'c-2', 'refund', 'NaN', 1, 'ann', 'boss', 'r', 'e');
select trex.correct('shop', 'op-1', 'c-2', 'refund', null, 1, 'ann', 'boss', 'r', 'e');
select trex.correct('shop', 'op-1', 'c-2', 'refund', -1, 1, 'ann', 'boss', 'r', '');

-- as: app
-- expect: 42501
select trex.correct('shop', 'op-1', 'c-2', 'refund', -1, 1, 'ann', 'boss', 'r', 'e');
