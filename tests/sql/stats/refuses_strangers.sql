-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.stats('sealed');
select * from trex.stats('nobody');

-- as: app
-- expect: TX403
select * from trex.stats('other');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.stats('shop');
