-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.status('sealed', 1);
select * from trex.status('nobody', 1);

-- as: app
-- expect: TX403
select * from trex.status('other', 1);

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.status('shop', 1);
