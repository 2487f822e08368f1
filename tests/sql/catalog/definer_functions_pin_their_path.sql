-- criterion: ac-0037
select count(*) > 40 from pg_proc p where p.pronamespace = 'trex'::regnamespace and p.prosecdef;

-- expect: no rows
select p.oid::regprocedure
from pg_proc p
where p.pronamespace = 'trex'::regnamespace and p.prosecdef
    and 'search_path=pg_catalog, pg_temp' <> all(coalesce(p.proconfig, '{}'));

-- Exactly the public functions are definers; what is internal runs as its caller.
-- expect: no rows
select p.oid::regprocedure
from pg_proc p
where p.pronamespace = 'trex'::regnamespace and p.prosecdef <> (p.proname !~ '^_');
