-- expect: no rows
select p.proname from pg_proc p where p.pronamespace = 'trex'::regnamespace group by p.proname having count(*) > 1;

-- Parameters have their prefix, so no name means both a column and an argument.
-- expect: no rows
select p.oid::regprocedure, a.name
from pg_proc p
cross join unnest(p.proargnames, p.proargmodes) a (name, mode)
where p.pronamespace = 'trex'::regnamespace and coalesce(a.mode, 'i') in ('i', 'b') and a.name !~ '^p_';

-- No dynamic SQL.
-- expect: no rows
select p.oid::regprocedure from pg_proc p where p.pronamespace = 'trex'::regnamespace and p.prosrc ~* '\mexecute\M';
