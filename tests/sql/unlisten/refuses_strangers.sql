-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.unlisten('sealed', 'w');
select * from trex.unlisten('nobody', 'w');

-- as: worker
-- expect: TX403
select * from trex.unlisten('other', 'w');

-- as: app
-- expect: 42501
select * from trex.unlisten('shop', 'w');

-- as: operator
-- expect: 42501
select * from trex.unlisten('shop', 'w');

-- as: reader
-- expect: 42501
select * from trex.unlisten('shop', 'w');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.unlisten('shop', 'w');
