-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.listen('sealed', 'w', '1 s');
select * from trex.listen('nobody', 'w', '1 s');

-- as: worker
-- expect: TX403
select * from trex.listen('other', 'w', '1 s');

-- as: app
-- expect: 42501
select * from trex.listen('shop', 'w', '1 s');

-- as: operator
-- expect: 42501
select * from trex.listen('shop', 'w', '1 s');

-- as: reader
-- expect: 42501
select * from trex.listen('shop', 'w', '1 s');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.listen('shop', 'w', '1 s');
