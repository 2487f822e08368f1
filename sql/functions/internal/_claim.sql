-- Pick ids into an array, sift the ones that need it, then take them by `= any(array)`: an `in (select ... limit ... skip locked)` takes
-- too many rows under stale statistics. Due rows (after a retry) get half of the limit, ready ones the rest, what is left goes to due
-- rows again. The fence is drawn and the lease starts in the update, after every lock: no claim is born expired.
create or replace function trex._claim(
    p_instance trex.instance,
    p_worker text,
    p_limit integer,
    p_lease interval,
    p_box text,
    p_correlation_id text,
    p_after bigint,
    p_due_after timestamptz,
    p_now timestamptz
)
returns setof trex.claimed
language plpgsql
volatile
security invoker
as $$
declare
    v_key text := p_instance.instance_key;
    v_max integer := p_instance.max_attempts;
    v_epoch bigint;
    v_ids bigint[];
    v_more bigint[];
    v_left bigint[] := '{}';
    v_special boolean;
    v_more_special boolean;
    v_picked integer;
    v_got integer := 0;
    v_moved integer := 0;
    v_due_share integer;
    v_sifted record;
begin
    if p_instance.paused then
        return;
    end if;
    v_epoch := trex._epoch();
    loop
        v_ids := '{}';
        v_special := false;
        if p_correlation_id is not null then
            select array_agg(q.message_id), bool_or(q.special) into v_ids, v_special
            from (
                select
                    d.message_id,
                    d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
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
            ) q;
        else
            -- One row a call: turns, told by the last fence drawn.
            v_due_share := case
                when p_limit > 1 then (p_limit - v_got + 1) / 2
                when (select case when s.is_called then s.last_value else 0 end % 2 = 0 from trex.fence_seq s) then 1
                else 0
            end;
            if v_due_share > 0 then
                select array_agg(q.message_id), bool_or(q.special) into v_ids, v_special
                from (
                    select
                        d.message_id,
                        d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
                    from trex.delivery d
                    where d.instance_key = v_key and d.box = p_box
                        and d.deferred_until <= p_now and d.deferred_until > coalesce(p_due_after, '-infinity')
                        and (d.lease_until is null or d.lease_until <= p_now)
                        and d.message_id <> all(v_left)
                    order by d.deferred_until, d.message_id
                    limit v_due_share
                    for no key update skip locked
                ) q;
            end if;
            v_picked := coalesce(cardinality(v_ids), 0);
            if v_picked < p_limit - v_got then
                select array_agg(q.message_id), bool_or(q.special) into v_more, v_more_special
                from (
                    select
                        d.message_id,
                        d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
                    from trex.delivery d
                    where d.instance_key = v_key and d.box = p_box
                        and d.deferred_until is null and d.message_id > p_after
                        and (d.lease_until is null or d.lease_until <= p_now)
                        and d.message_id <> all(v_left)
                    order by d.deferred_until, d.message_id
                    limit p_limit - v_got - v_picked
                    for no key update skip locked
                ) q;
                v_ids := v_ids || v_more;
                v_special := v_special is true or v_more_special is true;
            end if;
            if v_picked >= v_due_share and coalesce(cardinality(v_ids), 0) < p_limit - v_got then
                v_picked := coalesce(cardinality(v_ids), 0);
                select array_agg(q.message_id), bool_or(q.special) into v_more, v_more_special
                from (
                    select
                        d.message_id,
                        d.lease_until is not null or d.tries >= v_max or d.uncertain or d.ordering_key is not null as special
                    from trex.delivery d
                    where d.instance_key = v_key and d.box = p_box
                        and d.deferred_until <= p_now and d.deferred_until > coalesce(p_due_after, '-infinity')
                        and (d.lease_until is null or d.lease_until <= p_now)
                        and d.message_id <> all(v_left || v_ids)
                    order by d.deferred_until, d.message_id
                    limit p_limit - v_got - v_picked
                    for no key update skip locked
                ) q;
                v_ids := v_ids || v_more;
                v_special := v_special is true or v_more_special is true;
            end if;
        end if;

        v_picked := coalesce(cardinality(v_ids), 0);
        exit when v_picked = 0;
        if v_special then
            v_sifted := trex._sift(p_instance, v_ids, 10 * p_limit - v_moved, p_now);
            v_ids := v_sifted.claimable;
            v_left := v_left || v_sifted.left_alone;
            v_moved := v_moved + v_sifted.moved;
        end if;
        v_got := v_got + cardinality(v_ids);

        return query
        with c as (
            update trex.delivery d
            set lease_until = (select trex._now()) + p_lease, worker = p_worker, fence = v_epoch + nextval('trex.fence_seq'),
                attempts = d.attempts + 1, tries = d.tries + 1
            where d.instance_key = v_key and d.message_id = any(v_ids)
            returning
                d.message_id, d.fence, d.attempts, d.tries, d.lease_until, d.uncertain, d.deferred_until
        )
        select
            c.message_id, c.fence, c.attempts, c.tries, c.lease_until, c.uncertain, m.box, m.topic::text,
            m.idempotency_key::text, m.correlation_id::text, m.ordering_key::text, m.account::text, m.currency,
            m.cash_delta, m.payload, m.effect_policy, m.enqueued_at
        from c
        join trex.message m on m.instance_key = v_key and m.message_id = c.message_id
        where m.message_id = any(v_ids)
        order by case when p_correlation_id is null then c.deferred_until end, c.message_id;

        -- Another round only where rows were set aside and more may stand behind them.
        exit when v_got >= p_limit or not v_special or v_moved >= 10 * p_limit or cardinality(v_left) >= 10 * p_limit;
    end loop;
    if v_got < p_limit and p_after = 0 and p_correlation_id is null then
        perform trex._free_heads(v_key, p_box, p_instance.on_parked = 'block', p_now, 1000);
    end if;
end
$$;
