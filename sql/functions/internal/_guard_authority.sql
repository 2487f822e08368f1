-- What the tables of rights refuse, whoever writes to them.
create or replace function trex._guard_authority()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trex._raise('TX902', 'a right ends once, a capability is consumed once, a count rises by one');
    return null;
end
$$;
