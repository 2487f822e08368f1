-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.enqueue_many('sealed', array['t'], array['k'], array['{}'::jsonb]);
select * from trex.enqueue_many('nobody', array['t'], array['k'], array['{}'::jsonb]);

-- as: app
-- expect: TX403
select * from trex.enqueue_many('other', array['t'], array['k'], array['{}'::jsonb]);

-- as: worker
-- expect: 42501
select * from trex.enqueue_many('shop', array['t'], array['k'], array['{}'::jsonb]);

-- as: operator
-- expect: 42501
select * from trex.enqueue_many('shop', array['t'], array['k'], array['{}'::jsonb]);

-- as: reader
-- expect: 42501
select * from trex.enqueue_many('shop', array['t'], array['k'], array['{}'::jsonb]);

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.enqueue_many('shop', array['t'], array['k'], array['{}'::jsonb]);
