-- The heartbeat. It never shortens a lease and never revives a message that was claimed again. A
-- lapsed claim that nobody took over lives on, but within an ordering key only while no other
-- message of it is leased: those rows are locked too.
create or replace function trex.extend(
    p_instance_key text,
    p_message_ids bigint[],
    p_fences bigint[],
    p_lease interval default null
)
returns setof trex.extended
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_instance trex.instance;
    v_lease interval;
    v_now timestamptz;
    v_until timestamptz;
    v_ids bigint[];
    v_lapsed bigint[];
    v_done bigint[] := array[]::bigint[];
    v_leases timestamptz[] := array[]::timestamptz[];
    v_lease_until timestamptz;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_ids(p_message_ids);
    if p_fences is null or cardinality(p_fences) <> cardinality(p_message_ids)
        or array_lower(p_fences, 1) <> 1 or array_ndims(p_fences) > 1
        or array_position(p_fences, null) is not null or 1 > any(p_fences)
    then
        perform trex._raise('TX400', 'fences: one for each message, from 1');
    end if;
    if p_lease is not null and trex._is_duration(p_lease, '100 milliseconds', '24 hours') is not true then
        perform trex._raise('TX400', 'lease: from 100 milliseconds to the lease_max of the instance, without months');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    if p_lease > v_instance.lease_max then
        perform trex._raise('TX400', 'lease: from 100 milliseconds to the lease_max of the instance, without months');
    end if;
    v_lease := coalesce(trex._span(p_lease), v_instance.lease_default);
    v_now := trex._now();

    select array_agg(l.message_id), array_agg(l.message_id order by i.ord) filter (where l.lapsed)
    into v_ids, v_lapsed
    from unnest(p_message_ids, p_fences) with ordinality i (message_id, fence, ord)
    cross join lateral (
        select d.message_id, d.lease_until <= v_now and d.ordering_key is not null as lapsed
        from trex.delivery d
        where d.instance_key = p_instance_key and d.message_id = i.message_id and d.fence = i.fence
            and d.lease_until is not null
        limit 1
    ) l;
    if v_lapsed is not null then
        v_ids := v_ids || trex._live_siblings(p_instance_key, v_lapsed);
    end if;
    perform trex._lock_rows(p_instance_key, v_ids);
    -- After the locks: no lease is over before its holder hears of it, and none that ended meanwhile
    -- passes for a running one.
    v_now := trex._now();
    v_until := v_now + v_lease;

    for v_ord in 1..cardinality(p_message_ids)
    loop
        update trex.delivery d
        set lease_until = greatest(d.lease_until, v_until)
        where d.instance_key = p_instance_key and d.message_id = p_message_ids[v_ord]
            and d.fence = p_fences[v_ord] and d.lease_until is not null
            and (d.ordering_key is null or d.lease_until > v_now or not exists (
                select 1
                from trex.delivery k
                where k.instance_key || '' = p_instance_key and k.box = d.box
                    and k.ordering_key = d.ordering_key and k.message_id <> d.message_id
                    and k.lease_until > v_now
            ))
        returning d.lease_until into v_lease_until;
        if found then
            v_done := v_done || p_message_ids[v_ord];
            v_leases := v_leases || v_lease_until;
        end if;
    end loop;

    if cardinality(v_done) = cardinality(p_message_ids) then
        return query
        select i.message_id, i.fence, 'extended', v_leases[array_position(v_done, i.message_id)]
        from unnest(p_message_ids, p_fences) with ordinality i (message_id, fence, ord)
        order by i.ord;
        return;
    end if;
    return query
    select
        i.message_id, i.fence, coalesce(t.status, 'extended'),
        case when t.status is null then v_leases[array_position(v_done, i.message_id)] end
    from unnest(p_message_ids, p_fences) with ordinality i (message_id, fence, ord)
    left join trex._tell(
        p_instance_key, p_message_ids, p_fences, array_fill(null::text, array[cardinality(p_message_ids)]), v_done, v_now
    ) t on t.message_id = i.message_id
    order by i.ord;
end
$$;

alter function trex.extend(text, bigint[], bigint[], interval) owner to trex_owner;
revoke all on function trex.extend(text, bigint[], bigint[], interval) from public;
grant execute on function trex.extend(text, bigint[], bigint[], interval) to trex_worker;

comment on function trex.extend(text, bigint[], bigint[], interval) is
'Keeps claims alive: their leases end at the earliest p_lease from now. The fences stay the same.
Arguments:
  p_message_ids, p_fences: as claimed, arrays of the same length, at most 1000, each message once
  p_lease: 100 ms to the instance''s lease_max, null = its lease_default
Returns: one row per message in the order given: status extended (with lease_until),
  ended_otherwise, claim_lost, not_found
Errors: TX400; TX503; TX403
Locks: delivery rows in id order, with those of the ordering keys of lapsed claims
Idempotent: yes; a lease is never shortened';
