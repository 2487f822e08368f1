-- A page by message_id. Sorting is off so that no plan reads the whole box for one page.
create or replace function trex.list_pending(
    p_instance_key text,
    p_limit integer default 100,
    p_after bigint default 0,
    p_box text default 'outbox',
    p_include_parked boolean default false
)
returns setof trex.pending
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
declare
    v_now timestamptz;
begin
    perform trex._check_read(p_instance_key, p_limit, p_after, p_box);
    if p_include_parked is null then
        perform trex._raise('TX400', 'include_parked: true or false');
    end if;
    perform trex._enter(p_instance_key);
    v_now := trex._now();
    return query
    select
        d.message_id, d.box, trex._state(d.parked, d.lease_until, d.deferred_until, v_now), m.topic::text,
        m.idempotency_key::text, m.correlation_id::text, m.ordering_key::text, m.account::text, m.currency,
        m.cash_delta, case when d.lease_until is null then nullif(d.deferred_until, 'infinity') end, d.attempts,
        d.tries, d.uncertain, m.enqueued_at
    from (
        select w.*
        from trex.delivery w
        where w.instance_key = p_instance_key and w.message_id > p_after and w.box = p_box
            and (w.parked is null or p_include_parked) and (w.lease_until is null or w.lease_until <= v_now)
        order by w.message_id
        limit p_limit
    ) d
    cross join lateral (
        select w.*
        from trex.message w
        where w.instance_key = p_instance_key and w.message_id = d.message_id
        limit 1
    ) m
    order by d.message_id;
end
$$;

alter function trex.list_pending(text, integer, bigint, text, boolean) owner to trex_owner;
revoke all on function trex.list_pending(text, integer, bigint, text, boolean) from public;
grant execute on function trex.list_pending(
    text, integer, bigint, text, boolean
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.list_pending(text, integer, bigint, text, boolean) is
'Undelivered messages not under an active lease, a page in message_id order, without payloads.
Arguments:
  p_limit: 1 to 10000; p_after: the last message_id of the page before, 0 = from the start; p_box:
    outbox or inbox
  p_include_parked: true shows parked ones as well
Returns: one row per message; state is ready, deferred, waiting, lease_ended, or how it is parked;
  due_at is null unless it
  waits, or waited, for a time
Errors: TX400; TX403
Locks: none
Idempotent: yes';
