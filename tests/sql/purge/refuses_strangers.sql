-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.purge('sealed', '0', 'me', 'why');
select * from trex.purge('nobody', '0', 'me', 'why');

-- as: operator
-- expect: TX403
select * from trex.purge('other', '0', 'me', 'why');

-- as: app
-- expect: 42501
select * from trex.purge('shop', '0', 'me', 'why');

-- as: worker
-- expect: 42501
select * from trex.purge('shop', '0', 'me', 'why');

-- as: reader
-- expect: 42501
select * from trex.purge('shop', '0', 'me', 'why');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.purge('shop', '0', 'me', 'why');
