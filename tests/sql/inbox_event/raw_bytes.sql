-- criterion: ac-0055
select r.status = 'received' from trex.receive('shop', 'p', 'a', 'e', 't', null, '\x00ff', '{}', 'key') r;

-- as: worker
select e.raw = '\x00ff', e.key_id = 'key', e.object_id is null from trex.inbox_event('shop', 1) e;

-- expect: TX404
select trex.inbox_event('shop', 2);
select trex.inbox_event('other', 1);

-- expect: TX400
select trex.inbox_event('shop', 0);

-- as: app
-- expect: 42501
select trex.inbox_event('shop', 1);
