-- The arguments of record and exchange, before anything is written. Optional arrays are null or as long as the ids.
create or replace function trex._check_reports(
    p_message_ids bigint [],
    p_fences bigint [],
    p_results text [],
    p_reasons text [],
    p_delays interval [],
    p_absent boolean [],
    p_park boolean [],
    p_confirmed_by text [],
    p_references text [],
    p_balances numeric [],
    p_versions bigint []
)
returns void
language plpgsql
immutable
security invoker
as $$
declare
    v_count integer := cardinality(p_message_ids);
    v_hint text;
begin
    if p_message_ids is null or p_fences is null or p_results is null or v_count > 1000
        or cardinality(p_fences) <> v_count or cardinality(p_results) <> v_count
        or cardinality(p_reasons) <> v_count or cardinality(p_delays) <> v_count
        or cardinality(p_absent) <> v_count or cardinality(p_park) <> v_count
        or cardinality(p_confirmed_by) <> v_count or cardinality(p_references) <> v_count
        or cardinality(p_balances) <> v_count or cardinality(p_versions) <> v_count
    then
        perform trex._raise('TX400', 'reports: at most 1000, in arrays of the same length');
    end if;
    select case
        when count(distinct i.message_id) < v_count then 'reports: each message once'
        when not bool_and(coalesce(i.message_id >= 1 and i.fence >= 1, false)) then 'reports: message_id and fence from 1'
        when not bool_and(
            coalesce(
                i.result in (
                    'completed', 'duplicate', 'retry', 'unknown', 'conflict', 'permanent', 'dead_letter', 'released',
                    'postponed'
                ), false
            )
        ) then 'reports: a result from the list'
        when not bool_and(
            (i.reason is null or (trex._is_reason(i.reason) and i.result not in ('completed', 'duplicate')))
            and (i.absent is not true or i.result in ('retry', 'permanent', 'dead_letter', 'released', 'postponed'))
            and (i.park is not true or i.result = 'unknown')
        ) then 'reports: a reason from the list, and only arguments that the result takes'
        when not bool_and(
            case
                when i.delay is null then i.result <> 'postponed'
                else i.result in ('retry', 'unknown', 'postponed')
                    and trex._is_duration(i.delay, '0', '720 hours')
            end
        ) then 'reports: delay from 0 to 30 days, for retry, unknown and postponed'
        when not bool_and(
            (i.confirmed_by is null or (i.confirmed_by in ('answer', 'lookup', 'same_key', 'handler') and delivered))
            and (i.reference is null or (trex._is_key(i.reference) and delivered))
        ) then 'reports: confirmed_by from the list and reference a key, for a delivery'
        when not bool_and(
            (i.balance is null) = (i.version is null)
            and (i.version is null or (i.version >= 0 and i.balance > '-Infinity' and i.balance < 'Infinity' and delivered))
        ) then 'reports: balance and version together, finite, for a delivery'
    end into v_hint
    from unnest(
        p_message_ids, p_fences, p_results, p_reasons, p_delays, p_absent, p_park, p_confirmed_by, p_references,
        p_balances, p_versions
    ) i (message_id, fence, result, reason, delay, absent, park, confirmed_by, reference, balance, version)
    cross join lateral (select i.result in ('completed', 'duplicate') as delivered) k;
    if v_hint is not null then
        perform trex._raise('TX400', v_hint);
    end if;
end
$$;
