-- criterion: ac-0037
-- expect: no rows
select p.oid::regprocedure, a.grantee
from pg_proc p
cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
where p.pronamespace = 'trex'::regnamespace and a.grantee = 0 and p.oid <> 'trex._now()'::regprocedure;

-- A function made later starts without it as well.
set role trex_owner;

create function trex.made_later() returns integer language sql as 'select 1';

reset role;

-- as: other
-- expect: 42501
select trex.made_later();
