-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.enqueue('sealed', 't', 'k', '{}');
select * from trex.enqueue('nobody', 't', 'k', '{}');

-- as: app
-- expect: TX403
select * from trex.enqueue('other', 't', 'k', '{}');

-- as: worker
-- expect: 42501
select * from trex.enqueue('shop', 't', 'k', '{}');

-- as: operator
-- expect: 42501
select * from trex.enqueue('shop', 't', 'k', '{}');

-- as: reader
-- expect: 42501
select * from trex.enqueue('shop', 't', 'k', '{}');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.enqueue('shop', 't', 'k', '{}');
