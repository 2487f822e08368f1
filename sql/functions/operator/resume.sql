-- Undoes pause, and wakes the workers that wait.
create or replace function trex.resume(p_instance_key text, p_actor text, p_reason text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_instance trex.instance;
    v_now timestamptz;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_act(p_actor, p_reason);
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    v_now := trex._now();
    update trex.instance i set paused = false where i.instance_key = p_instance_key and i.paused = true;
    if not found then
        return false;
    end if;
    perform trex._audit(p_instance_key, 'resume', null, p_actor, p_reason, '{}', v_now);
    perform trex._wake(v_instance, v_now);
    return true;
end
$$;

alter function trex.resume(text, text, text) owner to trex_owner;
revoke all on function trex.resume(text, text, text) from public;
grant execute on function trex.resume(text, text, text) to trex_operator;

comment on function trex.resume(text, text, text) is
'Lets a paused instance be claimed from again.
Arguments:
  p_actor: a key; p_reason: 1 to 1000 characters
Returns: true when it was resumed now, false when it wasn''t paused
Errors: TX400; TX503; TX403
Locks: the instance
Idempotent: yes';
