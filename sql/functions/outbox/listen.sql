-- Enqueue notifies only while a listener waits. The session itself must LISTEN on the channel,
-- commit, and claim once more before it waits: a message committed in between sent no
-- notification.
create or replace function trex.listen(
    p_instance_key text,
    p_worker text,
    p_duration interval
)
returns text
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_worker) is not true then
        perform trex._raise('TX400', 'worker: a key');
    end if;
    if trex._is_duration(p_duration, '100 milliseconds', '1 hour') is not true then
        perform trex._raise('TX400', 'duration: from 100 milliseconds to 1 hour');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    v_now := trex._now();
    insert into trex.listener as l (instance_key, worker, until)
    values (p_instance_key, p_worker, v_now + trex._span(p_duration))
    on conflict (instance_key, worker) do update set until = excluded.until;
    -- Workers that are gone: their names are random, nobody else would take these rows away.
    delete from trex.listener l
    where l.instance_key = p_instance_key and l.worker = any(array(
        select g.worker
        from trex.listener g
        where g.instance_key = p_instance_key and g.until < v_now - interval '1 hour'
        limit 100
        for update skip locked
    ));
    return trex._channel(p_instance_key);
end
$$;

alter function trex.listen(text, text, interval) owner to trex_owner;
revoke all on function trex.listen(text, text, interval) from public;
grant execute on function trex.listen(text, text, interval) to trex_worker;

comment on function trex.listen(text, text, interval) is
'Says that this worker waits idle: until then, enqueue sends a notification when it commits.
Arguments:
  p_worker: a key; p_duration: 100 ms to 1 hour
Returns: the channel to LISTEN on
Errors: TX400; TX503; TX403
Locks: the worker''s own row; rows that ended over an hour ago go (skip locked)
Idempotent: yes; a new call sets a new end';
