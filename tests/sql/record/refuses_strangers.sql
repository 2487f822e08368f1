-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.record('sealed', array[1], array[1], array['completed']);
select * from trex.record('nobody', array[1], array[1], array['completed']);

-- as: worker
-- expect: TX403
select * from trex.record('other', array[1], array[1], array['completed']);

-- as: app
-- expect: 42501
select * from trex.record('shop', array[1], array[1], array['completed']);

-- as: operator
-- expect: 42501
select * from trex.record('shop', array[1], array[1], array['completed']);

-- as: reader
-- expect: 42501
select * from trex.record('shop', array[1], array[1], array['completed']);

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.record('shop', array[1], array[1], array['completed']);
