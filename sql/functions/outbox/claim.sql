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
set enable_sort = off
as $$
declare
    v_hint text;
    v_entered trex.entered;
    v_instance trex.instance;
    v_lease interval;
    v_epoch bigint;
    v_tids tid[];
    v_count integer;
    v_now timestamptz;
begin
    v_hint := trex._claim_hint(
        p_instance_key, p_worker, p_limit, p_lease, p_box, p_correlation_id, p_after
    );
    if v_hint is not null then
        perform trex._raise('TX400', v_hint);
    end if;
    if current_setting('transaction_isolation') <> 'read committed'
        or pg_current_xact_id_if_assigned() is not null
    then
        perform trex._raise(
            'TX501',
            'READ COMMITTED, a transaction of its own, committed before the claims are used'
        );
    end if;
    v_entered := trex._enter_worker(p_instance_key);
    v_instance := v_entered.instance;
    v_lease := v_instance.lease_default;
    if p_lease is not null then
        if p_lease > v_instance.lease_max then
            perform trex._raise(
                'TX400',
                'lease: from 100 milliseconds to the lease_max of the instance, without months'
            );
        end if;
        v_lease := trex._span(p_lease);
    end if;
    v_now := trex._now();
    if v_instance.paused then
        return;
    end if;
    v_epoch := coalesce(v_entered.epoch, trex._epoch());
    v_tids := trex._take(v_instance, p_limit, p_box, p_correlation_id, p_after, p_due_after, v_now);
    if v_tids = '{}' then
        return;
    end if;
    -- Lease and fence come after every lock: no claim is born expired, no fence is given back.
    return query
    with taken as (
        update trex.delivery d
        set lease_until = (select trex._now()) + v_lease, worker = p_worker,
            fence = v_epoch + nextval('trex.fence_seq'), attempts = d.attempts + 1,
            tries = d.tries + 1
        from unnest(v_tids) u (tid)
        where d.ctid = u.tid
        returning
            d.message_id, d.fence, d.attempts, d.tries, d.lease_until, d.uncertain, d.deferred_until
    )
    select
        t.message_id, t.fence, t.attempts, t.tries, t.lease_until, t.uncertain, m.box,
        m.topic::text, m.idempotency_key::text, m.correlation_id::text, m.ordering_key::text,
        m.account::text, m.currency, m.cash_delta, m.payload, m.effect_policy, m.enqueued_at
    from (
        select k.*
        from taken k
        order by case when p_correlation_id is null then k.deferred_until end, k.message_id
    ) t
    cross join lateral (
        select w.*
        from trex.message w
        where w.instance_key = p_instance_key and w.message_id = t.message_id
        limit 1
    ) m;
    get diagnostics v_count = row_count;
    if v_count <> cardinality(v_tids) then
        perform trex._raise('TX902', 'a locked delivery has another address, or no message');
    end if;
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
Locks: delivery rows (skip locked), an earlier row of an ordering key (skip locked), for a row that
  came back the ended leases of its key (skip locked), epoch after a restart
Idempotent: no. Use a fence only after this transaction''s commit was acknowledged';
