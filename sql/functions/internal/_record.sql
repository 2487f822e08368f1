-- Every outcome of a worker, one or many, is this compare-and-set on (instance_key, message_id, fence of the open claim). A row is
-- locked, in id order, only when its fence matches and its claim has no end yet; the rest is told why not:
-- not_found, already_recorded / ended_otherwise, claim_lost. lease_until isn't compared: a late holder that nobody superseded may record.
create or replace function trex._record(
    p_instance trex.instance,
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
    p_versions bigint [],
    p_now timestamptz
)
returns setof trex.recorded
language plpgsql
volatile
security invoker
as $$
declare
    v_key text := p_instance.instance_key;
    v_count integer := cardinality(p_message_ids);
    v_matched integer;
    v_had_skips boolean;
    v_snapshots boolean;
    v_ordered boolean;
    -- delivered now
    v_ids bigint [];
    v_fences bigint [];
    v_attempts integer [];
    v_duplicates boolean [];
    v_lates boolean [];
    v_confirmed_by text [];
    v_references text [];
    v_balances numeric [];
    v_versions bigint [];
    v_ords bigint [];
    -- ended otherwise now
    v_row record;
    v_settled record;
    v_due timestamptz;
    v_end_ids bigint [] := '{}';
    v_end_due timestamptz [] := '{}';
    v_end_tries integer [] := '{}';
    v_end_uncertain boolean [] := '{}';
    v_end_parked text [] := '{}';
    v_end_reasons text [] := '{}';
    -- keys that may go on
    v_boxes text [];
    v_keys text [];
