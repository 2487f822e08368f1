-- The provider ended something that was paid: a correction of the grant, and the end of the right.
-- Nothing granted yet is nothing to end; a payment event that comes later finds out by asking.
create or replace function trex.apply_provider_cancel(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_account text,
    p_invoice_id text,
    p_cause text,
    p_evidence text
)
returns trex.finalized
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_instance trex.instance;
    v_now timestamptz;
    v_id text;
    v_reference text;
    v_held text;
    v_status text := 'replayed';
    v_state text;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_claimed(p_message_id, p_fence);
    if trex._is_key(p_account) is not true then
        perform trex._raise('TX400', 'account: a key');
    end if;
    if trex._is_key(p_invoice_id) is not true then
        perform trex._raise('TX400', 'invoice_id: a key');
    end if;
    if p_cause is null or p_cause not in ('cancelled', 'expired', 'revoked') then
        perform trex._raise('TX400', 'cause: cancelled, expired or revoked');
    end if;
    if trex._is_text(p_evidence) is not true then
        perform trex._raise('TX400', 'evidence: 1 to 1000 characters, no control characters, not blank');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    v_now := trex._now();
    v_id := trex._grant_id(p_account, p_invoice_id);
    v_reference := p_cause || ':' || v_id;
    v_held := trex._hold_event(
        p_instance_key, p_message_id, p_fence, p_account, v_reference, v_now
    );
    if v_held is null then
        perform trex._lock_invoice(p_instance_key, v_id);
        v_status := trex._end_right(
            p_instance_key, v_id, p_cause || ':' || p_message_id, p_cause, 0,
            (
                select e.provider from trex.inbox_event e
                where e.instance_key = p_instance_key and e.message_id = p_message_id
            ), 'provider', p_cause, p_evidence, v_now
        );
        perform trex._finish_event(v_instance, p_message_id, p_fence, v_reference, v_now);
    end if;
    select e.state into v_state
    from trex.entitlement e
    where e.instance_key = p_instance_key and e.entitlement_id = v_id;
    return row(
        case v_status when 'applied' then 'ended' else v_status end,
        case when v_state is not null then v_id end, case when v_state is not null then v_id end,
        case when v_state is not null then v_id end, v_state, 'delivered'
    )::trex.finalized;
end
$$;

alter function trex.apply_provider_cancel(
    text, bigint, bigint, text, text, text, text
) owner to trex_owner;
revoke all on function trex.apply_provider_cancel(
    text, bigint, bigint, text, text, text, text
) from public;
grant execute on function trex.apply_provider_cancel(
    text, bigint, bigint, text, text, text, text
) to trex_worker;

comment on function trex.apply_provider_cancel(text, bigint, bigint, text, text, text, text) is
'Ends the right of one invoice because the provider did, and completes the event that said so.
Arguments:
  p_message_id, p_fence: the claimed inbox message; p_account: of its endpoint; p_invoice_id:
      what the provider ended
  p_cause: cancelled, expired or revoked; p_evidence: what the provider answered when asked, 1 to
      1000 characters
Returns: one finalized: ended; already_ended; no_grant (completed, nothing to end); replayed
  (this claim did this before)
Errors: TX400; TX503; TX403; TX404 no such event of this account; TX409 claim lost; TX410 this
  claim has another end: one call ends the event
Locks: the delivery row, the invoice''s lane, the operation row, the entitlement row, then the receipt
Idempotent: yes, by the message';
