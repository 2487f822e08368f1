-- Pick, then take by `= any(array)`: an `in (select ... limit ... skip locked)` takes too many rows under stale statistics. Due rows
-- (after a retry) get half of the limit, ready ones the rest, a second round gives what is left to due rows again. Rows that
-- need a look first are set aside for trex._sift. Fence and lease come in the update, after every lock: no claim is
-- born expired, and no fence is given back.
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
    v_ids bigint[];
    v_fences bigint[];
    v_attempts integer[];
    v_tries integer[];
    v_uncertain boolean[];
    v_deferred timestamptz[];
    v_leases timestamptz[];
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
            v_special := array(
                select q.message_id
                from (
                    select d.message_id
                    from trex.message m
                    join trex.delivery d on d.instance_key = v_key and d.message_id = m.message_id
                    where m.instance_key = v_key and m.correlation_id = p_correlation_id
                        and d.box = p_box and d.parked is null
                        and (d.deferred_until is null or d.deferred_until <= p_now)
                        and (d.lease_until is null or d.lease_until <= p_now)
                        and d.message_id <> all(v_left)
                    order by m.message_id
                    limit p_limit - v_got
                    for no key update of d skip locked
                ) q
            );
            v_due := 0;
            v_ids := null;
            v_fences := null;
            v_attempts := null;
            v_tries := null;
            v_uncertain := null;
            v_deferred := null;
            v_leases := null;
        else
            with due as materialized (
                select
                    d.message_id,
                    d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
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
                select
                    d.message_id,
                    d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
                from trex.delivery d
                where d.instance_key = v_key and d.box = p_box and d.message_id > 0
                    and d.deferred_until is null and d.message_id > p_after
                    and (d.lease_until is null or d.lease_until <= p_now)
                    and d.message_id <> all(v_left)
                order by d.deferred_until, d.message_id
                limit p_limit - v_got - (select count(*) from due)
                for no key update skip locked
            ),
            picked as (
                select due.message_id, due.special from due
                union all
                select ready.message_id, ready.special from ready
            ),
            taken as (
                update trex.delivery d
                set lease_until = (select trex._now()) + p_lease, worker = p_worker,
                    fence = v_epoch + nextval('trex.fence_seq'), attempts = d.attempts + 1, tries = d.tries + 1
                where d.instance_key = v_key
                    and d.message_id = any(array(select p.message_id from picked p where not p.special))
                returning
                    d.message_id, d.fence, d.attempts, d.tries, d.uncertain, d.deferred_until, d.lease_until
            )
            select
                array_agg(t.message_id), array_agg(t.fence), array_agg(t.attempts), array_agg(t.tries),
                array_agg(t.uncertain), array_agg(t.deferred_until), array_agg(t.lease_until),
                array(select p.message_id from picked p where p.special),
                (select count(*) from due)
            into
                v_ids, v_fences, v_attempts, v_tries, v_uncertain, v_deferred, v_leases, v_special, v_due
            from taken t;
        end if;

        v_set_aside := false;
        if v_special <> '{}' then
            v_sifted := trex._sift(p_instance, v_special, 10 * p_limit - v_moved, p_now);
            v_left := v_left || v_sifted.left_alone;
            v_moved := v_moved + v_sifted.moved;
            v_set_aside := v_sifted.moved > 0 or v_sifted.left_alone <> '{}';
            v_special := v_sifted.claimable;
            with taken as (
                update trex.delivery d
                set lease_until = (select trex._now()) + p_lease, worker = p_worker,
                    fence = v_epoch + nextval('trex.fence_seq'), attempts = d.attempts + 1, tries = d.tries + 1
                where d.instance_key = v_key and d.message_id = any(v_special)
                returning
                    d.message_id, d.fence, d.attempts, d.tries, d.uncertain, d.deferred_until, d.lease_until
            )
            select
                v_ids || array_agg(t.message_id), v_fences || array_agg(t.fence),
                v_attempts || array_agg(t.attempts), v_tries || array_agg(t.tries),
                v_uncertain || array_agg(t.uncertain), v_deferred || array_agg(t.deferred_until),
                v_leases || array_agg(t.lease_until)
            into v_ids, v_fences, v_attempts, v_tries, v_uncertain, v_deferred, v_leases
            from taken t;
        end if;
        ids := ids || v_ids;
        fences := fences || v_fences;
        attempts := attempts || v_attempts;
        tries := tries || v_tries;
        uncertain := uncertain || v_uncertain;
        deferred := deferred || v_deferred;
        leases := leases || v_leases;
        v_got := coalesce(cardinality(ids), 0);

        -- Another round: due rows that their share kept out, or rows that stood behind some set aside.
        exit when v_got >= p_limit or v_moved >= 10 * p_limit or cardinality(v_left) >= 10 * p_limit;
        exit when not v_set_aside and (v_due < v_due_share or p_correlation_id is not null);
        v_due_share := p_limit - v_got;
    end loop;
    if v_got < p_limit and p_after = 0 and p_correlation_id is null then
        perform trex._free_heads(v_key, p_box, p_instance.on_parked = 'block', p_now);
    end if;
end
$$;
