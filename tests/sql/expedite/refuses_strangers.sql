-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.expedite('sealed', array[1], 'me', 'why');
select * from trex.expedite('nobody', array[1], 'me', 'why');

-- as: operator
-- expect: TX403
select * from trex.expedite('other', array[1], 'me', 'why');

-- as: app
-- expect: 42501
select * from trex.expedite('shop', array[1], 'me', 'why');

-- as: worker
-- expect: 42501
select * from trex.expedite('shop', array[1], 'me', 'why');

-- as: reader
-- expect: 42501
select * from trex.expedite('shop', array[1], 'me', 'why');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.expedite('shop', array[1], 'me', 'why');
