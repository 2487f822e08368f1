-- The bytes as they came, for a handler that holds the claim, and for whoever has to prove what was
-- sent.
create or replace function trex.inbox_event(
    p_instance_key text,
    p_message_id bigint
)
returns trex.inbox_raw
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_raw trex.inbox_raw;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_message_id is null or p_message_id < 1 then
        perform trex._raise('TX400', 'message_id: from 1');
    end if;
    perform trex._enter(p_instance_key);
    select
        e.message_id, e.provider::text, e.account::text, e.event_id::text, e.event_type::text, e.object_id::text, e.raw,
        e.key_id::text, e.received_at
    into v_raw
    from trex.inbox_event e
    where e.instance_key = p_instance_key and e.message_id = p_message_id;
    if not found then
        perform trex._raise('TX404', 'no such event in this instance');
    end if;
    return v_raw;
end
$$;

alter function trex.inbox_event(text, bigint) owner to trex_owner;
revoke all on function trex.inbox_event(text, bigint) from public;
grant execute on function trex.inbox_event(text, bigint) to trex_worker, trex_operator;

comment on function trex.inbox_event(text, bigint) is
'One received event with its raw bytes.
Arguments:
  p_message_id: of the inbox message
Returns: one inbox_raw
Errors: TX400; TX403; TX404 no such event here
Locks: none
Idempotent: yes';
