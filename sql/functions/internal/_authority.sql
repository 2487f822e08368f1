-- The business key of a grant: one for each invoice of an account, whatever events announce it.
create or replace function trex._grant_id(p_account text, p_invoice_id text)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select 'grant_entitlement:' || encode(sha256(convert_to(
    jsonb_build_array(p_account, p_invoice_id, 'grant_entitlement')::text, 'UTF8'
)), 'hex')
$$;

-- The correction that one refund is.
create or replace function trex._refund_id(p_account text, p_refund_id text)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select 'refund:' || encode(sha256(convert_to(jsonb_build_array(p_account, p_refund_id)::text, 'UTF8')), 'hex')
$$;

-- Whatever gives or ends the right of one invoice takes its turn here, else a refund could miss a
-- grant that isn't committed yet, and the grant the refund. The row is written, not only locked: a
-- transaction with an older snapshot fails to serialize instead of missing the other.
create or replace function trex._lock_invoice(p_instance_key text, p_operation_id text)
returns void
language sql
volatile
security invoker
as $$
insert into trex.lane as l (instance_key, box, ordering_key)
values (p_instance_key, 'inbox', p_operation_id)
on conflict (instance_key, box, ordering_key) do update set ordering_key = excluded.ordering_key
$$;

-- The handler's claim on an event of this account. Null: it is held now, until the transaction
-- ends. A status: what this very claim already did, after a COMMIT whose answer was lost; what it
-- did is in the receipt's reference. A claim that isn't the caller's or did something else raises.
create or replace function trex._hold_event(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_account text,
    p_reference text,
    p_now timestamptz
)
returns text
language plpgsql
volatile
security invoker
as $$
declare
    v_status text;
begin
    if not exists (
        select 1 from trex.inbox_event e
        where e.instance_key = p_instance_key and e.message_id = p_message_id and e.account = p_account
    ) then
        perform trex._raise('TX404', 'no such event of this account');
    end if;
    perform 1
    from trex.delivery d
    where d.instance_key = p_instance_key and d.message_id = p_message_id and d.fence = p_fence
        and d.lease_until is not null
    for update;
    if found then
        return null;
    end if;
    select t.status into v_status
    from trex._tell(
        p_instance_key, array[p_message_id], array[p_fence], array['completed'], '{}', p_now
    ) t;
    if v_status = 'already_recorded' and not exists (
        select 1 from trex.receipt r
        where r.instance_key = p_instance_key and r.message_id = p_message_id and r.reference = p_reference
    ) then
        v_status := 'ended_otherwise';
    end if;
    perform trex._refuse(v_status);
    return v_status;
end
$$;

-- The end of the handler's work: the receipt of the held event.
create or replace function trex._finish_event(
    p_instance trex.instance,
    p_message_id bigint,
    p_fence bigint,
    p_reference text,
    p_now timestamptz
)
returns void
language plpgsql
volatile
security invoker
as $$
begin
    perform 1
    from trex._record(
        p_instance, array[p_message_id], array[p_fence], array['completed'], array[null::text], array[null::interval],
        array[null::boolean], array[null::boolean], array['handler'], array[p_reference], array[null::numeric],
        array[null::bigint], p_now
    ) r
    where r.status = 'recorded';
    if not found then
        perform trex._raise('TX902', 'a held claim that could not be recorded');
    end if;
end
$$;

-- What the provider said when it was asked; only news is kept. A handler's answer may be older than
-- what is stored, and a paid invoice never goes back to draft or open.
create or replace function trex._note_payment(
    p_instance_key text,
    p_account text,
    p_invoice_id text,
    p_status text,
    p_message_id bigint,
    p_now timestamptz
)
returns boolean
language plpgsql
volatile
security invoker
as $$
declare
    v_last trex.payment;
begin
    for v_round in 1..100 loop
        select p.* into v_last
        from trex.payment p
        where p.instance_key = p_instance_key and p.account = p_account and p.invoice_id = p_invoice_id
        order by p.asked desc
        limit 1;
        if v_last.status = p_status
            or (p_message_id is not null and v_last.status = 'paid' and p_status in ('draft', 'open'))
        then
            return false;
        end if;
        insert into trex.payment (instance_key, account, invoice_id, asked, status, message_id, asked_at)
        values (
            p_instance_key, p_account, p_invoice_id, coalesce(v_last.asked, 0) + 1, p_status, p_message_id, p_now
        )
        on conflict (instance_key, account, invoice_id, asked) do nothing;
        if found then
            return true;
        end if;
    end loop;
    perform trex._raise('TX902', 'a payment that no round could note');
    return false;
