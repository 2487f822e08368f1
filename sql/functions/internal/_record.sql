-- Every outcome of a worker, one or many, is this compare-and-set on (instance_key, message_id,
-- fence of the open claim). A row is touched only when its fence matches and its claim has no
-- end yet; the rest is told why not: not_found, already_recorded / ended_otherwise, claim_lost.
-- lease_until isn't compared: a late holder that nobody superseded may record. Rows are locked
-- in id order by single look-ups, whatever the planner believes, and then changed by address.
create or replace function trex._record(
    p_instance trex.instance,
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
    p_versions bigint[],
    p_now timestamptz
)
returns setof trex.recorded
language plpgsql
volatile
security invoker
as $$
declare
    v_key text := p_instance.instance_key;
    v_tids tid[];
    v_ids bigint[];
    v_attempts integer[];
    v_lates boolean[];
    v_ords bigint[];
    v_others bigint[];
    v_changed integer;
    v_had_skips boolean;
    v_boxes text[];
    v_keys text[];
    v_key_ids bigint[];
    v_row record;
    v_settled record;
    v_reason text;
    v_state text;
    v_end_tids tid[] := array[]::tid[];
    v_end_ids bigint[] := array[]::bigint[];
    v_end_lates boolean[] := array[]::boolean[];
    v_end_states text[] := array[]::text[];
    v_end_due timestamptz[] := array[]::timestamptz[];
    v_end_tries integer[] := array[]::integer[];
    v_end_uncertain boolean[] := array[]::boolean[];
    v_end_parked text[] := array[]::text[];
    v_end_reasons text[] := array[]::text[];
