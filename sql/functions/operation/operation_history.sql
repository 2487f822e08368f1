-- The original, its corrections and the balance, together.
create or replace function trex.operation_history(
    p_instance_key text,
    p_operation_id text
)
returns setof trex.operation_line
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_operation_id) is not true then
        perform trex._raise('TX400', 'operation_id: a key');
    end if;
    perform trex._enter(p_instance_key);
    if not exists (
        select 1 from trex.operation o
        where o.instance_key = p_instance_key and o.operation_id = p_operation_id
    ) then
        perform trex._raise('TX404', 'no such operation in this instance');
    end if;
    return query
    select
        0::bigint, o.kind::text, o.operation_id::text, o.amount, o.amount, o.to_state::text, o.version, o.actor::text,
        o.role::text, o.reason, null::text, o.done_at
    from trex.operation o
    where o.instance_key = p_instance_key and o.operation_id = p_operation_id;
    return query
    select
        a.version, a.kind::text, a.adjustment_id::text, a.amount, a.balance, a.on_state, a.on_version, a.actor::text,
        a.role::text, a.reason, a.evidence, a.adjusted_at
    from trex.adjustment a
    where a.instance_key = p_instance_key and a.operation_id = p_operation_id
    order by a.version;
end
$$;

alter function trex.operation_history(text, text) owner to trex_owner;
revoke all on function trex.operation_history(text, text) from public;
grant execute on function trex.operation_history(
    text, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.operation_history(text, text) is
'One operation and all its corrections, with the balance after each.
Arguments:
  p_operation_id: the operation
Returns: one operation_line each: version 0 is the original; state and entity_version are what it
  led to, or was corrected upon
Errors: TX400; TX403; TX404 no such operation here
Locks: none
Idempotent: yes';
