-- criterion: ac-0037
-- expect: no rows
select c.oid::regclass, a.grantee, a.privilege_type
from pg_class c
cross join lateral aclexplode(coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's'::"char" else 'r' end, c.relowner))) a
where c.relnamespace = 'trex'::regnamespace and c.relkind in ('r', 'v', 'm', 'S', 'p', 'f') and a.grantee <> c.relowner;

-- expect: no rows
select t.attrelid::regclass, t.attname
from pg_attribute t
join pg_class c on c.oid = t.attrelid
where c.relnamespace = 'trex'::regnamespace and t.attacl is not null;

-- as: other
-- expect: 42501
select * from trex.message;
insert into trex.listener values ('shop', 'w', now());
update trex.instance set paused = true;
delete from trex.delivery;
select nextval('trex.fence_seq');
create table trex.mine (n integer);
