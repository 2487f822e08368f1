-- criterion: ac-0035
select trex.bind('sealed', 'trex_test_other', 'me', 'why');
select not trex.bind('sealed', 'trex_test_other', 'me', 'why');

-- as: other
select p.instance_key = 'sealed' from trex.policy('sealed') p;

select a.action = 'bind', a.instance_key = 'sealed', a.detail = '{"role_name": "trex_test_other"}', a.role_name = session_user
from trex.audit a
where a.instance_key = 'sealed' and a.action = 'bind';

-- By exact name: being a member of the role is not enough, even for a superuser.
select trex.bind('sealed', 'trex_app', 'me', 'why');

-- as: app
-- expect: TX403
select trex.policy('sealed');

-- expect: TX403
select trex.policy('sealed');

-- With SET ROLE the role itself calls.
set role trex_app;

select p.bound_roles = array['trex_app', 'trex_test_other'] from trex.policy('sealed') p;

reset role;
