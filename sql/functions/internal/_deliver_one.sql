-- One delivery: the same compare-and-set as in trex._record, but in one statement: the delivery
-- goes and its receipt comes. There a batch of one costs twice as much. Null when there was nothing
-- to record; trex._record then says why.
create or replace function trex._deliver_one(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_result text,
    p_confirmed_by text,
    p_reference text,
    p_balance numeric,
    p_version bigint,
    p_now timestamptz,
    p_numbered boolean
)
returns trex.recorded
language plpgsql
volatile
security invoker
as $$
declare
    v_gone record;
begin
    with gone as (
        delete from trex.delivery d
        where d.instance_key = p_instance_key and d.message_id = p_message_id
            and d.fence = p_fence and d.lease_until is not null
        returning
            d.attempts, d.lease_until <= p_now as late, d.deferred_until is not null as deferred,
            d.box, d.ordering_key
    ),
    stored as (
        insert into trex.receipt (
            instance_key, message_id, fence, attempt, duplicate, late, confirmed_by, reference,
            delivered_at
        )
        select
            p_instance_key, p_message_id, p_fence, g.attempts, p_result = 'duplicate', g.late,
            coalesce(p_confirmed_by, 'answer'), p_reference, p_now
        from gone g
    )
    select g.late, g.deferred, g.box, g.ordering_key into v_gone from gone g;
    if not found then
        return null;
    end if;
    if v_gone.deferred then
        -- Only a message that was parked before can have an open skip; it came back with a due time.
        update trex.ledger_skip s
        set resolved_at = p_now, resolved_fence = p_fence
        where s.instance_key = p_instance_key and s.message_id = p_message_id
            and s.resolved_at is null;
    end if;
    if p_version is not null then
        perform trex._store_snapshots(
            p_instance_key, array[p_message_id], array[p_message_id], array[p_fence],
            array[p_balance], array[p_version], p_now, p_numbered
        );
    end if;
    if v_gone.ordering_key is not null then
        perform trex._free_keys(
            p_instance_key, array[v_gone.box], array[v_gone.ordering_key], array[p_message_id],
            p_now, true
        );
    end if;
    return (p_message_id, p_fence, 'recorded', 'delivered', v_gone.late, null)::trex.recorded;
end
$$;
