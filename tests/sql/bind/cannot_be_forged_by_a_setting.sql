-- criterion: ac-0037
-- as: other
set session "trex.role" = 'trex_test_app';

-- as: other
-- expect: 42501
set role trex_test_app;

-- as: other
-- expect: 42501
set session authorization trex_test_app;

-- as: other
-- expect: TX403
select trex.policy('shop');
