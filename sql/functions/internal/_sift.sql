-- The rows that claim picked and that need a look before they can be claimed: a lease that ended
-- without an outcome, a used-up allowance, an uncertain at_most_once message, an ordering key.
-- Returns the ids to claim, the ids to leave for now, and how many were moved out of the way
-- (parked, or behind an earlier row). The rows are locked by the caller.
create or replace function trex._sift(
    p_instance trex.instance,
    p_message_ids bigint[],
    p_most integer,
    p_now timestamptz,
    out claimable bigint[],
    out left_alone bigint[],
    out moved integer
)
language plpgsql
volatile
security invoker
as $$
declare
    v_key text := p_instance.instance_key;
    v_row record;
    v_settled record;
    v_parked text;
    v_uncertain boolean;
    v_leased bigint;
    v_ended bigint;
begin
    claimable := '{}';
    left_alone := '{}';
    moved := 0;
    for v_row in
        select
            d.message_id, d.box, d.ordering_key, d.fence, d.attempts, d.tries, d.uncertain,
            d.lease_until is not null as expired, d.sent_fence is not distinct from d.fence and d.fence > 0 as sent,
            m.effect_policy
        from unnest(p_message_ids) with ordinality u (message_id, ord)
        cross join lateral (
            select w.*
            from trex.delivery w
            where w.instance_key = v_key and w.message_id = u.message_id
            limit 1
        ) d
        cross join lateral (
            select w.effect_policy
            from trex.message w
            where w.instance_key = v_key and w.message_id = u.message_id
            limit 1
        ) m
        order by u.ord
    loop
        v_parked := null;
        v_uncertain := v_row.uncertain;
        if v_row.expired then
            v_settled := trex._settle(
                'lease_expired', v_row.effect_policy, v_row.uncertain, v_row.sent, v_row.tries,
                p_instance.max_attempts, false, false
            );
            v_parked := v_settled.parked;
            v_uncertain := v_settled.uncertain;
        elsif v_row.uncertain and v_row.effect_policy = 'at_most_once' then
            v_parked := 'unknown';
        elsif v_row.tries >= p_instance.max_attempts then
            v_parked := case when v_row.uncertain then 'unknown' else 'dead_letter' end;
        end if;
        if v_parked is not null and moved >= p_most then
            left_alone := left_alone || v_row.message_id;
            continue;
        end if;
        if v_row.expired then
            insert into trex.outcome (
                instance_key, message_id, fence, attempt, kind, state, reason, late, recorded_at
            )
            values (
                v_key, v_row.message_id, v_row.fence, v_row.attempts, 'lease_expired', coalesce(v_parked, 'ready'),
                'lease_expired', false, p_now
            );
            update trex.delivery d
            set lease_until = null, worker = null, uncertain = v_uncertain, parked = v_parked,
                deferred_until = case when v_parked is null then d.deferred_until else 'infinity' end
            where d.instance_key = v_key and d.message_id = v_row.message_id;
        elsif v_parked is not null then
            update trex.delivery d set parked = v_parked, deferred_until = 'infinity'
            where d.instance_key = v_key and d.message_id = v_row.message_id;
        end if;
        if v_parked is not null then
            moved := moved + 1;
            perform trex._open_skips(
                v_key, array[v_row.message_id], array[v_parked],
                array[
                    case
                        when v_row.expired then 'lease_expired'
                        when v_row.tries >= p_instance.max_attempts then 'attempts_exhausted'
                        else 'operator'
                    end
                ], p_now
            );
            if p_instance.on_parked = 'continue' then
                perform trex._free_keys(
                    v_key, array[v_row.box], array[v_row.ordering_key], array[v_row.message_id], p_now, false
                );
            end if;
            continue;
        end if;
        if v_row.ordering_key is not null then
            -- Any earlier row will do as long as it is locked: its end then comes after this move and frees the key.
            perform 1
            from trex.delivery d
            where d.instance_key || '' = v_key and d.box = v_row.box
                and d.ordering_key = v_row.ordering_key
                and d.message_id < v_row.message_id
                and (d.parked is null or (p_instance.on_parked = 'block' and not d.abandoned))
            order by d.message_id
            limit 1
            for no key update skip locked;
            if found then
                update trex.delivery d set deferred_until = 'infinity'
                where d.instance_key = v_key and d.message_id = v_row.message_id;
                moved := moved + 1;
                continue;
            end if;
            -- A later row is in flight only where this one was parked meanwhile, so a fresh head
            -- needn't look through all that wait behind it.
            if exists (
                select 1
                from trex.delivery d
                where d.instance_key || '' = v_key and d.box = v_row.box
                    and d.ordering_key = v_row.ordering_key and d.message_id < v_row.message_id
                    and (d.parked is null or (p_instance.on_parked = 'block' and not d.abandoned))
            ) then
                left_alone := left_alone || v_row.message_id;
                continue;
            end if;
            if v_row.attempts > 0 then
                -- A lease that ended is locked: a heartbeat not yet committed may have kept it alive.
                select count(*) into v_leased
                from trex.delivery d
                where d.instance_key || '' = v_key and d.box = v_row.box
                    and d.ordering_key = v_row.ordering_key and d.message_id <> v_row.message_id
                    and d.lease_until is not null;
                if v_leased > 0 then
                    perform 1
                    from trex.delivery d
                    where d.instance_key || '' = v_key and d.box = v_row.box
                        and d.ordering_key = v_row.ordering_key and d.message_id <> v_row.message_id
                        and d.lease_until <= p_now
                    for no key update skip locked;
                    get diagnostics v_ended = row_count;
                    if v_ended < v_leased then
                        left_alone := left_alone || v_row.message_id;
                        continue;
                    end if;
                end if;
            end if;
        end if;
        claimable := claimable || v_row.message_id;
    end loop;
end
$$;
