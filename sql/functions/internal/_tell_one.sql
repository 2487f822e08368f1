-- The two arguments that name a claim.
create or replace function trex._check_claimed(p_message_id bigint, p_fence bigint)
returns void
language plpgsql
immutable
security invoker
as $$
begin
    if p_message_id is null or p_message_id < 1 then
        perform trex._raise('TX400', 'message_id: from 1');
    end if;
    if p_fence is null or p_fence < 1 then
        perform trex._raise('TX400', 'fence: from 1');
    end if;
end
$$;

-- Why mark_sent or hold did nothing: raised, or as data. They aren't outcomes, so any end of
-- this claim is another one and a lost claim leaves no stale report.
create or replace function trex._tell_one(
    p_instance_key text, p_message_id bigint, p_fence bigint, p_on_lost text, p_now timestamptz
)
returns trex.recorded
language plpgsql
volatile
security invoker
as $$
declare
    v_recorded trex.recorded;
begin
    select t.message_id, t.fence, t.status, t.state, false, t.due_at into v_recorded
    from trex._tell(p_instance_key, array[p_message_id], array[p_fence], array[null::text], '{}', p_now) t;
    if p_on_lost = 'raise' then
        perform trex._refuse(v_recorded.status);
    end if;
    return v_recorded;
end
$$;

-- The answers that stop a transaction.
create or replace function trex._refuse(p_status text)
returns void
language plpgsql
immutable
security invoker
as $$
begin
    case p_status
        when 'not_found' then perform trex._raise('TX404', 'no such message in this instance');
        when 'claim_lost' then perform trex._raise('TX409', 'stop work on this message and roll back');
        when 'ended_otherwise' then perform trex._raise('TX410', 'this claim has another end');
        else null;
    end case;
end
$$;
