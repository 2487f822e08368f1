-- The name of a delivery's state.
create or replace function trex._state(
    p_parked text, p_lease_until timestamptz, p_deferred_until timestamptz, p_now timestamptz
)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select case
    when p_parked is not null then p_parked
    when p_lease_until > p_now then 'leased'
    when p_lease_until is not null then 'lease_ended'
    when p_deferred_until = 'infinity' then 'waiting'
    when p_deferred_until > p_now then 'deferred'
    else 'ready'
end
$$;

-- Why a report wasn't recorded, and what the message is now. p_done are the ids recorded in this
-- call. A fence that ended by lease_expired is a lost claim, not another outcome. `given`: the
-- fence was once handed out for this message.
create or replace function trex._tell(
    p_instance_key text,
    p_message_ids bigint[],
    p_fences bigint[],
    p_results text[],
    p_done bigint[],
    p_now timestamptz
)
returns table (
    message_id bigint,
    fence bigint,
    result text,
    status text,
    state text,
    due_at timestamptz,
    given boolean
)
language sql
volatile
security invoker
as $$
select
    i.message_id, i.fence, i.result,
    case
        when m.message_id is null then 'not_found'
        when r.result = i.result or o.kind = i.result then 'already_recorded'
        when r.result is not null or o.kind <> 'lease_expired' then 'ended_otherwise'
        else 'claim_lost'
    end,
    case
        when m.message_id is null or (r.result is null and coalesce(o.kind, 'lease_expired') = 'lease_expired') then null
        when e.message_id is not null then 'delivered'
        else trex._state(d.parked, d.lease_until, d.deferred_until, p_now)
    end,
    case
        when r.result is null and coalesce(o.kind, 'lease_expired') = 'lease_expired' then null
        when d.lease_until is null then nullif(d.deferred_until, 'infinity')
    end,
    r.result is not null or o.kind is not null or e.fence = i.fence or d.fence = i.fence
from unnest(p_message_ids, p_fences, p_results) i (message_id, fence, result)
left join lateral (
    select w.*
    from trex.message w
    where w.instance_key = p_instance_key and w.message_id = i.message_id
    limit 1
) m on true
left join lateral (
    select w.*
    from trex.delivery w
    where w.instance_key = p_instance_key and w.message_id = i.message_id
    limit 1
) d on true
left join lateral (
    select w.*
    from trex.receipt w
    where w.instance_key = p_instance_key and w.message_id = i.message_id
    limit 1
) e on true
left join lateral (
    select case when e.duplicate then 'duplicate' else 'completed' end as result
    where e.fence = i.fence and e.confirmed_by <> 'operator'
) r on true
left join lateral (
    select w.kind
    from trex.outcome w
    where w.instance_key = p_instance_key and w.message_id = i.message_id and w.fence = i.fence
    limit 1
) o on true
where i.message_id <> all(coalesce(p_done, '{}'))
$$;
