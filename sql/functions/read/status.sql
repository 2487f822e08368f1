-- One message, by its id or by its key: what it is now, and how it was delivered or why it wasn't.
create or replace function trex.status(
    p_instance_key text,
    p_message_id bigint default null,
    p_idempotency_key text default null,
    p_box text default 'outbox'
)
returns trex.message_status
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_now timestamptz;
    v_id bigint := p_message_id;
    v_status trex.message_status;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if num_nonnulls(p_message_id, p_idempotency_key) <> 1 or p_message_id < 1
        or trex._is_key(p_idempotency_key) is false
    then
        perform trex._raise('TX400', case
            when p_message_id >= 1 or p_message_id is null and trex._is_key(p_idempotency_key) is false
                then 'idempotency_key: a key, or a message_id instead'
            else 'message_id: from 1, or an idempotency_key instead'
        end);
    end if;
    if p_box is null or p_box not in ('outbox', 'inbox') then
        perform trex._raise('TX400', 'box: outbox or inbox');
    end if;
    perform trex._enter(p_instance_key);
    v_now := trex._now();
    if v_id is null then
        select m.message_id into v_id
        from trex.message m
        where m.instance_key = p_instance_key and m.box = p_box and m.idempotency_key = p_idempotency_key;
    end if;
    select
        m.message_id, m.box,
        case
            when r.message_id is null then trex._state(d.parked, d.lease_until, d.deferred_until, v_now)
            else 'delivered'
        end,
        case when r.message_id is null then coalesce(s.reason, o.reason)::text end,
        m.topic::text, m.idempotency_key::text, coalesce(r.attempt, d.attempts), coalesce(d.tries, 0),
        coalesce(r.fence, d.fence), coalesce(d.uncertain, false), d.worker, d.lease_until,
        case when d.lease_until is null then nullif(d.deferred_until, 'infinity') end,
        m.enqueued_at, r.delivered_at, r.duplicate, r.confirmed_by, r.reference
    into v_status
    from trex.message m
    left join trex.delivery d on d.instance_key = p_instance_key and d.message_id = v_id
    left join trex.receipt r on r.instance_key = p_instance_key and r.message_id = v_id
    left join trex.ledger_skip s
        on s.instance_key = p_instance_key and s.message_id = v_id and s.resolved_at is null and d.parked is not null
    left join lateral (
        select e.reason
        from trex.outcome e
        where e.instance_key = p_instance_key and e.message_id = v_id
        order by e.fence desc
        limit 1
    ) o on true
    where m.instance_key = p_instance_key and m.message_id = v_id;
    if not found then
        perform trex._raise('TX404', 'no such message in this instance');
    end if;
    return v_status;
end
$$;

alter function trex.status(text, bigint, text, text) owner to trex_owner;
revoke all on function trex.status(text, bigint, text, text) from public;
grant execute on function trex.status(
    text, bigint, text, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.status(text, bigint, text, text) is
'One message: its state now, its counters, and its delivery.
Arguments:
  p_message_id, or p_idempotency_key with p_box: exactly one of the two
Returns: one message_status; state is ready, deferred, waiting, leased, lease_ended, delivered, or
  how it is parked
  reason: why it is parked, or why its last claim ended without delivery; null when there is none,
    or once delivered
  attempts and fence: of the delivering claim once delivered (tries is 0 then)
Errors: TX400; TX403; TX404 no such message here
Locks: none
Idempotent: yes';
