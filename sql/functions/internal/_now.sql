-- The only clock. Read once into a variable by each function; now() would give a claim late in a
-- transaction a lease that is already over. Tests replace this body in their own database; no
-- setting moves it.
create or replace function trex._now()
returns timestamptz
language sql
volatile
parallel safe
security invoker
as $$
select clock_timestamp()
$$;
