-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.resolve('sealed', 1, 'resend', 'seen', 'me', 'why');
select * from trex.resolve('nobody', 1, 'resend', 'seen', 'me', 'why');

-- as: operator
-- expect: TX403
select * from trex.resolve('other', 1, 'resend', 'seen', 'me', 'why');

-- as: app
-- expect: 42501
select * from trex.resolve('shop', 1, 'resend', 'seen', 'me', 'why');

-- as: worker
-- expect: 42501
select * from trex.resolve('shop', 1, 'resend', 'seen', 'me', 'why');

-- as: reader
-- expect: 42501
select * from trex.resolve('shop', 1, 'resend', 'seen', 'me', 'why');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.resolve('shop', 1, 'resend', 'seen', 'me', 'why');
