-- Runs in the caller's transaction, beside the business row. The insert decides who was first;
-- only who lost looks up what is there, under a new snapshot, and compares content.
create or replace function trex.enqueue(
    p_instance_key text,
    p_topic text,
    p_idempotency_key text,
    p_payload jsonb,
    p_account text default null,
    p_currency text default null,
    p_cash_delta numeric default null,
    p_correlation_id text default null,
    p_ordering_key text default null,
    p_effect_policy text default 'idempotent',
    p_delay interval default null,
    p_on_conflict text default 'raise'
)
returns trex.enqueued
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_instance trex.instance;
    v_hint text;
    v_payload text := p_payload::text;
    v_digest bytea;
    v_cash numeric;
    v_now timestamptz;
    v_enqueued trex.enqueued;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    v_hint := trex._check_movement(
        p_topic, p_idempotency_key, p_payload, p_account, p_currency, p_cash_delta, p_correlation_id, p_ordering_key,
        p_effect_policy, p_delay
    );
    if v_hint is not null then
        perform trex._raise('TX400', v_hint);
    end if;
    if p_on_conflict is null or p_on_conflict not in ('raise', 'report') then
        perform trex._raise('TX400', 'on_conflict: raise or report');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    if octet_length(v_payload) > v_instance.payload_max then
        perform trex._raise('TX400', 'payload: longer than the instance allows');
    end if;
    if p_ordering_key is not null then
        perform trex._lock_lanes(p_instance_key, 'outbox', array[p_ordering_key]);
    end if;
    v_digest := sha256(convert_to(v_payload, 'UTF8'));
    if p_cash_delta is not null then
        v_cash := round(p_cash_delta, (select c.exponent from trex.currency c where c.currency = p_currency));
    end if;
    v_now := trex._now();

    with m as (
        insert into trex.message (
            instance_key, message_id, box, topic, idempotency_key, correlation_id, ordering_key, account, currency,
            cash_delta, payload, digest, effect_policy, enqueued_at
        )
        values (
            p_instance_key, nextval('trex.message_id_seq'), 'outbox', p_topic, p_idempotency_key, p_correlation_id,
            p_ordering_key, p_account, p_currency, v_cash, p_payload, v_digest, p_effect_policy, v_now
        )
        on conflict (instance_key, box, idempotency_key) where idempotency_key is not null
        do nothing
        returning message_id
    )
    insert into trex.delivery (instance_key, message_id, box, ordering_key, deferred_until)
    select p_instance_key, m.message_id, 'outbox', p_ordering_key, v_now + trex._span(p_delay)
    from m
    returning message_id, 'enqueued' into v_enqueued;

    if v_enqueued.message_id is null then
        select
            m.message_id,
            case
                when m.topic = p_topic and m.digest = v_digest and m.effect_policy = p_effect_policy
                    and m.correlation_id is not distinct from p_correlation_id
                    and m.ordering_key is not distinct from p_ordering_key
                    and m.account is not distinct from p_account
                    and m.currency is not distinct from p_currency
                    and m.cash_delta is not distinct from v_cash
                    then 'duplicate'
                else 'conflict'
            end
        into v_enqueued
        from trex.message m
        where m.instance_key = p_instance_key and m.box = 'outbox' and m.idempotency_key = p_idempotency_key;
        if v_enqueued.status = 'conflict' and p_on_conflict = 'raise' then
            perform trex._raise('TX422', 'another movement has this idempotency_key');
        end if;
    else
        perform trex._wake(v_instance, v_now);
    end if;
    return v_enqueued;
end
$$;

alter function trex.enqueue(
    text, text, text, jsonb, text, text, numeric, text, text, text, interval, text
) owner to trex_owner;
revoke all on function trex.enqueue(
    text, text, text, jsonb, text, text, numeric, text, text, text, interval, text
) from public;
grant execute on function trex.enqueue(
    text, text, text, jsonb, text, text, numeric, text, text, text, interval, text
) to trex_app;

comment on function trex.enqueue(
    text, text, text, jsonb, text, text, numeric, text, text, text, interval, text
) is
'Writes one movement to the outbox, in the caller''s transaction.
Arguments:
  p_instance_key: the owner, for ever; p_topic: 1 to 63 of a-z 0-9 . _ : -
  p_idempotency_key: a key, unique per instance; p_payload: jsonb up to the instance''s payload_max
    (1 MiB)
  p_account, p_currency, p_cash_delta: all or none; a key, a registered currency, an exact amount in
    its decimals
  p_correlation_id, p_ordering_key: keys; of one ordering key at most one message is in flight, in
    enqueue order
  p_effect_policy: idempotent, lookup or at_most_once, fixed from here on; p_delay: not before, 0 to
    30 days
  p_on_conflict: raise (default), or report: the conflict is returned as data
Returns: message_id and status: enqueued, duplicate (same key and content: the existing id),
  conflict
Errors: TX400; TX503; TX403; TX422 the key exists with other content; 40001 in REPEATABLE READ when
  the key was committed meanwhile
Locks: the lane of the ordering key until the transaction ends; the key''s index entry
Idempotent: yes, by idempotency_key';