end
$$;

-- The end of a right, as a correction of the operation that gave it. The operation is locked first,
-- then the entitlement. Returns no_grant, already_ended, or what became of the correction: applied,
-- replayed.
create or replace function trex._end_right(
    p_instance_key text,
    p_operation_id text,
    p_adjustment_id text,
    p_cause text,
    p_amount numeric,
    p_actor text,
    p_role text,
    p_reason text,
    p_evidence text,
    p_now timestamptz
)
returns text
language plpgsql
volatile
security invoker
as $$
declare
    v_state text;
    v_version bigint;
    v_corrected trex.corrected;
begin
    perform 1
    from trex.operation o
    where o.instance_key = p_instance_key and o.operation_id = p_operation_id
    for no key update;
    if not found then
        return 'no_grant';
    end if;
    select e.state into v_state
    from trex.entitlement e
    where e.instance_key = p_instance_key and e.entitlement_id = p_operation_id
    for no key update;
    if v_state <> 'active' and p_amount = 0 then
        return 'already_ended';
    end if;
    select coalesce(max(a.version), 0) into v_version
    from trex.adjustment a
    where a.instance_key = p_instance_key and a.operation_id = p_operation_id;
    v_corrected := trex._correct(
        p_instance_key, p_operation_id, p_adjustment_id, p_cause, p_amount, v_version, null, p_actor, p_role, p_reason,
        p_evidence, p_now
    );
    perform trex._refuse_operation(v_corrected.status);
    if v_state = 'active' and v_corrected.status = 'applied' and (p_amount = 0 or v_corrected.balance = 0) then
        update trex.entitlement e
        set state = p_cause, version = e.version + 1, changed_at = p_now
        where e.instance_key = p_instance_key and e.entitlement_id = p_operation_id;
    end if;
    return v_corrected.status;
end
$$;

-- Who may read whose rows. The service that calls has verified the viewer; the tenant is the
-- provider's account. Returns the seller whose rows are to be shown, null for all of the account.
create or replace function trex._viewed_seller(
    p_viewer_kind text, p_viewer_tenant text, p_viewer_seller text, p_account text, p_seller text
)
returns text
language plpgsql
immutable
security invoker
as $$
begin
    if p_viewer_kind is null or p_viewer_kind not in ('admin', 'seller', 'buyer')
        or trex._is_key(p_viewer_tenant) is not true
        or (p_viewer_kind = 'seller' and trex._is_key(p_viewer_seller) is not true)
    then
        perform trex._raise('TX401', 'authenticate');
    end if;
    if p_viewer_kind = 'buyer' then
        perform trex._raise('TX403', 'not for buyers');
    end if;
    if p_account <> p_viewer_tenant or (p_viewer_kind = 'seller' and p_seller <> p_viewer_seller) then
        perform trex._raise('TX404', 'no such account or seller');
    end if;
    return case when p_viewer_kind = 'seller' then p_viewer_seller else p_seller end;
end
$$;

-- The arguments that all scoped reads share.
create or replace function trex._check_view(
    p_instance_key text, p_account text, p_seller text, p_limit integer, p_after text
)
returns void
language plpgsql
immutable
security invoker
as $$
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_account) is not true then
        perform trex._raise('TX400', 'account: a key');
    end if;
    if trex._is_key(p_seller) is false then
        perform trex._raise('TX400', 'seller: a key, or null');
    end if;
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    if p_after is null or length(p_after) > 1000 then
        perform trex._raise('TX400', 'after: the id of the last row of the page before, or empty');
    end if;
end
$$;

-- Why a licence can't be used, as an error.
create or replace function trex._refuse_use(p_status text)
returns void
language plpgsql
immutable
security invoker
as $$
begin
    case p_status
        when 'other_subject' then perform trex._raise('TX404', 'no such capability for this subject');
        when 'operation_conflict' then perform trex._raise('TX422', 'this usage id has another capability');
        when 'consumed' then perform trex._raise('TX410', 'consumed by another use');
        when 'expired' then perform trex._raise('TX423', 'the capability is expired');
        when 'not_active' then perform trex._raise('TX423', 'the right is not active');
        when 'exhausted' then perform trex._raise('TX423', 'the uses are exhausted');
        else perform trex._raise('TX423', 'the device is unknown');
    end case;
end
$$;
