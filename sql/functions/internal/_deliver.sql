-- The only statement that ends the work on a message: its delivery goes and its receipt comes. A skip can only be open where
-- the message was parked before, which shows in tries <> attempts (p_had_skips).
create or replace function trex._deliver(
    p_instance_key text,
    p_message_ids bigint [],
    p_fences bigint [],
    p_attempts integer [],
    p_duplicates boolean [],
    p_lates boolean [],
    p_confirmed_by text [],
    p_references text [],
    p_had_skips boolean,
    p_now timestamptz
)
returns void
language plpgsql
volatile
security invoker
as $$
begin
    with gone as (
        delete from trex.delivery d
        where d.instance_key = p_instance_key and d.message_id = any(p_message_ids)
    )
    insert into trex.receipt (
        instance_key, message_id, fence, attempt, duplicate, late, confirmed_by, reference, delivered_at
    )
    select
        p_instance_key, u.message_id, u.fence, u.attempt, u.duplicate, u.late, u.confirmed_by, u.reference, p_now
    from unnest(p_message_ids, p_fences, p_attempts, p_duplicates, p_lates, p_confirmed_by, p_references)
        u (message_id, fence, attempt, duplicate, late, confirmed_by, reference);
    if p_had_skips then
        update trex.ledger_skip s
        set resolved_at = p_now, resolved_fence = u.fence
        from unnest(p_message_ids, p_fences) u (message_id, fence)
        where s.instance_key = p_instance_key and s.message_id = any(p_message_ids)
            and s.message_id = u.message_id and s.resolved_at is null;
    end if;
end
$$;
