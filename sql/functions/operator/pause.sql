-- Claim hands out nothing while an instance is paused. Everything else goes on: enqueue,
-- outcomes of open claims, reads.
create or replace function trex.pause(p_instance_key text, p_actor text, p_reason text)
returns boolean
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
    perform trex._check_act(p_actor, p_reason);
    perform trex._durable();
    perform trex._enter(p_instance_key);
    v_now := trex._now();
    update trex.instance i set paused = true where i.instance_key = p_instance_key and i.paused = false;
    if not found then
        return false;
    end if;
    perform trex._audit(p_instance_key, 'pause', null, p_actor, p_reason, '{}', v_now);
    return true;
end
$$;

alter function trex.pause(text, text, text) owner to trex_owner;
revoke all on function trex.pause(text, text, text) from public;
grant execute on function trex.pause(text, text, text) to trex_operator;

comment on function trex.pause(text, text, text) is
'Stops claims of an instance. Open claims may finish, enqueue goes on.
Arguments:
  p_actor: a key; p_reason: 1 to 1000 characters
Returns: true when it was paused now, false when it was before
Errors: TX400; TX503; TX403
Locks: the instance
Idempotent: yes';