begin
    if v_count = 0 then
        return;
    end if;

    select
        count(*), bool_or(q.tries <> q.attempts), bool_or(q.version is not null), bool_or(q.ordering_key is not null),
        array_agg(q.message_id) filter (where q.delivered),
        array_agg(q.fence) filter (where q.delivered),
        array_agg(q.attempts) filter (where q.delivered),
        array_agg(q.result = 'duplicate') filter (where q.delivered),
        array_agg(q.late) filter (where q.delivered),
        array_agg(q.confirmed_by) filter (where q.delivered),
        array_agg(q.reference) filter (where q.delivered),
        array_agg(q.balance) filter (where q.delivered),
        array_agg(q.version) filter (where q.delivered),
        array_agg(q.ord) filter (where q.delivered),
        array_agg(q.box) filter (where q.delivered),
        array_agg(q.ordering_key) filter (where q.delivered)
    into
        v_matched, v_had_skips, v_snapshots, v_ordered, v_ids, v_fences, v_attempts, v_duplicates, v_lates,
        v_confirmed_by, v_references, v_balances, v_versions, v_ords, v_boxes, v_keys
    from (
        select
            d.message_id, d.fence, d.attempts, d.tries, d.box, d.ordering_key, d.lease_until <= p_now as late,
            i.ord, i.result, i.result in ('completed', 'duplicate') as delivered,
            coalesce(i.confirmed_by, 'answer') as confirmed_by, i.reference, i.balance, i.version
        from unnest(p_message_ids, p_fences, p_results, p_confirmed_by, p_references, p_balances, p_versions)
            with ordinality i (message_id, fence, result, confirmed_by, reference, balance, version, ord)
        join trex.delivery d
            on d.instance_key = v_key and d.message_id = i.message_id and d.fence = i.fence
        where d.message_id = any(p_message_ids) and d.lease_until is not null
        order by d.message_id
        for update of d
    ) q;

    if v_ids is not null then
        perform trex._deliver(
            v_key, v_ids, v_fences, v_attempts, v_duplicates, v_lates, v_confirmed_by, v_references, v_had_skips, p_now
        );
        if v_snapshots then
            perform trex._store_snapshots(v_key, v_ids, v_fences, v_balances, v_versions, p_now);
        end if;
        if v_matched = v_count and cardinality(v_ids) = v_count then
            if v_ordered then
                perform trex._free_keys(v_key, v_boxes, v_keys, p_now);
            end if;
            return query
            select u.message_id, u.fence, 'recorded', 'delivered', u.late, null::timestamptz
            from unnest(v_ids, v_fences, v_lates, v_ords) u (message_id, fence, late, ord)
            order by u.ord;
            return;
        end if;
    end if;

    -- The locked rows that weren't delivered: settle each, then change them in one statement.
    for v_row in
        select
            d.message_id, d.fence, d.attempts, d.tries, d.box, d.ordering_key, d.uncertain, d.lease_until <= p_now as late,
            d.sent_fence is not distinct from d.fence as sent, m.effect_policy, i.result, i.delay,
            coalesce(i.absent, false) as absent, coalesce(i.park, false) as park, coalesce(i.reason, 'unspecified') as reason
        from unnest(p_message_ids, p_fences, p_results, p_reasons, p_delays, p_absent, p_park)
            i (message_id, fence, result, reason, delay, absent, park)
        join trex.delivery d
            on d.instance_key = v_key and d.message_id = i.message_id and d.fence = i.fence
        join trex.message m on m.instance_key = v_key and m.message_id = i.message_id
        where d.message_id = any(p_message_ids) and m.message_id = any(p_message_ids) and d.lease_until is not null
        order by d.message_id
    loop
        v_settled := trex._settle(
            v_row.result, v_row.effect_policy, v_row.uncertain, v_row.sent, v_row.tries,
            p_instance.max_attempts, v_row.absent, v_row.park
        );
        v_due := case
            when v_settled.parked is not null then 'infinity'
            when v_row.result = 'released' then p_now
            when v_row.result = 'postponed' then p_now + v_row.delay
            else p_now + greatest(
                trex._backoff(
                    v_row.message_id, v_row.attempts, v_row.tries, p_instance.backoff_base, p_instance.backoff_cap
                ),
                v_row.delay
            )
        end;
        insert into trex.outcome (
            instance_key, message_id, fence, attempt, kind, state, reason, late, recorded_at
        )
        values (
            v_key, v_row.message_id, v_row.fence, v_row.attempts, v_row.result,
            coalesce(v_settled.parked, case v_row.result when 'released' then 'ready' else 'deferred' end),
            v_row.reason, v_row.late, p_now
        );
        v_end_ids := v_end_ids || v_row.message_id;
        v_end_due := v_end_due || v_due;
        v_end_tries := v_end_tries || v_settled.tries;
        v_end_uncertain := v_end_uncertain || v_settled.uncertain;
        v_end_parked := v_end_parked || v_settled.parked;
        v_end_reasons := v_end_reasons || case
            when v_row.result in ('retry', 'unknown') and v_settled.parked is not null and not v_row.park
                and v_row.tries >= p_instance.max_attempts then 'attempts_exhausted'
            else v_row.reason
        end;
        if v_settled.parked is not null and p_instance.on_parked = 'continue' then
            v_boxes := v_boxes || v_row.box;
            v_keys := v_keys || v_row.ordering_key;
        end if;
    end loop;
    if cardinality(v_end_ids) > 0 then
        update trex.delivery d
        set lease_until = null, worker = null, deferred_until = u.due, tries = u.tries, uncertain = u.uncertain,
            parked = u.parked
        from unnest(v_end_ids, v_end_due, v_end_tries, v_end_uncertain, v_end_parked)
            u (message_id, due, tries, uncertain, parked)
        where d.instance_key = v_key and d.message_id = any(v_end_ids) and d.message_id = u.message_id;
        if array_remove(v_end_parked, null) <> '{}' then
            perform trex._open_skips(v_key, v_end_ids, v_end_parked, v_end_reasons, p_now);
        end if;
    end if;
    if v_ordered then
        perform trex._free_keys(v_key, v_boxes, v_keys, p_now);
    end if;

    -- A rejected report of a fence that was given out is evidence.
    if v_matched < v_count then
        insert into trex.stale_report (instance_key, message_id, fence, result, reported_at)
        select v_key, t.message_id, t.fence, t.result, p_now
        from trex._tell(v_key, p_message_ids, p_fences, p_results, v_ids || v_end_ids, p_now) t
        where t.status = 'claim_lost' and t.given
        order by t.message_id
        on conflict (instance_key, message_id, fence, result) do nothing;
    end if;
    return query
    select
        i.message_id, i.fence,
        coalesce(t.status, 'recorded'),
        case
            when i.message_id = any(v_ids) then 'delivered'
            when t.status is null then o.state
            else t.state
        end,
        case
            when i.message_id = any(v_ids) then v_lates[array_position(v_ids, i.message_id)]
            when t.status is null then o.late
            else false
        end,
        case
            when t.status is null then nullif(v_end_due[array_position(v_end_ids, i.message_id)], 'infinity')
            else t.due_at
        end
    from unnest(p_message_ids, p_fences, p_results) with ordinality i (message_id, fence, result, ord)
    left join trex.outcome o
        on o.instance_key = v_key and o.message_id = i.message_id and o.fence = i.fence
        and i.message_id = any(v_end_ids)
    left join trex._tell(v_key, p_message_ids, p_fences, p_results, v_ids || v_end_ids, p_now) t
        on t.message_id = i.message_id
    order by i.ord;
end
$$;
