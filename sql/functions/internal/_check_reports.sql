-- What is wrong with one report, as a hint of constant text; null when nothing is. Plain SQL, so
-- that it is inlined. The part that concerns a delivery is a function of its own because a single
-- delivery needs no more, and plpgsql prepares an expression anew in every transaction.
create or replace function trex._delivery_hint(
    p_message_id bigint,
    p_fence bigint,
    p_confirmed_by text,
    p_reference text,
    p_balance numeric,
    p_version bigint
)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select case
    when (p_message_id >= 1 and p_fence >= 1) is not true
        then case when p_message_id >= 1 then 'fence: from 1' else 'message_id: from 1' end
    when p_confirmed_by not in ('answer', 'lookup', 'same_key', 'handler')
        then 'confirmed_by: answer, lookup, same_key or handler'
    when p_reference is not null and trex._is_key(p_reference) is not true then 'reference: a key'
    when (p_balance is null) <> (p_version is null)
        or not abs(p_balance) < power(10::numeric, 38)
        then 'balance and version: together, finite, at most 38 digits before the point'
    when p_version < 0 then 'version: from 0'
end
$$;

create or replace function trex._report_hint(
    p_message_id bigint,
    p_fence bigint,
    p_result text,
    p_reason text,
    p_delay interval,
    p_absent boolean,
    p_park boolean,
    p_confirmed_by text,
    p_reference text,
    p_balance numeric,
    p_version bigint
)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select case
    when (p_message_id >= 1 and p_fence >= 1) is not true
        then case when p_message_id >= 1 then 'fence: from 1' else 'message_id: from 1' end
    when p_result in ('completed', 'duplicate') then case
        when p_reason is not null then 'reason: not for a delivery'
        when p_delay is not null then 'delay: not for a delivery'
        when p_absent then 'absent: not for a delivery'
        when p_park then 'park: not for a delivery'
        else trex._delivery_hint(
            p_message_id, p_fence, p_confirmed_by, p_reference, p_balance, p_version
        )
    end
    when (p_result in ('retry', 'unknown', 'conflict', 'permanent', 'dead_letter', 'released', 'postponed')) is not true
        then 'result: one of the list'
    when p_confirmed_by is not null then 'confirmed_by: only for a delivery'
    when p_reference is not null then 'reference: only for a delivery'
    when num_nonnulls(p_balance, p_version) > 0 then 'balance and version: only for a delivery'
    when trex._is_reason(p_reason) is false then 'reason: one of the list'
    when p_absent and p_result in ('unknown', 'conflict') then 'absent: not for unknown and conflict'
    when p_park and p_result <> 'unknown' then 'park: only for unknown'
    when p_delay is null then case when p_result = 'postponed' then 'delay: required' end
    when p_result not in ('retry', 'unknown', 'postponed') then 'delay: only for retry, unknown and postponed'
    when trex._is_duration(p_delay, '0', '720 hours') is not true then 'delay: from 0 to 30 days, without months'
end
$$;

-- The arguments of record and exchange, before anything is written. Optional arrays are null or
-- as long as the ids.
create or replace function trex._check_reports(
    p_message_ids bigint[],
    p_fences bigint[],
    p_results text[],
    p_reasons text[],
    p_delays interval[],
    p_absent boolean[],
    p_park boolean[],
    p_confirmed_by text[],
    p_references text[],
    p_balances numeric[],
    p_versions bigint[]
)
returns void
language plpgsql
immutable
security invoker
as $$
declare
    v_count integer := cardinality(p_message_ids);
    v_dims text := '[1:' || cardinality(p_message_ids) || ']';
    v_index bigint;
    v_hint text;
begin
    -- The usual batch, only deliveries and no optional array, is checked as a whole, without a look at
    -- each report.
    if (
        num_nonnulls(
            p_reasons, p_delays, p_absent, p_park, p_confirmed_by, p_references, p_balances,
            p_versions
        ) = 0
        and v_count between 1 and 1000 and array_dims(p_message_ids) = v_dims
        and array_dims(p_fences) = v_dims and array_dims(p_results) = v_dims
        and p_results <@ array['completed', 'duplicate']
        and 1 <= all(p_message_ids) and 1 <= all(p_fences)
    ) is not true then
        if p_message_ids is null or p_fences is null or p_results is null or v_count > 1000
            or cardinality(p_fences) <> v_count or cardinality(p_results) <> v_count
            or cardinality(p_reasons) <> v_count or cardinality(p_delays) <> v_count
            or cardinality(p_absent) <> v_count or cardinality(p_park) <> v_count
            or cardinality(p_confirmed_by) <> v_count or cardinality(p_references) <> v_count
            or cardinality(p_balances) <> v_count or cardinality(p_versions) <> v_count
            or array_dims(p_message_ids) <> v_dims or array_dims(p_fences) <> v_dims
            or array_dims(p_results) <> v_dims or array_dims(p_reasons) <> v_dims
            or array_dims(p_delays) <> v_dims or array_dims(p_absent) <> v_dims
            or array_dims(p_park) <> v_dims or array_dims(p_confirmed_by) <> v_dims
            or array_dims(p_references) <> v_dims or array_dims(p_balances) <> v_dims
            or array_dims(p_versions) <> v_dims
        then
            perform trex._raise('TX400', 'reports: at most 1000, in arrays of the same length');
        end if;
        if v_count = 0 then
            return;
        end if;
        select min(i.ord) into v_index
        from unnest(
            p_message_ids, p_fences, p_results, p_reasons, p_delays, p_absent, p_park, p_confirmed_by,
            p_references, p_balances, p_versions
        ) with ordinality i (
            message_id, fence, result, reason, delay, absent, park, confirmed_by, reference, balance,
            version, ord
        )
        where i.message_id is null or trex._report_hint(
            i.message_id, i.fence, i.result, i.reason, i.delay, i.absent, i.park, i.confirmed_by,
            i.reference, i.balance, i.version
        ) is not null;
        if v_index is not null then
            v_hint := trex._report_hint(
                p_message_ids[v_index], p_fences[v_index], p_results[v_index], p_reasons[v_index],
                p_delays[v_index], p_absent[v_index], p_park[v_index], p_confirmed_by[v_index],
                p_references[v_index], p_balances[v_index], p_versions[v_index]
            );
            perform trex._raise('TX400', 'report ' || v_index || ': ' || v_hint);
        end if;
    end if;
    if v_count > 1 and (
        select count(distinct i.message_id) from unnest(p_message_ids) i (message_id)
    ) < v_count then
        perform trex._raise('TX400', 'reports: each message once');
    end if;
end
$$;
