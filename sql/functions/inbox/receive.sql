-- Durable before any 2xx: the caller verified the signature over the raw bytes, calls this,
-- commits, and only then answers the sender. Identity is (provider, account, event_id) of this
-- instance and nothing else; content is never compared. The account comes from the endpoint's
-- configuration, never from the payload: else one tenant's event could be filed as another's.
create or replace function trex.receive(
    p_instance_key text,
    p_provider text,
    p_account text,
    p_event_id text,
    p_event_type text,
    p_object_id text,
    p_raw bytea,
    p_payload jsonb,
    p_key_id text default null
)
returns trex.received
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
    v_hash bytea;
    v_event_id text;
    v_key text;
    v_now timestamptz;
    v_id bigint;
    v_differs boolean;
    v_parked text;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_slug(p_provider) is not true then
        perform trex._raise('TX400', 'provider: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    if trex._is_key(p_account) is not true then
        perform trex._raise('TX400', 'account: a key');
    end if;
    if trex._is_key(p_event_id) is false then
        perform trex._raise('TX400', 'event_id: a key, or null');
    end if;
    if trex._is_key(p_event_type) is not true then
        perform trex._raise('TX400', 'event_type: a key');
    end if;
    if trex._is_key(p_object_id) is false then
        perform trex._raise('TX400', 'object_id: a key, or null');
    end if;
    if p_raw is null then
        perform trex._raise('TX400', 'raw: required');
    end if;
    if p_payload is null then
        perform trex._raise('TX400', 'payload: required');
    end if;
    if trex._is_key(p_key_id) is false then
        perform trex._raise('TX400', 'key_id: a key, or null');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    if octet_length(p_raw) > v_instance.payload_max then
        perform trex._raise('TX400', 'raw: longer than the instance allows');
    end if;
    if octet_length(p_payload::text) > v_instance.payload_max then
        perform trex._raise('TX400', 'payload: longer than the instance allows');
    end if;
    v_hash := sha256(p_raw);
    v_event_id := coalesce(p_event_id, 'sha256:' || encode(v_hash, 'hex'));
    v_key := trex._event_key(p_provider, p_account, v_event_id);
    v_now := trex._now();

    with m as (
        insert into trex.message (
            instance_key, message_id, box, topic, idempotency_key, correlation_id, payload, digest, effect_policy,
            enqueued_at
        )
        values (
            p_instance_key, nextval('trex.message_id_seq'), 'inbox', p_provider, v_key, p_object_id, p_payload,
            sha256(convert_to(p_payload::text, 'UTF8')), 'idempotent', v_now
        )
        on conflict (instance_key, box, idempotency_key) where idempotency_key is not null
        do nothing
        returning message_id
    ),
    d as (
        insert into trex.delivery (instance_key, message_id, box)
        select p_instance_key, m.message_id, 'inbox' from m
    )
    insert into trex.inbox_event (
        instance_key, message_id, provider, account, event_id, event_type, object_id, raw, body_hash, key_id, received_at
    )
    select
        p_instance_key, m.message_id, p_provider, p_account, v_event_id, p_event_type, p_object_id, p_raw, v_hash,
        p_key_id, v_now
    from m
    returning message_id into v_id;
    if v_id is not null then
        perform trex._wake(v_instance, v_now);
        return row(v_id, 'received', 'ready', false)::trex.received;
    end if;

    select m.message_id, e.body_hash <> v_hash into v_id, v_differs
    from trex.message m
    join trex.inbox_event e on e.instance_key = p_instance_key and e.message_id = m.message_id
    where m.instance_key = p_instance_key and m.box = 'inbox' and m.idempotency_key = v_key;
    if not found then
        perform trex._raise('TX902', 'an inbox message without its event');
    end if;
    if v_differs then
        insert into trex.inbox_variant (instance_key, message_id, body_hash, key_id, received_at)
        values (p_instance_key, v_id, v_hash, p_key_id, v_now)
        on conflict (instance_key, message_id, body_hash) do nothing;
    end if;
    select d.parked into v_parked
    from trex.delivery d
    where d.instance_key = p_instance_key and d.message_id = v_id and not d.abandoned;
    if v_parked in ('dead_letter', 'permanent') then
        perform trex._lock_keys(p_instance_key, array[v_id]);
        update trex.delivery d
        set parked = null, deferred_until = v_now, tries = 0
        where d.instance_key = p_instance_key and d.message_id = v_id
            and d.parked in ('dead_letter', 'permanent') and not d.abandoned;
        if found then
            perform trex._audit(
                p_instance_key, 'redrive', v_id, p_provider, 'received again', jsonb_build_object('parked', v_parked),
                v_now
            );
            perform trex._wake(v_instance, v_now);
            return row(v_id, 'revived', 'ready', v_differs)::trex.received;
        end if;
    end if;
    return row(
        v_id, 'deduplicated',
        coalesce((
            select trex._state(d.parked, d.lease_until, d.deferred_until, v_now)
            from trex.delivery d
            where d.instance_key = p_instance_key and d.message_id = v_id
        ), 'delivered'),
        v_differs
    )::trex.received;
end
$$;

alter function trex.receive(
    text, text, text, text, text, text, bytea, jsonb, text
) owner to trex_owner;
revoke all on function trex.receive(
    text, text, text, text, text, text, bytea, jsonb, text
) from public;
grant execute on function trex.receive(
    text, text, text, text, text, text, bytea, jsonb, text
) to trex_app;

comment on function trex.receive(text, text, text, text, text, text, bytea, jsonb, text) is
'Stores one event of a provider: once, whatever is sent again.
Arguments:
  p_provider: 1 to 63 of a-z 0-9 . _ : - ; the topic of the inbox message; p_account: a key, from
    the endpoint''s configuration
  p_event_id: the provider''s id, a key; null: the digest of the raw bytes takes its place
  p_event_type: a key; p_object_id: a key, the correlation of the inbox message, or null
  p_raw: the bytes whose signature was verified, up to payload_max; p_payload: what they say, as
    jsonb; p_key_id: the key that signed
Returns: message_id; status received, deduplicated (adds no work, whether pending, claimed or
  processed), revived (it was parked as dead_letter or permanent and is due now, audited; unknown and
  conflict wait for resolve, abandoned stays so); the message''s state now;
  differs: the bytes aren''t those stored first, kept as evidence
Errors: TX400; TX503; TX403; 40001 in REPEATABLE READ when the event was committed meanwhile
Locks: the event''s index entry; a parked message''s row
Idempotent: yes, by provider, account and event_id';
