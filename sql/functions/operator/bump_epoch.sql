-- For whoever knows that history may have been lost without a restart that claim could see,
-- after copying data back, for instance.
create or replace function trex.bump_epoch(p_actor text, p_reason text)
returns bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_epoch bigint;
begin
    perform trex._check_act(p_actor, p_reason);
    perform trex._durable();
    update trex.epoch e set epoch = e.epoch + 1 where e.epoch < 2097151 returning e.epoch into v_epoch;
    if not found then
        perform trex._raise('TX902', 'no epoch is left');
    end if;
    perform trex._audit(
        null, 'bump_epoch', null, p_actor, p_reason, jsonb_build_object('epoch', v_epoch), trex._now()
    );
    return v_epoch;
end
$$;

alter function trex.bump_epoch(text, text) owner to trex_owner;
revoke all on function trex.bump_epoch(text, text) from public;
grant execute on function trex.bump_epoch(text, text) to trex_operator;

comment on function trex.bump_epoch(text, text) is
'Raises the epoch of the whole database: every fence from now on is above every fence before.
Arguments:
  p_actor: a key; p_reason: 1 to 1000 characters
Returns: the new epoch
Errors: TX400; TX503; TX902 no epoch is left
Locks: the epoch
Idempotent: no; once more is harmless';
