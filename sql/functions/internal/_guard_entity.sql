-- What the table of entities refuses, whoever writes to it.
create or replace function trex._guard_entity()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trex._raise('TX902', 'an entity keeps its name and moves one version at a time');
    return null;
end
$$;
