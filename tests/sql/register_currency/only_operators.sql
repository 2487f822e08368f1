-- criterion: ac-0037
-- as: app
-- expect: 42501
select trex.register_currency('XTS', 2, 'me', 'why');

-- as: worker
-- expect: 42501
select trex.register_currency('XTS', 2, 'me', 'why');

-- as: reader
-- expect: 42501
select trex.register_currency('XTS', 2, 'me', 'why');

-- as: operator
select trex.register_currency('XTS', 2, 'me', 'why') is not null;
