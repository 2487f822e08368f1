-- A done operation is never overwritten: a correction stands beside it, says what it builds on, and
-- moves the balance of the two together. The operation's row is locked, so corrections of one
-- operation take their turn. A grant isn't corrected here: its balance would move without its
-- right.
create or replace function trex.correct(
    p_instance_key text,
    p_operation_id text,
    p_adjustment_id text,
    p_kind text,
    p_amount numeric,
    p_expected_version bigint,
    p_actor text,
    p_role text,
    p_reason text,
    p_evidence text,
    p_expected_balance numeric default null,
    p_on_refused text default 'raise'
)
returns trex.corrected
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
    v_corrected trex.corrected;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_operation_id) is not true then
        perform trex._raise('TX400', 'operation_id: a key');
    end if;
    if trex._is_key(p_adjustment_id) is not true then
        perform trex._raise('TX400', 'adjustment_id: a key');
    end if;
    if p_adjustment_id ~ '^(refund|cancelled|expired|revoked):' then
        perform trex._raise('TX400', 'adjustment_id: refund: cancelled: expired: revoked: are for ends of rights');
    end if;
    if trex._is_slug(p_kind) is not true then
        perform trex._raise('TX400', 'kind: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    if p_amount is null or trex._is_amount(p_amount, 18) is not true then
        perform trex._raise('TX400', 'amount: finite, at most 20 digits before and 18 after the point');
    end if;
    if p_expected_version is null or p_expected_version < 0 then
        perform trex._raise('TX400', 'expected_version: from 0, the number of corrections so far');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if trex._is_slug(p_role) is not true then
        perform trex._raise('TX400', 'role: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    if trex._is_text(p_evidence) is not true then
        perform trex._raise('TX400', 'evidence: 1 to 1000 characters, no control characters, not blank');
    end if;
    if p_expected_balance is not null and trex._is_amount(p_expected_balance, 18) is not true then
        perform trex._raise('TX400', 'expected_balance: finite, at most 20 digits before and 18 after the point');
    end if;
    if p_on_refused is null or p_on_refused not in ('raise', 'report') then
        perform trex._raise('TX400', 'on_refused: raise or report');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    select
        p_adjustment_id, 'forbidden', coalesce(a.version, 0), coalesce(a.balance, o.amount), null::text, null::bigint,
        null::timestamptz
    into v_corrected
    from trex.operation o
    left join lateral (
        select w.version, w.balance
        from trex.adjustment w
        where w.instance_key = p_instance_key and w.operation_id = p_operation_id
        order by w.version desc
        limit 1
    ) a on true
    where o.instance_key = p_instance_key and o.operation_id = p_operation_id and o.kind = 'grant_entitlement';
    if found then
        if p_on_refused = 'raise' then
            perform trex._raise('TX423', 'a grant is corrected by apply_refund or apply_provider_cancel');
        end if;
        return v_corrected;
    end if;
    v_corrected := trex._correct(
        p_instance_key, p_operation_id, p_adjustment_id, p_kind, p_amount, p_expected_version, p_expected_balance, p_actor,
        p_role, p_reason, p_evidence, trex._now()
    );
    if p_on_refused = 'raise' then
        perform trex._refuse_operation(v_corrected.status);
    end if;
    return v_corrected;
end
$$;

alter function trex.correct(
    text, text, text, text, numeric, bigint, text, text, text, text, numeric, text
) owner to trex_owner;
revoke all on function trex.correct(
    text, text, text, text, numeric, bigint, text, text, text, text, numeric, text
) from public;
grant execute on function trex.correct(
    text, text, text, text, numeric, bigint, text, text, text, text, numeric, text
) to trex_worker, trex_operator;

comment on function trex.correct(
    text, text, text, text, numeric, bigint, text, text, text, text, numeric, text
) is
'Appends one correction to a done operation.
Arguments:
  p_operation_id: what is corrected; p_adjustment_id: a key, once per instance for one intent,
      that doesn''t begin with refund: cancelled: expired: or revoked:
  p_kind: 1 to 63 of a-z 0-9 . _ : - ; p_amount: what is added to the balance, 0 where no amount
      changes
  p_expected_version: how many corrections the caller has seen; p_expected_balance: and which
      balance, if it matters
  p_actor: a key; p_role: whom the actor acts as; p_reason, p_evidence: 1 to 1000 characters
  p_on_refused: raise (default), or report: the refusal is returned as data
Returns: one corrected: status applied, replayed (as it was then), or not_found,
  operation_conflict, version_conflict, forbidden,
  in this order, with version and balance now; on_state and on_version: what the entity was at
      that time
Errors: TX400; TX503; TX403; TX404 no such operation; TX422 the adjustment id has another intent;
  TX412 another version or balance;
  TX423 the balance would change its sign, the operation has no amount, or it is a grant, which
  apply_refund and apply_provider_cancel correct
Locks: the operation row
Idempotent: yes, by adjustment_id';
