-- What is wrong with the arguments of a claim, as a hint of constant text; null when nothing is.
-- Plain SQL, so that it is inlined.
create or replace function trex._claim_hint(
    p_instance_key text,
    p_worker text,
    p_limit integer,
    p_lease interval,
    p_box text,
    p_correlation_id text,
    p_after bigint
)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select case
    when trex._is_slug(p_instance_key) is not true then 'instance_key'
    when trex._is_key(p_worker) is not true then 'worker: a key'
    when p_limit is null or p_limit not between 1 and 1000 then 'limit: from 1 to 1000'
    when p_lease is not null
        and trex._is_duration(p_lease, '100 milliseconds', '24 hours') is not true
        then 'lease: from 100 milliseconds to the lease_max of the instance, without months'
    when p_box is null or p_box not in ('outbox', 'inbox') then 'box: outbox or inbox'
    when trex._is_key(p_correlation_id) is false then 'correlation_id: a key'
    when p_after is null or p_after < 0 then 'after: from 0'
end
$$;

-- Which rows a claim gets: their addresses, under lock, in the order in which fences are drawn. An
-- `in (select ... limit ... skip locked)` takes too many rows under stale statistics, and no
-- plan can be wrong about an address. Due rows (after a retry) get half of the limit, ready ones
-- the rest, a second round gives what is left to due rows again. Rows that need a look first go
-- through trex._sift. Its callers plan without sorts, and every look here asks for an order: only
-- the index of claims has it. When vacuum has just counted no rows the primary key costs less,
-- and would read the whole instance.
create or replace function trex._take(
    p_instance trex.instance,
    p_limit integer,
    p_box text,
    p_correlation_id text,
    p_after bigint,
    p_due_after timestamptz,
    p_now timestamptz
)
returns tid[]
language plpgsql
volatile
security invoker
as $$
declare
    v_key text := p_instance.instance_key;
    v_max integer := p_instance.max_attempts;
    v_due_after timestamptz := coalesce(p_due_after, '-infinity');
    v_due_share integer;
    v_due integer;
    v_set_aside boolean;
    v_tids tid[];
    v_picked tid[];
    v_special bigint[];
    v_got integer := 0;
    v_left bigint[] := array[]::bigint[];
    v_moved integer := 0;
    v_sifted record;
begin
    -- Most calls: nothing is due, and no ready row needs a look.
    if p_correlation_id is null then
        select array(
            select
                case
                    when d.lease_until is null and d.tries < v_max and not d.uncertain
                        and d.ordering_key is null
                        then d.ctid
                end
            from trex.delivery d
            where d.instance_key = v_key and d.box = p_box and d.message_id > 0
                and d.deferred_until is null and d.message_id > p_after
                and (d.lease_until is null or d.lease_until <= p_now)
            order by d.deferred_until, d.message_id
            limit p_limit
            for no key update skip locked
        )
        into v_tids
        where (
            select true
            from trex.delivery d
            where d.instance_key = v_key and d.box = p_box and d.message_id > 0
                and d.deferred_until <= p_now and d.deferred_until > v_due_after
                and (d.lease_until is null or d.lease_until <= p_now)
            order by d.deferred_until, d.message_id
            limit 1
        ) is null;
        if array_position(v_tids, null) is null and v_tids is not null then
            v_got := cardinality(v_tids);
        else
            v_tids := null;
        end if;
    end if;

    if v_tids is null then
        v_tids := array[]::tid[];
        v_due_share := case
            when p_limit > 1 then (p_limit + 1) / 2
            -- One row a call: due and ready take turns, told by the last fence drawn.
            else 1 - coalesce(pg_sequence_last_value('trex.fence_seq'), 0) % 2
        end;
        loop
            if p_correlation_id is not null then
                v_picked := array[]::tid[];
                v_special := array(
                    select q.message_id
                    from (
                        select m.message_id
                        from trex.message m
                        cross join lateral (
                            select d.message_id
                            from trex.delivery d
                            where d.instance_key = v_key and d.message_id = m.message_id
                                and d.box = p_box
                                and d.parked is null
                                and (d.deferred_until is null or d.deferred_until <= p_now)
                                and (d.lease_until is null or d.lease_until <= p_now)
                                and d.ctid <> all(v_tids)
                            limit 1
                            for no key update skip locked
                        ) l
                        where m.instance_key = v_key and m.correlation_id = p_correlation_id
                            and m.message_id <> all(v_left)
                        order by m.message_id
                        limit p_limit - v_got
                    ) q
                );
            else
                with due as materialized (
                    select
                        d.ctid as tid, d.message_id,
                        d.lease_until is not null or d.tries >= v_max or d.uncertain
                        or d.ordering_key is not null as special
                    from trex.delivery d
                    where d.instance_key = v_key and d.box = p_box and d.message_id > 0
                        and d.deferred_until <= p_now and d.deferred_until > v_due_after
                        and (d.lease_until is null or d.lease_until <= p_now)
                        and d.message_id <> all(v_left) and d.ctid <> all(v_tids)
                    order by d.deferred_until, d.message_id
                    limit v_due_share
                    for no key update skip locked
                ),
                ready as materialized (
                    select
                        d.ctid as tid, d.message_id,
                        d.lease_until is not null or d.tries >= v_max or d.uncertain
                        or d.ordering_key is not null as special
                    from trex.delivery d
                    where d.instance_key = v_key and d.box = p_box and d.message_id > 0
                        and d.deferred_until is null and d.message_id > p_after
                        and (d.lease_until is null or d.lease_until <= p_now)
                        and d.message_id <> all(v_left) and d.ctid <> all(v_tids)
                    order by d.deferred_until, d.message_id
                    limit p_limit - v_got - (select count(*) from due)
                    for no key update skip locked
                )
                select
                    coalesce(
                        array_agg(p.tid order by p.message_id) filter (where not p.special),
                        array[]::tid[]
                    ),
                    array_agg(p.message_id order by p.message_id) filter (where p.special),
                    (select count(*) from due)
                into v_picked, v_special, v_due
                from (
                    select due.tid, due.message_id, due.special from due
                    union all
                    select ready.tid, ready.message_id, ready.special from ready
                ) p;
            end if;
            v_set_aside := false;
            if v_special <> '{}' then
                v_sifted := trex._sift(p_instance, v_special, 10 * p_limit - v_moved, p_now);
                v_left := v_left || v_sifted.left_alone;
                v_moved := v_moved + v_sifted.moved;
                v_set_aside := v_sifted.moved > 0 or v_sifted.left_alone <> '{}';
                v_picked := v_picked || array(
                    select l.tid
                    from unnest(v_sifted.claimable) with ordinality u (message_id, ord)
                    cross join lateral (
                        select d.ctid as tid
                        from trex.delivery d
                        where d.instance_key = v_key and d.message_id = u.message_id
                        limit 1
                    ) l
                    order by u.ord
                );
            end if;
            v_tids := v_tids || v_picked;
            v_got := cardinality(v_tids);

            -- Another round: due rows that their share kept out, or rows behind some set aside.
            exit when v_got >= p_limit or v_moved >= 10 * p_limit
                or cardinality(v_left) >= 10 * p_limit;
            exit when not v_set_aside and (v_due < v_due_share or p_correlation_id is not null);
            v_due_share := p_limit - v_got;
        end loop;
    end if;
    if v_got < p_limit and p_after = 0 and p_correlation_id is null then
        perform trex._free_heads(v_key, p_box, p_instance.on_parked = 'block', p_now);
    end if;
    return v_tids;
end
$$;
