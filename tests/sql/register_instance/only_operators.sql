-- criterion: ac-0037
-- as: app
-- expect: 42501
select trex.register_instance('mine', 'me', 'why');

-- as: worker
-- expect: 42501
select trex.register_instance('mine', 'me', 'why');

-- as: reader
-- expect: 42501
select trex.register_instance('mine', 'me', 'why');

-- No binding is needed, and none is made.
-- as: operator
select trex.register_instance('mine', 'me', 'why') = 'registered';

-- as: operator
-- expect: TX403
select trex.policy('mine');
