-- The one way to a right. The provider was asked before this transaction, never inside it, and
-- p_status is its answer; the order, the operation, the right and the receipt of the event are one
-- transaction, or nothing. Two events of one invoice take their turn: the second waits for the
-- first to commit, then only completes its receipt. A refund that came before the grant was only
-- stored; it is applied here.
create or replace function trex.finalize_paid(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_account text,
    p_invoice_id text,
    p_order_id text,
    p_status text
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
    v_held text;
    v_order trex.order_invoice;
    v_arguments jsonb;
    v_digest bytea;
    v_refund trex.refund;
    v_granted boolean := false;
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
    if trex._is_key(p_order_id) is not true then
        perform trex._raise('TX400', 'order_id: a key');
    end if;
    if trex._is_slug(p_status) is not true then
        perform trex._raise('TX400', 'status: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    v_now := trex._now();
    v_id := trex._grant_id(p_account, p_invoice_id);
    v_held := trex._hold_event(p_instance_key, p_message_id, p_fence, p_account, v_id, v_now);
    if v_held is not null and not exists (
        select 1
        from trex.operation o
        where o.instance_key = p_instance_key and o.operation_id = v_id and o.arguments ->> 'order_id' = p_order_id
    ) then
        perform trex._refuse('ended_otherwise');
    end if;
    if v_held is null then
        perform trex._lock_invoice(p_instance_key, v_id);
        perform trex._note_payment(p_instance_key, p_account, p_invoice_id, p_status, p_message_id, v_now);
        select o.* into v_order
        from trex.order_invoice o
        where o.instance_key = p_instance_key and o.account = p_account and o.invoice_id = p_invoice_id
            and o.order_id = p_order_id;
        if p_status <> 'paid' or v_order.order_id is null then
            return row(
                case when p_status <> 'paid' then 'not_paid' else 'no_order' end, null, null, null, null, 'leased'
            )::trex.finalized;
        end if;
        v_arguments := jsonb_build_object(
            'account', p_account, 'invoice_id', p_invoice_id, 'order_id', p_order_id, 'currency', v_order.currency
        );
        v_digest := trex._operation_digest(
            'grant_entitlement', null, null, null, v_order.amount, v_arguments
        );
        insert into trex.operation (
            instance_key, operation_id, kind, actor, role, amount, arguments, digest, reason, message_id, done_at
        )
        select
            p_instance_key, v_id, 'grant_entitlement', e.provider, 'provider', trim_scale(v_order.amount), v_arguments,
            v_digest, 'paid', p_message_id, v_now
        from trex.inbox_event e
        where e.instance_key = p_instance_key and e.message_id = p_message_id
        on conflict (instance_key, operation_id) do nothing;
        v_granted := found;
        if v_granted then
            if exists (
                select 1
                from trex.refund r
                where r.instance_key = p_instance_key and r.account = p_account and r.invoice_id = p_invoice_id
                having sum(r.amount) > v_order.amount or bool_or(r.currency <> v_order.currency)
            ) then
                perform trex._raise('TX423', 'stored refunds of more than is paid, or in another currency');
            end if;
            insert into trex.entitlement (
                instance_key, entitlement_id, account, invoice_id, order_id, seller, buyer, item, state, version,
                granted_at, valid_until, changed_at
            )
            values (
                p_instance_key, v_id, p_account, p_invoice_id, p_order_id, v_order.seller, v_order.buyer, v_order.item,
                'active', 1, v_now, v_now + v_order.valid_for, v_now
            );
            insert into trex.licence (
                instance_key, licence_id, entitlement_id, account, seller, uses_max, devices_max, issued_at
            )
            values (
                p_instance_key, v_id, v_id, p_account, v_order.seller, v_order.uses_max, v_order.devices_max, v_now
            );
            perform trex._audit(
                p_instance_key, 'grant', p_message_id, e.provider, 'paid', jsonb_build_object('operation_id', v_id), v_now
            )
            from trex.inbox_event e
            where e.instance_key = p_instance_key and e.message_id = p_message_id;
            for v_refund in
                select r.*
                from trex.refund r
                where r.instance_key = p_instance_key and r.account = p_account and r.invoice_id = p_invoice_id
                order by r.refunded_at, r.refund_id collate "C"
            loop
                perform trex._end_right(
                    p_instance_key, v_id, trex._refund_id(p_account, v_refund.refund_id), 'refunded', -v_refund.amount,
                    e.provider, 'provider', 'refunded', 'message:' || v_refund.message_id, v_now
                )
                from trex.inbox_event e
                where e.instance_key = p_instance_key and e.message_id = p_message_id;
            end loop;
        elsif not exists (
            select 1
            from trex.operation o
            where o.instance_key = p_instance_key and o.operation_id = v_id and o.digest = v_digest
        ) then
            perform trex._raise('TX422', 'the id of this grant has another content');
        end if;
        perform trex._finish_event(v_instance, p_message_id, p_fence, v_id, v_now);
    end if;
    select e.state into v_state
    from trex.entitlement e
    where e.instance_key = p_instance_key and e.entitlement_id = v_id;
    return row(
        case when v_held is not null then 'replayed' when v_granted then 'granted' else 'already_granted' end,
        case when v_state is not null then v_id end, case when v_state is not null then v_id end,
        case when v_state is not null then v_id end, v_state, 'delivered'
    )::trex.finalized;
end
$$;

alter function trex.finalize_paid(text, bigint, bigint, text, text, text, text) owner to trex_owner;
revoke all on function trex.finalize_paid(text, bigint, bigint, text, text, text, text) from public;
grant execute on function trex.finalize_paid(
    text, bigint, bigint, text, text, text, text
) to trex_worker;

comment on function trex.finalize_paid(text, bigint, bigint, text, text, text, text) is
'Grants what was paid for, once, and completes the event that said so; or does neither.
Arguments:
  p_message_id, p_fence: the claimed inbox message; p_account: of its endpoint
  p_invoice_id, p_order_id: what the provider says it is for; p_status: what the provider
      answered when asked, paid or another word; draft and open after a stored paid are old answers
      and aren''t stored
Returns: one finalized: granted (and less what refunds stored before took: the right can be ended,
  state refunded; their evidence is message: and the id of their event); already_granted (completed
  without a second grant); replayed (this claim did this before);
  not_paid, no_order (nothing but the provider''s answer is stored, the claim is still held:
      postpone it); the right as it is now
Errors: TX400; TX503; TX403; TX404 no such event of this account; TX409 claim lost; TX410 this
  claim has another end: one call ends the event; TX422 the grant''s id has another content; TX423
  stored refunds of more than is paid, or in another currency
Locks: the delivery row, the invoice''s lane, the operation''s index entry, then the receipt
Idempotent: yes, by account and invoice; and by the claim';
