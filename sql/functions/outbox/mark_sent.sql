-- For sinks that can't repeat: committed before the call, so that after a crash everybody knows
-- that the call may have been made. Only under a lease that still runs: with a lapsed one
-- somebody else may be calling already.
create or replace function trex.mark_sent(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_on_lost text default 'raise'
)
returns trex.recorded
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
    v_sent bigint;
    v_lease timestamptz;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_claimed(p_message_id, p_fence);
    if p_on_lost is null or p_on_lost not in ('raise', 'report') then
        perform trex._raise('TX400', 'on_lost: raise or report');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);

    select d.sent_fence, d.lease_until into v_sent, v_lease
    from trex.delivery d
    where d.instance_key = p_instance_key and d.message_id = p_message_id and d.fence = p_fence
        and d.lease_until is not null
    for no key update;
    -- After the lock: a lease that ended while this waited is over.
    v_now := trex._now();
    if v_lease > v_now then
        if v_sent = p_fence then
            return row(p_message_id, p_fence, 'already_recorded', 'leased', false, null)::trex.recorded;
        end if;
        update trex.delivery d set sent_fence = p_fence
        where d.instance_key = p_instance_key and d.message_id = p_message_id;
        return row(p_message_id, p_fence, 'recorded', 'leased', false, null)::trex.recorded;
    end if;
    return trex._tell_one(p_instance_key, p_message_id, p_fence, p_on_lost, v_now);
end
$$;

alter function trex.mark_sent(text, bigint, bigint, text) owner to trex_owner;
revoke all on function trex.mark_sent(text, bigint, bigint, text) from public;
grant execute on function trex.mark_sent(text, bigint, bigint, text) to trex_worker;

comment on function trex.mark_sent(text, bigint, bigint, text) is
'Writes down that the sink is about to be called under this claim. Commit it before the call.
Arguments:
  p_message_id, p_fence: as claimed
  p_on_lost: raise (default), or report: the refusal is returned as data
Returns: one recorded: status recorded, or already_recorded when this claim was marked before
Errors: TX400; TX503; TX403; TX404 no such message here; TX409 claim lost, or its lease ended; TX410
  this claim has an end
Locks: the delivery row
Idempotent: yes, while the lease runs';
