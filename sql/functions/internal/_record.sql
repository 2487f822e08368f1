-- Every outcome of a worker, one or many, is this compare-and-set on (instance_key, message_id, fence of the open claim).
-- A row is touched only when its fence matches and its claim has no end yet; the rest is told why not: not_found,
-- already_recorded / ended_otherwise, claim_lost. lease_until isn't compared: a late holder that nobody superseded may
-- record. Rows are locked in id order: the delete walks the primary key, a mixed batch locks all of its rows first.
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
    v_mixed boolean := not p_results <@ array['completed', 'duplicate'];
    v_ords integer[];
    v_ids bigint[];
    v_lates boolean[];
    v_had_skips boolean;
    v_boxes text[];
    v_keys text[];
    v_row record;
    v_settled record;
    v_reason text;
    v_end_ids bigint[] := array[]::bigint[];
    v_end_due timestamptz[] := array[]::timestamptz[];
    v_end_tries integer[] := array[]::integer[];
    v_end_uncertain boolean[] := array[]::boolean[];
    v_end_parked text[] := array[]::text[];
    v_end_reasons text[] := array[]::text[];
begin
    if v_mixed then
        perform 1
        from trex.delivery d
        where d.instance_key = v_key and d.message_id = any(p_message_ids)
            and d.fence = p_fences[array_position(p_message_ids, d.message_id)]
            and d.lease_until is not null
        order by d.message_id
        for update;
    end if;

    -- Delivered: the delivery goes and its receipt comes in one statement.
    with gone as (
        delete from trex.delivery d
        where d.instance_key = v_key and d.message_id = any(p_message_ids)
            and d.fence = p_fences[array_position(p_message_ids, d.message_id)]
            and d.lease_until is not null
            and p_results[array_position(p_message_ids, d.message_id)] in ('completed', 'duplicate')
        returning
            d.message_id, d.fence, d.attempts, d.box, d.ordering_key, d.lease_until <= p_now as late,
            d.deferred_until is not null as deferred, array_position(p_message_ids, d.message_id) as ord
    ),
    stored as (
        insert into trex.receipt (
            instance_key, message_id, fence, attempt, duplicate, late, confirmed_by, reference, delivered_at
        )
        select
            v_key, g.message_id, g.fence, g.attempts, p_results[g.ord] = 'duplicate', g.late,
            coalesce(p_confirmed_by[g.ord], 'answer'), p_references[g.ord], p_now
        from gone g
    )
    select
        array_agg(g.ord), array_agg(g.message_id), array_agg(g.late), bool_or(g.deferred),
        array_agg(g.box) filter (where g.ordering_key is not null),
        array_agg(g.ordering_key) filter (where g.ordering_key is not null)
    into v_ords, v_ids, v_lates, v_had_skips, v_boxes, v_keys
    from gone g;

    if v_had_skips then
        -- Only a message that was parked before can have an open skip, and it came back with a due time.
        update trex.ledger_skip s
        set resolved_at = p_now, resolved_fence = p_fences[array_position(p_message_ids, s.message_id)]
        where s.instance_key = v_key and s.message_id = any(v_ids) and s.resolved_at is null;
    end if;
    if v_ids is not null and array_remove(p_versions, null) <> '{}' then
        perform trex._store_snapshots(v_key, v_ids, p_message_ids, p_fences, p_balances, p_versions, p_now);
    end if;
    if cardinality(v_ids) = cardinality(p_message_ids) then
        if v_keys is not null then
            perform trex._free_keys(v_key, v_boxes, v_keys, p_now);
        end if;
        return query
        select p_message_ids[u.ord], p_fences[u.ord], 'recorded', 'delivered', u.late, null::timestamptz
        from unnest(v_ords, v_lates) u (ord, late)
        order by u.ord;
        return;
    end if;

    -- Ended otherwise: settle each, then change the locked rows in one statement.
    if v_mixed then
        for v_row in
            select
                d.message_id, d.fence, d.attempts, d.tries, d.box, d.ordering_key, d.uncertain,
                d.lease_until <= p_now as late, d.sent_fence is not distinct from d.fence as sent, m.effect_policy,
                array_position(p_message_ids, d.message_id) as ord
            from trex.delivery d
            join trex.message m on m.instance_key = v_key and m.message_id = d.message_id
            where d.instance_key = v_key and d.message_id = any(p_message_ids)
                and m.message_id = any(p_message_ids)
                and d.fence = p_fences[array_position(p_message_ids, d.message_id)]
                and d.lease_until is not null
            order by d.message_id
        loop
            v_settled := trex._settle(
                p_results[v_row.ord], v_row.effect_policy, v_row.uncertain, v_row.sent, v_row.tries,
                p_instance.max_attempts, coalesce(p_absent[v_row.ord], false),
                coalesce(p_park[v_row.ord], false)
            );
            v_reason := coalesce(p_reasons[v_row.ord], 'unspecified');
            insert into trex.outcome (
                instance_key, message_id, fence, attempt, kind, state, reason, late, recorded_at
            )
            values (
                v_key, v_row.message_id, v_row.fence, v_row.attempts, p_results[v_row.ord],
                case
                    when v_settled.parked is not null then v_settled.parked
                    when p_results[v_row.ord] = 'released' then 'ready'
                    else 'deferred'
                end,
                v_reason, v_row.late, p_now
            );
            if v_settled.parked is not null and p_results[v_row.ord] in ('retry', 'unknown')
                and v_row.tries >= p_instance.max_attempts and p_park[v_row.ord] is not true
            then
                v_reason := 'attempts_exhausted';
            end if;
            v_end_ids := v_end_ids || v_row.message_id;
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
            end if;
        end loop;
        update trex.delivery d
        set lease_until = null, worker = null,
            deferred_until = v_end_due[array_position(v_end_ids, d.message_id)],
            tries = v_end_tries[array_position(v_end_ids, d.message_id)],
            uncertain = v_end_uncertain[array_position(v_end_ids, d.message_id)],
            parked = v_end_parked[array_position(v_end_ids, d.message_id)]
        where d.instance_key = v_key and d.message_id = any(v_end_ids);
        if array_remove(v_end_parked, null) <> '{}' then
            perform trex._open_skips(v_key, v_end_ids, v_end_parked, v_end_reasons, p_now);
        end if;
    end if;
    if v_keys is not null then
        perform trex._free_keys(v_key, v_boxes, v_keys, p_now);
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
        select
            array_position(p_message_ids, o.message_id), o.message_id, o.fence, 'recorded', o.state, o.late,
            nullif(v_end_due[array_position(v_end_ids, o.message_id)], 'infinity')
        from trex.outcome o
        where o.instance_key = v_key and o.message_id = any(v_end_ids)
            and o.fence = p_fences[array_position(p_message_ids, o.message_id)]
    ) q
    order by q.ord;
end
$$;
