-- The only way out of unknown and conflict, and of doubt about a message refused for good:
-- somebody looked at the ledger and says what is there, with evidence. A claim can't be open here,
-- so nothing a worker reports can cross it. Delivered, absent and abandon are for every parked
-- message: it may be there against all that trex knows, by hand or by mistake; and one that nobody
-- will ever send would hold up its ordering key for ever. Abandon says what is wanted, not what
-- the ledger has, so it ends no doubt; absent says both.
create or replace function trex.resolve(
    p_instance_key text,
    p_message_id bigint,
    p_resolution text,
    p_evidence text,
    p_actor text,
    p_reason text,
    p_reference text default null
)
returns trex.recorded
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_instance trex.instance;
    v_now timestamptz;
    v_fence bigint;
    v_row trex.delivery;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_message_id is null or p_message_id < 1 then
        perform trex._raise('TX400', 'message_id: from 1');
    end if;
    if p_resolution is null or p_resolution not in ('delivered', 'resend', 'absent', 'abandon') then
        perform trex._raise('TX400', 'resolution: delivered, resend, absent or abandon');
    end if;
    if trex._is_text(p_evidence) is not true then
        perform trex._raise('TX400', 'evidence: 1 to 1000 characters, no control characters, not blank');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if p_reference is not null and (trex._is_key(p_reference) is not true or p_resolution <> 'delivered') then
        perform trex._raise('TX400', 'reference: a key, for delivered');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    perform trex._lock_keys(p_instance_key, array[p_message_id]);
    v_now := trex._now();

    select d.* into v_row
    from trex.delivery d
    where d.instance_key = p_instance_key and d.message_id = p_message_id;
    if not found then
        select r.fence into v_fence
        from trex.receipt r
        where r.instance_key = p_instance_key and r.message_id = p_message_id;
        if not found then
            perform trex._raise('TX404', 'no such message in this instance');
        end if;
        if p_resolution <> 'delivered' then
            perform trex._raise('TX410', 'it was delivered');
        end if;
        return row(p_message_id, v_fence, 'already_recorded', 'delivered', false, null)::trex.recorded;
    end if;
    if v_row.abandoned and (p_resolution = 'abandon' or (p_resolution = 'absent' and not v_row.uncertain)) then
        return row(p_message_id, v_row.fence, 'already_recorded', 'permanent', false, null)::trex.recorded;
    end if;
    if v_row.parked is null
        or (
            v_row.parked not in ('unknown', 'conflict') and not v_row.uncertain
            and p_resolution = 'resend'
        )
    then
        perform trex._raise('TX423', 'only a parked message; for resend one in doubt: unknown, conflict, uncertain');
    end if;

    perform trex._audit(
        p_instance_key, 'resolve', p_message_id, p_actor, p_reason,
        jsonb_build_object('resolution', p_resolution, 'evidence', p_evidence, 'parked', v_row.parked), v_now
    );
    if p_resolution = 'resend' then
        update trex.delivery d
        set parked = null, abandoned = false, deferred_until = v_now, tries = 0, uncertain = false
        where d.instance_key = p_instance_key and d.message_id = p_message_id;
        perform trex._wake(v_instance, v_now);
        return row(p_message_id, v_row.fence, 'recorded', 'ready', false, v_now)::trex.recorded;
    end if;
    if p_resolution in ('absent', 'abandon') then
        update trex.delivery d
        set parked = 'permanent', abandoned = true, uncertain = d.uncertain and p_resolution = 'abandon'
        where d.instance_key = p_instance_key and d.message_id = p_message_id;
        perform trex._open_skips(p_instance_key, array[p_message_id], array['permanent'], array['operator'], v_now);
        perform trex._free_keys(
            p_instance_key, array[v_row.box], array[v_row.ordering_key], array[p_message_id], v_now, true
        );
        return row(p_message_id, v_row.fence, 'recorded', 'permanent', false, null)::trex.recorded;
    end if;
    with gone as (
        delete from trex.delivery d
        where d.instance_key = p_instance_key and d.message_id = p_message_id
    )
    insert into trex.receipt (
        instance_key, message_id, fence, attempt, duplicate, late, confirmed_by, reference, delivered_at
    )
    values (
        p_instance_key, p_message_id, v_row.fence, v_row.attempts, false, false, 'operator', p_reference, v_now
    );
    update trex.ledger_skip s
    set resolved_at = v_now, resolved_fence = v_row.fence
    where s.instance_key = p_instance_key and s.message_id = p_message_id and s.resolved_at is null;
    perform trex._free_keys(
        p_instance_key, array[v_row.box], array[v_row.ordering_key], array[p_message_id], v_now, true
    );
    return row(p_message_id, v_row.fence, 'recorded', 'delivered', false, null)::trex.recorded;
end
$$;

alter function trex.resolve(text, bigint, text, text, text, text, text) owner to trex_owner;
revoke all on function trex.resolve(text, bigint, text, text, text, text, text) from public;
grant execute on function trex.resolve(text, bigint, text, text, text, text, text) to trex_operator;

comment on function trex.resolve(text, bigint, text, text, text, text, text) is
'Says what became of a parked message, once somebody has looked.
Arguments:
  p_message_id: parked; for resend as unknown or conflict, or uncertain
  p_resolution: delivered, the ledger has it; resend, the ledger doesn''t have it and shall get it,
    due now with a fresh allowance; absent, the ledger doesn''t have it and shall not get it; abandon,
    it shall not get it, and what the ledger has stays as uncertain as it was, so the others can
    still follow. Both park it as permanent, and its ordering key goes on without it, whatever
    on_parked says
  p_evidence: what was seen, 1 to 1000 characters; p_actor: a key; p_reason: 1 to 1000 characters
  p_reference: the ledger''s own reference, a key, only for delivered
Returns: one recorded: status recorded, or already_recorded when that was said before; the state
  now
Errors: TX400; TX503; TX403; TX404 no such message here; TX410 it was delivered; TX423 it isn''t
  parked, or resend without doubt about it (redrive)
Locks: the lane of its ordering key, then the live rows of that key and the message, in id order
Idempotent: yes, but a repeated resend answers TX423';
