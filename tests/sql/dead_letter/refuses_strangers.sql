-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.dead_letter('sealed', 1, 1);
select * from trex.dead_letter('nobody', 1, 1);

-- as: worker
-- expect: TX403
select * from trex.dead_letter('other', 1, 1);

-- as: app
-- expect: 42501
select * from trex.dead_letter('shop', 1, 1);

-- as: operator
-- expect: 42501
select * from trex.dead_letter('shop', 1, 1);

-- as: reader
-- expect: 42501
select * from trex.dead_letter('shop', 1, 1);

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.dead_letter('shop', 1, 1);
