-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.resume('sealed', 'me', 'why');
select * from trex.resume('nobody', 'me', 'why');

-- as: operator
-- expect: TX403
select * from trex.resume('other', 'me', 'why');

-- as: app
-- expect: 42501
select * from trex.resume('shop', 'me', 'why');

-- as: worker
-- expect: 42501
select * from trex.resume('shop', 'me', 'why');

-- as: reader
-- expect: 42501
select * from trex.resume('shop', 'me', 'why');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.resume('shop', 'me', 'why');
