-- A worker that has work again, or stops, saves every enqueue the notification.
create or replace function trex.unlisten(p_instance_key text, p_worker text)
returns void
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_worker) is not true then
        perform trex._raise('TX400', 'worker: a key');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    delete from trex.listener l where l.instance_key = p_instance_key and l.worker = p_worker;
end
$$;

alter function trex.unlisten(text, text) owner to trex_owner;
revoke all on function trex.unlisten(text, text) from public;
grant execute on function trex.unlisten(text, text) to trex_worker;

comment on function trex.unlisten(text, text) is
'Says that this worker no longer waits.
Arguments:
  p_worker: as given to listen
Returns: nothing
Errors: TX400; TX503; TX403
Locks: the worker''s own row
Idempotent: yes';
