-- expect: no rows
select i.indexrelid::regclass
from pg_index i
join pg_class c on c.oid = i.indrelid
left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
where c.relnamespace = 'trex'::regnamespace and c.relkind = 'r' and a.attname is distinct from 'instance_key'
    and pg_get_indexdef(i.indexrelid, 1, false) !~ '^[(]*instance_key'
    and c.relname not in (
        'schema_migration', 'function_release', 'function_digest', 'epoch', 'currency', 'quarantine', 'audit'
    );

-- No foreign keys on the tables that every message goes through.
-- expect: no rows
select k.conrelid::regclass
from pg_constraint k
where k.contype = 'f' and k.conrelid::regclass::text in ('trex.message', 'trex.delivery', 'trex.receipt', 'trex.outcome');
