-- criterion: ac-0037
select count(*) > 60 from pg_proc p where p.pronamespace = 'trex'::regnamespace and p.proowner = 'trex_owner'::regrole;

-- expect: no rows
select p.oid::regprocedure
from pg_proc p
where p.pronamespace = 'trex'::regnamespace and p.proowner <> 'trex_owner'::regrole;

-- expect: no rows
select c.oid::regclass from pg_class c where c.relnamespace = 'trex'::regnamespace and c.relowner <> 'trex_owner'::regrole;

-- expect: no rows
select t.oid::regtype from pg_type t where t.typnamespace = 'trex'::regnamespace and t.typowner <> 'trex_owner'::regrole;

-- The owner itself can't log in and is nothing special.
select not r.rolcanlogin, not r.rolsuper, not r.rolcreaterole, not r.rolcreatedb, not r.rolbypassrls
from pg_roles r
where r.rolname in ('trex_owner', 'trex_app', 'trex_worker', 'trex_operator', 'trex_reader', 'trex_adopter');
