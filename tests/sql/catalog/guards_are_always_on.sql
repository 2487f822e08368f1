-- criterion: ac-0033
select count(*) >= 20 from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace = 'trex'::regnamespace and not t.tgisinternal;

-- expect: no rows
select t.tgrelid::regclass, t.tgname
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'trex'::regnamespace and not t.tgisinternal and t.tgenabled <> 'A';

-- AFTER, so that no other trigger can change the row behind the guard; only TRUNCATE can't be stopped afterwards.
-- expect: no rows
select t.tgrelid::regclass, t.tgname
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'trex'::regnamespace and not t.tgisinternal and (t.tgtype & 2 = 2) <> (t.tgtype & 32 = 32);

-- Facts are guarded against all three.
-- expect: no rows
select f.name, e.bit
from unnest(array['message', 'receipt', 'outcome', 'stale_report', 'audit', 'quarantine', 'delivery', 'ledger_snapshot', 'epoch']) f (name)
cross join unnest(array[8, 16, 32]) e (bit)
where not exists (
    select from pg_trigger t where t.tgrelid = ('trex.' || f.name)::regclass and t.tgtype & e.bit = e.bit and not t.tgisinternal
);
