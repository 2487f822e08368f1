-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.fail('sealed', 1, 1);
select * from trex.fail('nobody', 1, 1);

-- as: worker
-- expect: TX403
select * from trex.fail('other', 1, 1);

-- as: app
-- expect: 42501
select * from trex.fail('shop', 1, 1);

-- as: operator
-- expect: 42501
select * from trex.fail('shop', 1, 1);

-- as: reader
-- expect: 42501
select * from trex.fail('shop', 1, 1);

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.fail('shop', 1, 1);
