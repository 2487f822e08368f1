-- Money that went back: a correction of the grant by its amount. When nothing is left of it, the
-- right ends. Before the grant it is only stored, and finalize_paid applies it.
create or replace function trex.apply_refund(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_account text,
    p_invoice_id text,
    p_refund_id text,
    p_amount numeric,
    p_currency text,
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
    v_exponent integer;
    v_now timestamptz;
    v_id text;
    v_refund_id text;
    v_held text;
    v_status text;
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
    if trex._is_key(p_refund_id) is not true then
        perform trex._raise('TX400', 'refund_id: a key');
    end if;
    select c.exponent into v_exponent from trex.currency c where c.currency = p_currency;
    if p_amount is null or p_amount <= 0 or trex._is_amount(p_amount, v_exponent) is not true
        or trex._is_amount(p_amount, 18) is not true
    then
        perform trex._raise('TX400', 'amount: above 0, in the decimals of a registered currency');
    end if;
    if trex._is_text(p_evidence) is not true then
        perform trex._raise('TX400', 'evidence: 1 to 1000 characters, no control characters, not blank');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    v_now := trex._now();
    v_id := trex._grant_id(p_account, p_invoice_id);
    v_refund_id := trex._refund_id(p_account, p_refund_id);
    v_held := trex._hold_event(
        p_instance_key, p_message_id, p_fence, p_account, v_refund_id, v_now
    );
    if v_held is null then
        perform trex._lock_invoice(p_instance_key, v_id);
        insert into trex.refund (
            instance_key, account, refund_id, invoice_id, amount, currency, message_id, refunded_at
        )
        values (
            p_instance_key, p_account, p_refund_id, p_invoice_id, round(p_amount, v_exponent), p_currency, p_message_id,
            v_now
        )
        on conflict (instance_key, account, refund_id) do nothing;
    end if;
    if not exists (
        select 1
        from trex.refund r
        where r.instance_key = p_instance_key and r.account = p_account and r.refund_id = p_refund_id
            and r.invoice_id = p_invoice_id and r.amount = p_amount and r.currency = p_currency
    ) then
        if v_held is not null then
            perform trex._refuse('ended_otherwise');
        end if;
        perform trex._raise('TX422', 'this refund id has another content');
    end if;
    if v_held is null then
        if exists (
            select 1
            from trex.operation o
            where o.instance_key = p_instance_key and o.operation_id = v_id
                and o.arguments ->> 'currency' <> p_currency
        ) then
            perform trex._raise('TX423', 'another currency than what was paid');
        end if;
        v_status := trex._end_right(
            p_instance_key, v_id, v_refund_id, 'refunded', -p_amount,
            (
                select e.provider from trex.inbox_event e
                where e.instance_key = p_instance_key and e.message_id = p_message_id
            ), 'provider', 'refunded', p_evidence, v_now
        );
        perform trex._finish_event(v_instance, p_message_id, p_fence, v_refund_id, v_now);
    end if;
    select e.state into v_state
    from trex.entitlement e
    where e.instance_key = p_instance_key and e.entitlement_id = v_id;
    return row(
        case
            when v_held is not null then 'replayed'
            when v_status = 'applied' then 'refunded'
            when v_status = 'replayed' then 'already_refunded'
            else v_status
        end,
        case when v_state is not null then v_id end, case when v_state is not null then v_id end,
        case when v_state is not null then v_id end, v_state, 'delivered'
    )::trex.finalized;
end
$$;

alter function trex.apply_refund(
    text, bigint, bigint, text, text, text, numeric, text, text
) owner to trex_owner;
revoke all on function trex.apply_refund(
    text, bigint, bigint, text, text, text, numeric, text, text
) from public;
grant execute on function trex.apply_refund(
    text, bigint, bigint, text, text, text, numeric, text, text
) to trex_worker;

comment on function trex.apply_refund(
    text, bigint, bigint, text, text, text, numeric, text, text
) is
'Corrects the grant of one invoice by money that went back, and completes the event that said so.
Arguments:
  p_message_id, p_fence: the claimed inbox message; p_account: of its endpoint; p_invoice_id:
      what was paid back
  p_refund_id: the provider''s, a key; p_amount, p_currency: above 0; p_evidence: what the
      provider answered when asked
Returns: one finalized: refunded; already_refunded (this refund came before); no_grant (the
  refund is stored, and will be applied by the grant);
  replayed (this claim did this before); the right is ended, state refunded, when nothing is left
      of what was paid
Errors: TX400; TX503; TX403; TX404 no such event of this account; TX409 claim lost; TX410 this
  claim has another end: one call ends the event; TX422 the refund
  id has another content; TX423 more than is left, or another currency
Locks: the delivery row, the invoice''s lane, the refund''s index entry, the operation row, the entitlement row, then
  the receipt
Idempotent: yes, by account and refund; and by the claim';
