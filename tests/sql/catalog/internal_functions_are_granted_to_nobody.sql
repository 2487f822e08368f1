-- criterion: ac-0037
-- expect: no rows
select p.oid::regprocedure, a.grantee::regrole
from pg_proc p
cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
where p.pronamespace = 'trex'::regnamespace and p.proname ~ '^_' and a.grantee <> p.proowner
    and p.oid <> 'trex._now()'::regprocedure;

-- as: other
-- expect: 42501
select trex._epoch();
select trex._enter('shop');