begin
    select
        array_agg(l.tid) filter (where i.delivered), array_agg(l.message_id) filter (where i.delivered),
        array_agg(l.attempts) filter (where i.delivered), array_agg(l.late) filter (where i.delivered),
        array_agg(i.ord) filter (where i.delivered), array_agg(i.ord) filter (where not i.delivered),
        bool_or(l.deferred) filter (where i.delivered),
        array_agg(l.box) filter (where i.delivered and l.ordering_key is not null),
        array_agg(l.ordering_key) filter (where i.delivered and l.ordering_key is not null),
        array_agg(l.message_id) filter (where i.delivered and l.ordering_key is not null)
    into v_tids, v_ids, v_attempts, v_lates, v_ords, v_others, v_had_skips, v_boxes, v_keys, v_key_ids
    from (
        select u.message_id, u.fence, u.result in ('completed', 'duplicate') as delivered, u.ord
        from unnest(p_message_ids, p_fences, p_results) with ordinality u (message_id, fence, result, ord)
        order by u.message_id
    ) i
    cross join lateral (
        select
            d.ctid as tid, d.message_id, d.attempts, d.box, d.ordering_key, d.lease_until <= p_now as late,
            d.deferred_until is not null as deferred
        from trex.delivery d
        where d.instance_key = v_key and d.message_id = i.message_id and d.fence = i.fence
            and d.lease_until is not null
        limit 1
        for update
    ) l;

    -- Delivered: the delivery goes and its receipt comes in one statement.
    if v_tids is not null then
        with gone as (
            delete from trex.delivery d where d.ctid = any(v_tids) returning 1
        ),
        stored as (
            insert into trex.receipt (
                instance_key, message_id, fence, attempt, duplicate, late, confirmed_by, reference,
                delivered_at
            )
            select
                v_key, u.message_id, p_fences[u.ord], u.attempt, p_results[u.ord] = 'duplicate', u.late,
                coalesce(p_confirmed_by[u.ord], 'answer'), p_references[u.ord], p_now
            from unnest(v_ids, v_attempts, v_lates, v_ords) u (message_id, attempt, late, ord)
        )
        select count(*) into v_changed from gone;
        if v_changed <> cardinality(v_tids) then
            perform trex._raise('TX902', 'a locked delivery has another address');
        end if;
    end if;
    if v_had_skips then
        -- Only a message that was parked before can have an open skip, and it came back with a due time.
        update trex.ledger_skip s
        set resolved_at = p_now, resolved_fence = l.fence
        from (
            select k.ctid as tid, p_fences[u.ord] as fence
            from unnest(v_ids, v_ords) u (message_id, ord)
            cross join lateral (
                select w.ctid
                from trex.ledger_skip w
                where w.instance_key = v_key and w.message_id = u.message_id and w.resolved_at is null
                limit 1
                for no key update
            ) k
        ) l
        where s.ctid = l.tid;
    end if;
    if v_ids is not null and array_remove(p_versions, null) <> '{}' then
        perform trex._store_snapshots(v_key, v_ids, p_message_ids, p_fences, p_balances, p_versions, p_now, true);
    end if;
    if cardinality(v_ids) = cardinality(p_message_ids) then
        if v_keys is not null then
            perform trex._free_keys(v_key, v_boxes, v_keys, v_key_ids, p_now, true);
        end if;
        return query
        select p_message_ids[u.ord], p_fences[u.ord], 'recorded', 'delivered', u.late, null::timestamptz
        from unnest(v_ords, v_lates) u (ord, late)
        order by u.ord;
        return;
    end if;

    -- Ended otherwise: settle each, then change the locked rows in one statement.
    if v_others is not null then
        for v_row in
            select
                d.tid, d.message_id, d.fence, d.attempts, d.tries, d.box, d.ordering_key, d.uncertain,
                d.lease_until <= p_now as late, d.sent_fence is not distinct from d.fence as sent,
                m.effect_policy, u.ord
            from unnest(v_others) u (ord)
            cross join lateral (
                select w.ctid as tid, w.*
                from trex.delivery w
                where w.instance_key = v_key and w.message_id = p_message_ids[u.ord]
                limit 1
            ) d
            cross join lateral (
                select w.effect_policy
                from trex.message w
                where w.instance_key = v_key and w.message_id = d.message_id
                limit 1
            ) m
        loop
            v_settled := trex._settle(
                p_results[v_row.ord], v_row.effect_policy, v_row.uncertain, v_row.sent, v_row.tries,
                p_instance.max_attempts, coalesce(p_absent[v_row.ord], false),
                coalesce(p_park[v_row.ord], false)
            );
            v_reason := coalesce(p_reasons[v_row.ord], 'unspecified');
            v_state := case
                when v_settled.parked is not null then v_settled.parked
                when p_results[v_row.ord] = 'released' then 'ready'
                else 'deferred'
            end;
            insert into trex.outcome (
                instance_key, message_id, fence, attempt, kind, state, reason, late, recorded_at
            )
            values (
                v_key, v_row.message_id, v_row.fence, v_row.attempts, p_results[v_row.ord],
                v_state, v_reason, v_row.late, p_now
            );
            if v_settled.parked is not null and p_results[v_row.ord] in ('retry', 'unknown')
                and v_row.tries >= p_instance.max_attempts and p_park[v_row.ord] is not true
            then
                v_reason := 'attempts_exhausted';
            end if;
            v_end_tids := v_end_tids || v_row.tid;
            v_end_ids := v_end_ids || v_row.message_id;
            v_end_lates := v_end_lates || v_row.late;
            v_end_states := v_end_states || v_state;
            v_end_due := v_end_due || case
                when v_settled.parked is not null then 'infinity'
                when p_results[v_row.ord] = 'released' then p_now
                when p_results[v_row.ord] = 'postponed' then p_now + trex._span(p_delays[v_row.ord])
                else p_now + greatest(
                    trex._backoff(
                        v_row.message_id, v_row.attempts, v_row.tries, p_instance.backoff_base,
                        p_instance.backoff_cap
                    ),
                    trex._span(p_delays[v_row.ord])
                )
            end;
            v_end_tries := v_end_tries || v_settled.tries;
            v_end_uncertain := v_end_uncertain || v_settled.uncertain;
            v_end_parked := v_end_parked || v_settled.parked;
            v_end_reasons := v_end_reasons || v_reason;
            if v_settled.parked is not null and p_instance.on_parked = 'continue'
                and v_row.ordering_key is not null
            then
                v_boxes := v_boxes || v_row.box;
                v_keys := v_keys || v_row.ordering_key;
                v_key_ids := v_key_ids || v_row.message_id;
            end if;
        end loop;
        update trex.delivery d
        set lease_until = null, worker = null, deferred_until = u.due, tries = u.tries, uncertain = u.uncertain,
            parked = u.parked
        from unnest(v_end_tids, v_end_due, v_end_tries, v_end_uncertain, v_end_parked)
            u (tid, due, tries, uncertain, parked)
        where d.ctid = u.tid;
        get diagnostics v_changed = row_count;
        if v_changed <> cardinality(v_end_tids) then
            perform trex._raise('TX902', 'a locked delivery has another address');
        end if;
        if array_remove(v_end_parked, null) <> '{}' then
            perform trex._open_skips(v_key, v_end_ids, v_end_parked, v_end_reasons, p_now);
        end if;
    end if;
    if v_keys is not null then
        perform trex._free_keys(v_key, v_boxes, v_keys, v_key_ids, p_now, true);
    end if;

    -- A rejected report of a fence that was given out is evidence.
    return query
    with told as materialized (
        select t.* from trex._tell(
            v_key, p_message_ids, p_fences, p_results, v_ids || v_end_ids, p_now
        ) t
    ),
    evidence as (
        insert into trex.stale_report (instance_key, message_id, fence, result, reported_at)
        select v_key, t.message_id, t.fence, t.result, p_now
        from told t
        where t.status = 'claim_lost' and t.given
        order by t.message_id
        on conflict (instance_key, message_id, fence, result) do nothing
    )
    select q.message_id, q.fence, q.status, q.state, q.late, q.due_at
    from (
        select
            array_position(p_message_ids, t.message_id) as ord, t.message_id, t.fence, t.status, t.state,
            false as late, t.due_at
        from told t
        union all
        select u.ord, p_message_ids[u.ord], p_fences[u.ord], 'recorded', 'delivered', u.late, null
        from unnest(v_ords, v_lates) u (ord, late)
        union all
        select u.ord, p_message_ids[u.ord], p_fences[u.ord], 'recorded', u.state, u.late, nullif(u.due, 'infinity')
        from unnest(v_others, v_end_states, v_end_lates, v_end_due) u (ord, state, late, due)
    ) q
    order by q.ord;
end
$$;
