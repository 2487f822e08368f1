-- The single outcomes raise when the claim is lost, and their evidence is rolled back with the
-- caller's transaction. The client then reports it here, in a transaction of its own.
create or replace function trex.report_stale(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_result text
)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now timestamptz;
    v_status text;
    v_given boolean;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_claimed(p_message_id, p_fence);
    if p_result is null or p_result not in (
        'completed', 'duplicate', 'retry', 'unknown', 'conflict', 'permanent', 'dead_letter', 'released', 'postponed'
    ) then
        perform trex._raise('TX400', 'result: one of the list');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    v_now := trex._now();

    select t.status, t.given into v_status, v_given
    from trex._tell(p_instance_key, array[p_message_id], array[p_fence], array[p_result], '{}', v_now) t;
    if v_status = 'not_found' then
        perform trex._refuse(v_status);
    end if;
    -- An open claim isn't lost.
    if v_status <> 'claim_lost' or v_given is not true or exists (
        select 1 from trex.delivery d
        where d.instance_key = p_instance_key and d.message_id = p_message_id and d.fence = p_fence
            and d.lease_until is not null
    ) then
        return false;
    end if;
    insert into trex.stale_report (instance_key, message_id, fence, result, reported_at)
    values (p_instance_key, p_message_id, p_fence, p_result, v_now)
    on conflict (instance_key, message_id, fence, result) do nothing;
    return found;
end
$$;

alter function trex.report_stale(text, bigint, bigint, text) owner to trex_owner;
revoke all on function trex.report_stale(text, bigint, bigint, text) from public;
grant execute on function trex.report_stale(text, bigint, bigint, text) to trex_worker;

comment on function trex.report_stale(text, bigint, bigint, text) is
'Keeps the late result of a lost claim as evidence. Nothing else changes.
Arguments:
  p_message_id, p_fence: as claimed
  p_result: completed, duplicate, retry, unknown, conflict, permanent, dead_letter, released,
    postponed
Returns: true when it was stored now; false when it was stored before, the claim isn''t lost, or the
  fence was never given out
Errors: TX400; TX503; TX403; TX404 no such message here
Locks: none
Idempotent: yes';
