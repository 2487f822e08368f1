-- NOTIFY takes a database-wide lock at commit, so it is sent only while a worker of this
-- instance waits idle, never into a queue that fills up, and not at all where the instance has
-- it off (poolers, two-phase commit). A missed wake-up costs a poll.
create or replace function trex._wake(p_instance trex.instance, p_now timestamptz)
returns void
language plpgsql
volatile
security invoker
as $$
begin
    if p_instance.wake and exists (
        select 1 from trex.listener l where l.instance_key = p_instance.instance_key and l.until > p_now
    ) and pg_notification_queue_usage() <= 0.5 then
        perform pg_notify(trex._channel(p_instance.instance_key), '');
    end if;
end
$$;

create or replace function trex._channel(p_instance_key text)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select 'trex_' || md5(p_instance_key)
$$;
