-- Claim is a transaction of its own: a fence may be used only after its commit is acknowledged,
-- and a claim inside a longer transaction would hand out leases that nobody else can see yet.
create or replace function trex.claim(
    p_instance_key text,
    p_worker text,
    p_limit integer default 1,
    p_lease interval default null,
    p_box text default 'outbox',
    p_correlation_id text default null,
    p_after bigint default 0,
    p_due_after timestamptz default null
)
returns setof trex.claimed
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_instance trex.instance;
    v_taken record;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_worker) is not true then
        perform trex._raise('TX400', 'worker: a key');
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        perform trex._raise('TX400', 'limit: from 1 to 1000');
    end if;
    if p_lease is not null and trex._is_duration(p_lease, '100 milliseconds', '24 hours') is not true then
        perform trex._raise('TX400', 'lease: from 100 milliseconds to the lease_max of the instance, without months');
    end if;
    if p_box is null or p_box not in ('outbox', 'inbox') then
        perform trex._raise('TX400', 'box: outbox or inbox');
    end if;
    if p_correlation_id is not null and trex._is_key(p_correlation_id) is not true then
        perform trex._raise('TX400', 'correlation_id: a key');
    end if;
    if p_after is null or p_after < 0 then
        perform trex._raise('TX400', 'after: from 0');
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform trex._raise('TX501', 'READ COMMITTED only');
    end if;
    if pg_current_xact_id_if_assigned() is not null then
        perform trex._raise('TX501', 'a transaction of its own, committed before the claims are used');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    if p_lease > v_instance.lease_max then
        perform trex._raise('TX400', 'lease: from 100 milliseconds to the lease_max of the instance, without months');
    end if;
    v_taken := trex._take(
        v_instance, p_worker, p_limit, coalesce(trex._span(p_lease), v_instance.lease_default), p_box, p_correlation_id, p_after,
        p_due_after, trex._now()
    );
    return query
    select
        u.message_id, u.fence, u.attempts, u.tries, u.lease_until, u.uncertain, m.box, m.topic::text,
        m.idempotency_key::text, m.correlation_id::text, m.ordering_key::text, m.account::text, m.currency,
        m.cash_delta, m.payload, m.effect_policy, m.enqueued_at
    from unnest(
        v_taken.ids, v_taken.fences, v_taken.attempts, v_taken.tries, v_taken.uncertain, v_taken.deferred,
        v_taken.leases
    ) u (message_id, fence, attempts, tries, uncertain, deferred_until, lease_until)
    cross join lateral (
        select w.*
        from trex.message w
        where w.instance_key = p_instance_key and w.message_id = u.message_id
        limit 1
    ) m
    order by case when p_correlation_id is null then u.deferred_until end, u.message_id;
end
$$;

alter function trex.claim(
    text, text, integer, interval, text, text, bigint, timestamptz
) owner to trex_owner;
revoke all on function trex.claim(
    text, text, integer, interval, text, text, bigint, timestamptz
) from public;
grant execute on function trex.claim(
    text, text, integer, interval, text, text, bigint, timestamptz
) to trex_worker;

comment on function trex.claim(text, text, integer, interval, text, text, bigint, timestamptz) is
'Gives this worker a lease and a fence on up to p_limit messages that are ready or due.
Arguments:
  p_instance_key: the owner; p_worker: a key, random per process
  p_limit: 1 to 1000; p_lease: 100 ms to the instance''s lease_max, null = its lease_default
  p_box: outbox or inbox; p_correlation_id: only that correlation''s messages, under the same rules
  p_after, p_due_after: hints for speed, the highest message_id and due time this worker has got
    some time ago; 0 and null = sweep
Returns: one row per claim, due ones first, oldest first within each; none when there is nothing to
  claim or the instance is paused
Errors: TX400; TX501 unless READ COMMITTED and first in its transaction; TX503; TX403
Locks: delivery rows (skip locked), an earlier row of an ordering key (skip locked), epoch after a
  restart
Idempotent: no. Use a fence only after this transaction''s commit was acknowledged';
