-- criterion: ac-0036 ac-0037
insert into trex.quarantine (source, source_key, topic, idempotency_key, payload) values ('old', '1', 't', 'k', '{}');

-- as: app
-- expect: 42501
select trex.adopt('shop', 1, 'seen', 'dba', 'why');

-- as: worker
-- expect: 42501
select trex.adopt('shop', 1, 'seen', 'dba', 'why');

-- as: operator
-- expect: 42501
select trex.adopt('shop', 1, 'seen', 'dba', 'why');

-- as: reader
-- expect: 42501
select trex.adopt('shop', 1, 'seen', 'dba', 'why');

-- as: other
-- expect: 42501
select trex.adopt('shop', 1, 'seen', 'dba', 'why');

-- Bound to the target.
-- expect: TX403
select trex.adopt('sealed', 1, 'seen', 'dba', 'why');
select trex.adopt('nobody', 1, 'seen', 'dba', 'why');

select q.adopted_at is null from trex.quarantine q;
