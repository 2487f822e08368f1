-- What makes two operations the same intent. The amount without trailing zeros: 1.50 is 1.5.
create or replace function trex._operation_digest(
    p_kind text, p_machine text, p_entity text, p_event text, p_amount numeric, p_arguments jsonb
)
returns bytea
language sql
immutable
parallel safe
security invoker
as $$
select sha256(convert_to(
    jsonb_build_object(
        'kind', p_kind, 'machine', p_machine, 'entity', p_entity, 'event', p_event, 'amount', trim_scale(p_amount),
        'arguments', p_arguments
    )::text, 'UTF8'
))
$$;

-- The answers that stop a transaction.
create or replace function trex._refuse_operation(p_status text)
returns void
language plpgsql
immutable
security invoker
as $$
begin
    case p_status
        when 'not_found' then perform trex._raise('TX404', 'no such machine, entity or operation in this instance');
        when 'operation_conflict' then perform trex._raise('TX422', 'this id has another intent');
        when 'version_conflict' then perform trex._raise('TX412', 'read again, then decide');
        when 'forbidden' then perform trex._raise('TX423', 'not in this state, by this role or with this amount');
        else null;
    end case;
end
$$;

-- One correction, checked and appended. Everything that corrects comes through here.
create or replace function trex._correct(
    p_instance_key text,
    p_operation_id text,
    p_adjustment_id text,
    p_kind text,
    p_amount numeric,
    p_expected_version bigint,
    p_expected_balance numeric,
    p_actor text,
    p_role text,
    p_reason text,
    p_evidence text,
    p_now timestamptz
)
returns trex.corrected
language plpgsql
volatile
security invoker
as $$
declare
    v_operation trex.operation;
    v_entity trex.entity;
    v_last trex.adjustment;
    v_known trex.adjustment;
    v_digest bytea;
    v_version bigint;
    v_before numeric;
    v_balance numeric;
    v_status text;
begin
    select o.* into v_operation
    from trex.operation o
    where o.instance_key = p_instance_key and o.operation_id = p_operation_id
    for no key update;
    if not found then
        return row(p_adjustment_id, 'not_found', null, null, null, null, null)::trex.corrected;
    end if;
    select a.* into v_last
    from trex.adjustment a
    where a.instance_key = p_instance_key and a.operation_id = p_operation_id
    order by a.version desc
    limit 1;
    select e.* into v_entity
    from trex.entity e
    where e.instance_key = p_instance_key and e.machine = v_operation.machine and e.entity = v_operation.entity;
    v_version := coalesce(v_last.version, 0);
    v_before := coalesce(v_last.balance, v_operation.amount, 0);
    v_balance := trim_scale(v_before + p_amount);
    v_digest := trex._operation_digest(
        p_kind, null, p_operation_id, null, p_amount, '{}'
    );
    for v_round in 1..2 loop
        v_known := null;
        select a.* into v_known
        from trex.adjustment a
        where a.instance_key = p_instance_key and a.adjustment_id = p_adjustment_id;
        if v_known.digest = v_digest then
            return row(
                p_adjustment_id, 'replayed', v_known.version, v_known.balance, v_known.on_state, v_known.on_version,
                v_known.adjusted_at
            )::trex.corrected;
        end if;
        v_status := case
            when v_known.adjustment_id is not null then 'operation_conflict'
            when v_version <> p_expected_version or v_before <> p_expected_balance then 'version_conflict'
            when v_operation.amount is null and p_amount <> 0 then 'forbidden'
            when sign(v_balance) * sign(coalesce(v_operation.amount, 0)) < 0 or abs(v_balance) >= 1e20 then 'forbidden'
            else 'applied'
        end;
        if v_status <> 'applied' then
            return row(
                p_adjustment_id, v_status, v_version, v_before, v_entity.state, v_entity.version, null
            )::trex.corrected;
        end if;
        insert into trex.adjustment (
            instance_key, adjustment_id, operation_id, version, kind, amount, balance, on_state, on_version, actor, role,
            reason, evidence, digest, adjusted_at
        )
        values (
            p_instance_key, p_adjustment_id, p_operation_id, v_version + 1, p_kind, trim_scale(p_amount), v_balance,
            v_entity.state, v_entity.version, p_actor, p_role, p_reason, p_evidence, v_digest, p_now
        )
        on conflict (instance_key, adjustment_id) do nothing;
        if found then
            perform trex._audit(
                p_instance_key, 'correct', null, p_actor, p_reason,
                jsonb_build_object(
                    'operation_id', p_operation_id, 'adjustment_id', p_adjustment_id, 'kind', p_kind,
                    'version', v_version + 1, 'role', p_role
                ), p_now
            );
            return row(
                p_adjustment_id, 'applied', v_version + 1, v_balance, v_entity.state, v_entity.version, p_now
            )::trex.corrected;
        end if;
    end loop;
    perform trex._raise('TX902', 'a correction that no round could classify');
    return null;
end
$$;
