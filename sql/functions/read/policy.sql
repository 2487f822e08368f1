-- What register_instance, bind and pause have set.
create or replace function trex.policy(p_instance_key text)
returns trex.instance_policy
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_instance trex.instance;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    v_instance := trex._enter(p_instance_key);
    return row(
        v_instance.instance_key, v_instance.paused, v_instance.max_attempts, v_instance.lease_default,
        v_instance.lease_max, v_instance.backoff_base, v_instance.backoff_cap, v_instance.on_parked,
        v_instance.wake, v_instance.payload_max,
        (
            select array_agg(b.role_name::text order by b.role_name::text collate "C")
            from trex.binding b
            where b.instance_key = p_instance_key
        ),
        v_instance.registered_at
    )::trex.instance_policy;
end
$$;

alter function trex.policy(text) owner to trex_owner;
revoke all on function trex.policy(text) from public;
grant execute on function trex.policy(text) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.policy(text) is
'The instance''s policy and the roles bound to it.
Arguments:
  p_instance_key: the owner
Returns: one instance_policy
Errors: TX400; TX403
Locks: none
Idempotent: yes';
