-- What became of one received event, in the four words that its sender understands.
create or replace function trex.inbox_status(
    p_instance_key text,
    p_message_id bigint default null,
    p_provider text default null,
    p_account text default null,
    p_event_id text default null
)
returns trex.inbox_state
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_id bigint := p_message_id;
    v_now timestamptz;
    v_state trex.inbox_state;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if (p_message_id is null) = (num_nulls(p_provider, p_account, p_event_id) > 0)
        or (p_message_id is not null and num_nonnulls(p_provider, p_account, p_event_id) > 0)
        or p_message_id < 1 or trex._is_slug(p_provider) is false or trex._is_key(p_account) is false
        or trex._is_key(p_event_id) is false
    then
        perform trex._raise('TX400', 'message_id from 1, or provider, account and event_id');
    end if;
    perform trex._enter(p_instance_key);
    v_now := trex._now();
    if v_id is null then
        select m.message_id into v_id
        from trex.message m
        where m.instance_key = p_instance_key and m.box = 'inbox'
            and m.idempotency_key = trex._event_key(p_provider, p_account, p_event_id);
    end if;
    select
        e.message_id, e.provider::text, e.account::text, e.event_id::text, e.event_type::text, e.object_id::text,
        case
            when r.message_id is not null then 'processed'
            when d.parked is not null then 'failed'
            when d.lease_until is not null then 'processing'
            else 'received'
        end,
        case
            when r.message_id is null then trex._state(d.parked, d.lease_until, d.deferred_until, v_now)
            else 'delivered'
        end,
        case when r.message_id is null then o.reason::text end,
        coalesce(r.attempt, d.attempts),
        case when d.lease_until is null then nullif(d.deferred_until, 'infinity') end,
        (
            select count(*) from trex.inbox_variant v
            where v.instance_key = p_instance_key and v.message_id = e.message_id
        ),
        e.received_at, r.delivered_at
    into v_state
    from trex.inbox_event e
    left join trex.delivery d on d.instance_key = p_instance_key and d.message_id = v_id
    left join trex.receipt r on r.instance_key = p_instance_key and r.message_id = v_id
    left join lateral (
        select u.reason
        from trex.outcome u
        where u.instance_key = p_instance_key and u.message_id = v_id
        order by u.fence desc
        limit 1
    ) o on true
    where e.instance_key = p_instance_key and e.message_id = v_id;
    if not found then
        perform trex._raise('TX404', 'no such event in this instance');
    end if;
    return v_state;
end
$$;

alter function trex.inbox_status(text, bigint, text, text, text) owner to trex_owner;
revoke all on function trex.inbox_status(text, bigint, text, text, text) from public;
grant execute on function trex.inbox_status(
    text, bigint, text, text, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.inbox_status(text, bigint, text, text, text) is
'One received event: received, processing, processed or failed, and why.
Arguments:
  p_message_id, or p_provider, p_account and p_event_id: exactly one of the two ways
Returns: one inbox_state; status received (waits, also for a retry), processing (claimed),
  processed, failed (parked); the
  message''s own state, the reason of its last end without success, and how many other bodies came
    under its id
Errors: TX400; TX403; TX404 no such event here
Locks: none
Idempotent: yes';
