-- Rights whose time is over end as corrections, a bounded batch at a time; whoever runs this beside
-- us takes others.
create or replace function trex.expire_entitlements(
    p_instance_key text,
    p_actor text,
    p_reason text,
    p_limit integer default 1000
)
returns bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_now timestamptz;
    v_id text;
    v_count bigint := 0;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    v_now := trex._now();
    for v_id in
        select e.entitlement_id
        from trex.entitlement e
        where e.instance_key = p_instance_key and e.state = 'active' and e.valid_until <= v_now
        order by e.valid_until, e.entitlement_id
    loop
        exit when v_count = p_limit;
        -- The operation before the right, as everywhere.
        perform 1
        from trex.operation o
        where o.instance_key = p_instance_key and o.operation_id = v_id
        for no key update skip locked;
        continue when not found;
        v_count := v_count + (
            trex._end_right(
                p_instance_key, v_id, 'expired:' || v_id, 'expired', 0, p_actor, 'operator', p_reason, 'valid_until', v_now
            ) = 'applied'
        )::integer;
    end loop;
    return v_count;
end
$$;

alter function trex.expire_entitlements(text, text, text, integer) owner to trex_owner;
revoke all on function trex.expire_entitlements(text, text, text, integer) from public;
grant execute on function trex.expire_entitlements(
    text, text, text, integer
) to trex_worker, trex_operator;

comment on function trex.expire_entitlements(text, text, text, integer) is
'Ends the rights whose time is over.
Arguments:
  p_actor: a key; p_reason: 1 to 1000 characters; p_limit: 1 to 10000 rights at most, the oldest
      first
Returns: how many were ended
Errors: TX400; TX503; TX403
Locks: the operation rows, then the entitlement rows
Idempotent: yes';
