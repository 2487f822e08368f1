-- Record and claim in one round trip and one commit: what a busy worker calls. The claims are
-- made in the transaction of the records, so it must be a transaction of its own like claim's.
create or replace function trex.exchange(
    p_instance_key text,
    p_worker text,
    p_limit integer default 1,
    p_lease interval default null,
    p_box text default 'outbox',
    p_after bigint default 0,
    p_due_after timestamptz default null,
    p_message_ids bigint[] default '{}',
    p_fences bigint[] default '{}',
    p_results text[] default '{}',
    p_reasons text[] default null,
    p_delays interval[] default null,
    p_absent boolean[] default null,
    p_park boolean[] default null,
    p_confirmed_by text[] default null,
    p_references text[] default null,
    p_balances numeric[] default null,
    p_versions bigint[] default null
)
returns setof trex.exchanged
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
    v_recorded trex.recorded;
begin
    v_hint := trex._claim_hint(
        p_instance_key, p_worker, p_limit, p_lease, p_box, null, p_after
    );
    if v_hint is not null then
        perform trex._raise('TX400', v_hint);
    end if;
    perform trex._check_reports(
        p_message_ids, p_fences, p_results, p_reasons, p_delays, p_absent, p_park, p_confirmed_by,
        p_references, p_balances, p_versions
    );
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
    if p_results = '{completed}' or p_results = '{duplicate}' then
        v_recorded := trex._deliver_one(
            p_instance_key, p_message_ids[1], p_fences[1], p_results[1], p_confirmed_by[1],
            p_references[1], p_balances[1], p_versions[1], v_now, true
        );
    end if;
    if v_recorded.status is not null then
        return next (
            v_recorded.status, v_recorded.state, v_recorded.late, v_recorded.due_at,
            v_recorded.message_id, v_recorded.fence, null, null, null, null, null, null, null, null,
            null, null, null, null, null, null, null
        )::trex.exchanged;
    elsif p_message_ids <> '{}' then
        return query
        select
            r.status, r.state, r.late, r.due_at, r.message_id, r.fence, null::integer, null::integer,
            null::timestamptz, null::boolean, null::text, null::text, null::text, null::text, null::text,
            null::text, null::text, null::numeric, null::jsonb, null::text, null::timestamptz
        from trex._record(
            v_instance, p_message_ids, p_fences, p_results, p_reasons, p_delays, p_absent, p_park,
            p_confirmed_by, p_references, p_balances, p_versions, v_now
        ) r;
    end if;
    if v_instance.paused then
        return;
    end if;
    v_epoch := coalesce(v_entered.epoch, trex._epoch());
    v_tids := trex._take(v_instance, p_limit, p_box, null, p_after, p_due_after, v_now);
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
        null::text, null::text, null::boolean, null::timestamptz, t.message_id, t.fence, t.attempts,
        t.tries, t.lease_until, t.uncertain, m.box, m.topic::text,
        m.idempotency_key::text, m.correlation_id::text, m.ordering_key::text, m.account::text,
        m.currency, m.cash_delta, m.payload, m.effect_policy, m.enqueued_at
    from (
        select k.*
        from taken k
        order by k.deferred_until, k.message_id
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

alter function trex.exchange(
    text, text, integer, interval, text, bigint, timestamptz, bigint[], bigint[], text[],
    text[], interval[], boolean[], boolean[], text[], text[], numeric[], bigint[]
) owner to trex_owner;
revoke all on function trex.exchange(
    text, text, integer, interval, text, bigint, timestamptz, bigint[], bigint[], text[],
    text[], interval[], boolean[], boolean[], text[], text[], numeric[], bigint[]
) from public;
grant execute on function trex.exchange(
    text, text, integer, interval, text, bigint, timestamptz, bigint[], bigint[], text[],
    text[], interval[], boolean[], boolean[], text[], text[], numeric[], bigint[]
) to trex_worker;

comment on function trex.exchange(
    text, text, integer, interval, text, bigint, timestamptz, bigint[], bigint[], text[],
    text[], interval[], boolean[], boolean[], text[], text[], numeric[], bigint[]
) is
'Records outcomes and claims the next batch: one round trip, one commit.
Arguments: those of claim (without correlation), then those of record
  p_message_ids, p_fences, p_results: arrays of the same length, at most 1000; each message once;
    results are
  completed, duplicate, retry, unknown, conflict, permanent, dead_letter, released, postponed
  p_reasons: codes of the domain trex.reason, not for deliveries (default unspecified)
  p_delays: 0 to 30 days, for retry and unknown (at least the backoff is waited) and postponed
    (required)
  p_absent: a look-up or a same-key answer showed for certain that no earlier attempt took effect;
    clears uncertain
  p_park: for unknown, park now (the adapter can''t honour the effect policy)
  p_confirmed_by: answer (default), lookup, same_key, handler; p_references: keys; both for
    deliveries
  p_balances, p_versions: the ledger''s balance and its version after the posting, together, for
    deliveries with cash
Returns: one row per outcome (status set, in the order given), then one per claim (status null)
Errors: TX400; TX501 unless READ COMMITTED and first in its transaction; TX503; TX403
Locks: those of record, then those of claim
Idempotent: the records are, the claims are not. Use a fence only after this transaction''s commit
  was acknowledged';
