-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.list_parked('sealed');
select * from trex.list_parked('nobody');

-- as: app
-- expect: TX403
select * from trex.list_parked('other');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.list_parked('shop');
