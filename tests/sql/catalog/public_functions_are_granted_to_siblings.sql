-- criterion: ac-0037
-- Each to somebody, only to our roles, and without the right to pass it on.
-- expect: no rows
select p.oid::regprocedure
from pg_proc p
where p.pronamespace = 'trex'::regnamespace and p.proname !~ '^_' and not exists (
    select from aclexplode(p.proacl) a where a.grantee <> p.proowner
);

-- expect: no rows
select p.oid::regprocedure, a.grantee
from pg_proc p
cross join lateral aclexplode(p.proacl) a
where p.pronamespace = 'trex'::regnamespace and a.grantee <> p.proowner and (
    a.is_grantable
    or a.grantee not in (
        'trex_app'::regrole, 'trex_worker'::regrole, 'trex_operator'::regrole, 'trex_reader'::regrole,
        'trex_adopter'::regrole
    )
);

-- The adopter may adopt, and nothing else.
select array_agg(p.proname) = array['adopt'::name]
from pg_proc p
cross join lateral aclexplode(p.proacl) a
where p.pronamespace = 'trex'::regnamespace and a.grantee = 'trex_adopter'::regrole;
