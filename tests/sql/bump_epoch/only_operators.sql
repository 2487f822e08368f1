-- criterion: ac-0037
-- as: app
-- expect: 42501
select trex.bump_epoch('me', 'why');

-- as: worker
-- expect: 42501
select trex.bump_epoch('me', 'why');

-- as: reader
-- expect: 42501
select trex.bump_epoch('me', 'why');

-- as: operator
select trex.bump_epoch('me', 'why') is not null;
