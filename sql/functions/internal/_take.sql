-- Pick row addresses into an array under lock, then take exactly those: an `in (select ... limit
-- ... skip locked)` takes too many rows under stale statistics, and no plan can be wrong about
-- an address. Due rows (after a retry) get half of the limit, ready ones the rest, a second
-- round gives what is left to due rows again. Rows that need a look first go through trex._sift.
-- Fence and lease come in the update, after every lock: no claim is born expired, no fence is
-- given back.
create or replace function trex._take(
    p_instance trex.instance,
    p_worker text,
    p_limit integer,
    p_lease interval,
    p_box text,
    p_correlation_id text,
    p_after bigint,
    p_due_after timestamptz,
    p_now timestamptz,
    out ids bigint[],
    out fences bigint[],
    out attempts integer[],
    out tries integer[],
    out uncertain boolean[],
    out deferred timestamptz[],
    out leases timestamptz[]
)
language plpgsql
volatile
security invoker
as $$
declare
    v_key text := p_instance.instance_key;
    v_max integer := p_instance.max_attempts;
    v_epoch bigint;
    v_due_after timestamptz := coalesce(p_due_after, '-infinity');
    v_due_share integer;
    v_due integer;
    v_set_aside boolean;
    v_tids tid[];
    v_attempts integer[];
    v_tries integer[];
    v_uncertain boolean[];
    v_special bigint[];
    v_left bigint[] := array[]::bigint[];
    v_got integer := 0;
    v_moved integer := 0;
    v_sifted record;
begin
    if p_instance.paused then
        return;
    end if;
    v_epoch := trex._epoch();
    if p_limit > 1 then
        v_due_share := (p_limit + 1) / 2;
    else
        -- One row a call: due and ready take turns, told by the last fence drawn.
        select case when s.is_called then 1 - s.last_value % 2 else 1 end into v_due_share from trex.fence_seq s;
    end if;
    loop
        if p_correlation_id is not null then
            v_tids := array[]::tid[];
            v_special := array(
                select q.message_id
                from (
                    select m.message_id
                    from trex.message m
                    cross join lateral (
                        select d.message_id
                        from trex.delivery d
                        where d.instance_key = v_key and d.message_id = m.message_id and d.box = p_box
                            and d.parked is null
                            and (d.deferred_until is null or d.deferred_until <= p_now)
                            and (d.lease_until is null or d.lease_until <= p_now)
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
                select d.ctid as tid, d.message_id, d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
                from trex.delivery d
                where d.instance_key = v_key and d.box = p_box and d.message_id > 0
                    and d.deferred_until <= p_now and d.deferred_until > v_due_after
                    and (d.lease_until is null or d.lease_until <= p_now)
                    and d.message_id <> all(v_left)
                order by d.deferred_until, d.message_id
                limit v_due_share
                for no key update skip locked
            ),
            ready as materialized (
                select d.ctid as tid, d.message_id, d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
                from trex.delivery d
                where d.instance_key = v_key and d.box = p_box and d.message_id > 0
                    and d.deferred_until is null and d.message_id > p_after
                    and (d.lease_until is null or d.lease_until <= p_now)
                    and d.message_id <> all(v_left)
                order by d.deferred_until, d.message_id
                limit p_limit - v_got - (select count(*) from due)
                for no key update skip locked
            )
            select
                coalesce(array_agg(p.tid order by p.message_id) filter (where not p.special), array[]::tid[]),
                array_agg(p.message_id order by p.message_id) filter (where p.special),
                (select count(*) from due)
            into v_tids, v_special, v_due
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
            v_tids := v_tids || array(
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
        if v_tids <> '{}' then
            with taken as (
                update trex.delivery d
                set lease_until = (select trex._now()) + p_lease, worker = p_worker,
                    fence = v_epoch + nextval('trex.fence_seq'), attempts = d.attempts + 1, tries = d.tries + 1
                from unnest(v_tids) u (tid)
                where d.ctid = u.tid
                returning
                    d.message_id, d.fence, d.attempts, d.tries, d.uncertain, d.deferred_until, d.lease_until
            )
            select
                ids || array_agg(t.message_id), fences || array_agg(t.fence), v_attempts || array_agg(t.attempts),
                v_tries || array_agg(t.tries), v_uncertain || array_agg(t.uncertain),
                deferred || array_agg(t.deferred_until), leases || array_agg(t.lease_until)
            into ids, fences, v_attempts, v_tries, v_uncertain, deferred, leases
            from taken t;
            v_got := cardinality(ids);
        end if;

        -- Another round: due rows that their share kept out, or rows that stood behind some set aside.
        exit when v_got >= p_limit or v_moved >= 10 * p_limit or cardinality(v_left) >= 10 * p_limit;
        exit when not v_set_aside and (v_due < v_due_share or p_correlation_id is not null);
        v_due_share := p_limit - v_got;
    end loop;
    attempts := v_attempts;
    tries := v_tries;
    uncertain := v_uncertain;
    if v_got < p_limit and p_after = 0 and p_correlation_id is null then
        perform trex._free_heads(v_key, p_box, p_instance.on_parked = 'block', p_now);
    end if;
end
$$;
