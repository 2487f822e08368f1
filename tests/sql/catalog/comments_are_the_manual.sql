-- expect: no rows
select p.oid::regprocedure, s.section
from pg_proc p
cross join unnest(array['Arguments', 'Returns', 'Errors', 'Locks', 'Idempotent']) s (section)
where p.pronamespace = 'trex'::regnamespace and p.proname !~ '^_'
    and (obj_description(p.oid, 'pg_proc') ~ ('\n' || s.section || ':')) is not true;

-- Every parameter is in it, but for those that say of themselves whose arguments they take.
-- expect: no rows
select p.oid::regprocedure, a.name
from pg_proc p
cross join unnest(p.proargnames) a (name)
where p.pronamespace = 'trex'::regnamespace and p.proname !~ '^_' and a.name ~ '^p_'
    and a.name <> 'p_instance_key' and p.proname not in ('enqueue_many', 'exchange')
    and position(a.name in obj_description(p.oid, 'pg_proc')) = 0;
