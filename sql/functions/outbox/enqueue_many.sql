-- Set-based: ids are drawn in the order given, rows go in sorted by key (two callers with the
-- same keys then can't deadlock), and what was there already is looked up by a second statement:
-- within one, a row committed meanwhile is invisible.
create or replace function trex.enqueue_many(
    p_instance_key text,
    p_topics text[],
    p_idempotency_keys text[],
    p_payloads jsonb[],
    p_accounts text[] default null,
    p_currencies text[] default null,
    p_cash_deltas numeric[] default null,
    p_correlation_ids text[] default null,
    p_ordering_keys text[] default null,
    p_effect_policies text[] default null,
    p_delays interval[] default null,
    p_on_conflict text default 'raise'
)
returns setof trex.enqueued
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_instance trex.instance;
    v_count integer := cardinality(p_topics);
    v_dims text := '[1:' || cardinality(p_topics) || ']';
    v_index bigint;
    v_hint text;
    v_digests bytea[];
    v_ids bigint[];
    v_new integer;
    v_now timestamptz;
    v_statuses text[];
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_topics is null or p_idempotency_keys is null or p_payloads is null or v_count > 10000
        or cardinality(p_idempotency_keys) <> v_count or cardinality(p_payloads) <> v_count
        or cardinality(p_accounts) <> v_count or cardinality(p_currencies) <> v_count
        or cardinality(p_cash_deltas) <> v_count or cardinality(p_correlation_ids) <> v_count
        or cardinality(p_ordering_keys) <> v_count or cardinality(p_effect_policies) <> v_count
        or cardinality(p_delays) <> v_count
        or array_dims(p_topics) <> v_dims or array_dims(p_idempotency_keys) <> v_dims
        or array_dims(p_payloads) <> v_dims or array_dims(p_accounts) <> v_dims
        or array_dims(p_currencies) <> v_dims or array_dims(p_cash_deltas) <> v_dims
        or array_dims(p_correlation_ids) <> v_dims or array_dims(p_ordering_keys) <> v_dims
        or array_dims(p_effect_policies) <> v_dims or array_dims(p_delays) <> v_dims
    then
        perform trex._raise('TX400', 'movements: at most 10000, in arrays of the same length');
    end if;
    select min(i.ord) into v_index
    from unnest(
        p_topics, p_idempotency_keys, p_payloads, p_accounts, p_currencies, p_cash_deltas,
        p_correlation_ids, p_ordering_keys, p_effect_policies, p_delays
    ) with ordinality i (
        topic, idempotency_key, payload, account, currency, cash_delta, correlation_id,
        ordering_key, effect_policy, delay, ord
    )
    left join trex.currency c on c.currency = i.currency
    where trex._movement_hint(
        i.topic, i.idempotency_key, i.payload, i.account, i.currency, i.cash_delta,
        i.correlation_id, i.ordering_key, coalesce(i.effect_policy, 'idempotent'), i.delay,
        c.exponent
    ) is not null;
    if v_index is not null then
        v_hint := trex._check_movement(
            p_topics[v_index], p_idempotency_keys[v_index], p_payloads[v_index],
            p_accounts[v_index], p_currencies[v_index], p_cash_deltas[v_index],
            p_correlation_ids[v_index], p_ordering_keys[v_index],
            coalesce(p_effect_policies[v_index], 'idempotent'), p_delays[v_index]
        );
        perform trex._raise('TX400', 'movement ' || v_index || ': ' || v_hint);
    end if;
    if p_on_conflict is null or p_on_conflict not in ('raise', 'report') then
        perform trex._raise('TX400', 'on_conflict: raise or report');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    select
        array_agg(sha256(convert_to(i.payload, 'UTF8')) order by i.ord),
        min(i.ord) filter (where octet_length(i.payload) > v_instance.payload_max)
    into v_digests, v_index
    from (
        select u.payload::text as payload, u.ord
        from unnest(p_payloads) with ordinality u (payload, ord)
        offset 0
    ) i;
    if v_index is not null then
        perform trex._raise(
            'TX400', 'movement ' || v_index || ': payload: longer than the instance allows'
        );
    end if;
    if v_count = 0 then
        return;
    end if;
    perform trex._lock_lanes(p_instance_key, 'outbox', p_ordering_keys);
    v_ids := array(select nextval('trex.message_id_seq') from generate_series(1, v_count));
    v_now := trex._now();

    with m as (
        insert into trex.message (
            instance_key, message_id, box, topic, idempotency_key, correlation_id, ordering_key,
            account, currency, cash_delta, payload, digest, effect_policy, enqueued_at
        )
        select
            p_instance_key, i.message_id, 'outbox', i.topic, i.idempotency_key, i.correlation_id,
            i.ordering_key, i.account, i.currency, round(i.cash_delta, c.exponent), i.payload,
            i.digest, coalesce(i.effect_policy, 'idempotent'), v_now
        from unnest(
            v_ids, p_topics, p_idempotency_keys, p_payloads, v_digests, p_accounts, p_currencies,
            p_cash_deltas, p_correlation_ids, p_ordering_keys, p_effect_policies
        ) i (
            message_id, topic, idempotency_key, payload, digest, account, currency, cash_delta,
            correlation_id, ordering_key, effect_policy
        )
        left join trex.currency c on c.currency = i.currency
        order by i.idempotency_key collate "C", i.message_id
        on conflict (instance_key, box, idempotency_key) where idempotency_key is not null
        do nothing
        returning message_id, ordering_key
    )
    insert into trex.delivery (instance_key, message_id, box, ordering_key, deferred_until)
    select
        p_instance_key, m.message_id, 'outbox', m.ordering_key,
        -- The ids rise, so a binary search tells which movement this is.
        v_now + trex._span(p_delays[width_bucket(m.message_id, v_ids)])
    from m
    order by m.message_id;
    get diagnostics v_new = row_count;
    if v_new > 0 then
        perform trex._wake(v_instance, v_now);
    end if;
    if v_new = v_count then
        return query select u.message_id, 'enqueued' from unnest(v_ids) u (message_id);
        return;
    end if;

    select array_agg(q.message_id order by q.ord), array_agg(q.status order by q.ord)
    into v_ids, v_statuses
    from (
        select
            i.ord, m.message_id,
            case
                when m.message_id = i.message_id then 'enqueued'
                when m.topic = i.topic and m.digest = i.digest
                    and m.effect_policy = coalesce(i.effect_policy, 'idempotent')
                    and m.correlation_id is not distinct from i.correlation_id
                    and m.ordering_key is not distinct from i.ordering_key
                    and m.account is not distinct from i.account
                    and m.currency is not distinct from i.currency
                    and m.cash_delta is not distinct from i.cash_delta
                    then 'duplicate'
                else 'conflict'
            end as status
        from unnest(
            v_ids, p_topics, p_idempotency_keys, v_digests, p_accounts, p_currencies, p_cash_deltas,
            p_correlation_ids, p_ordering_keys, p_effect_policies
        ) with ordinality i (
            message_id, topic, idempotency_key, digest, account, currency, cash_delta,
            correlation_id, ordering_key, effect_policy, ord
        )
        cross join lateral (
            select w.*
            from trex.message w
            where w.instance_key = p_instance_key and w.box = 'outbox'
                and w.idempotency_key = i.idempotency_key
            limit 1
        ) m
    ) q;
    if p_on_conflict = 'raise' and 'conflict' = any(v_statuses) then
        perform trex._raise(
            'TX422',
            'movement ' || array_position(v_statuses, 'conflict')
            || ': another one has this idempotency_key'
        );
    end if;
    return query select u.message_id, u.status from unnest(v_ids, v_statuses) u (message_id, status);
end
$$;

alter function trex.enqueue_many(
    text, text[], text[], jsonb[], text[], text[], numeric[], text[], text[], text[], interval[],
    text
) owner to trex_owner;
revoke all on function trex.enqueue_many(
    text, text[], text[], jsonb[], text[], text[], numeric[], text[], text[], text[], interval[],
    text
) from public;
grant execute on function trex.enqueue_many(
    text, text[], text[], jsonb[], text[], text[], numeric[], text[], text[], text[], interval[],
    text
) to trex_app;

comment on function trex.enqueue_many(
    text, text[], text[], jsonb[], text[], text[], numeric[], text[], text[], text[], interval[],
    text
) is
'Writes up to 10000 movements to the outbox in the caller''s transaction, all or none.
Arguments: those of enqueue as arrays of the same length; an optional array may be null (its default
  for all)
  p_on_conflict: raise (default), or report: conflicts are returned as data and the other movements
    stay
Returns: one row per movement in the order given: message_id and status enqueued, duplicate,
  conflict
Errors: TX400 and TX422, the hint names the first bad movement by its number; TX503; TX403; 40001 as
  for enqueue
Locks: lanes in key order until the transaction ends; index entries in idempotency_key order
Idempotent: yes, by idempotency_key';
