-- Parked messages stand at 'infinity' in the claim index, in message_id order, so a page reads
-- no others but waiting ones. With `= 'infinity'` the order would be message_id's alone, which
-- the primary key has too, and it would read the whole instance.
create or replace function trex.list_parked(
    p_instance_key text,
    p_limit integer default 100,
    p_after bigint default 0,
    p_box text default 'outbox'
)
returns setof trex.parked
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
begin
    perform trex._check_read(p_instance_key, p_limit, p_after, p_box);
    perform trex._enter(p_instance_key);
    return query
    select
        d.message_id, d.box, d.parked, coalesce(s.reason, o.reason)::text, m.topic::text, m.idempotency_key::text,
        m.correlation_id::text, m.ordering_key::text, m.account::text, m.currency, m.cash_delta, d.attempts,
        d.uncertain, d.abandoned, coalesce(s.opened_at, o.recorded_at), m.enqueued_at
    from (
        select w.*
        from trex.delivery w
        where w.instance_key = p_instance_key and w.box = p_box and w.message_id > 0
            and (w.deferred_until, w.message_id) > ('infinity', p_after) and w.parked is not null
        order by w.deferred_until, w.message_id
        limit p_limit
    ) d
    cross join lateral (
        select w.*
        from trex.message w
        where w.instance_key = p_instance_key and w.message_id = d.message_id
        limit 1
    ) m
    left join lateral (
        select w.reason, w.opened_at
        from trex.ledger_skip w
        where w.instance_key = p_instance_key and w.message_id = d.message_id
            and w.resolved_at is null
        limit 1
    ) s on true
    left join lateral (
        select w.reason, w.recorded_at
        from trex.outcome w
        where w.instance_key = p_instance_key and w.message_id = d.message_id and w.fence = d.fence
        limit 1
    ) o on true
    order by d.deferred_until, d.message_id;
end
$$;

alter function trex.list_parked(text, integer, bigint, text) owner to trex_owner;
revoke all on function trex.list_parked(text, integer, bigint, text) from public;
grant execute on function trex.list_parked(
    text, integer, bigint, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.list_parked(text, integer, bigint, text) is
'Parked messages, a page in message_id order, without payloads: what waits for an operator.
Arguments:
  p_limit: 1 to 10000; p_after: the last message_id of the page before, 0 = from the start; p_box:
    outbox or inbox
Returns: one row per message with how it is parked, why (a code of trex.reason) and since when;
  abandoned: an operator gave it up, so it holds up nothing
Errors: TX400; TX403
Locks: none
Idempotent: yes';
