-- A row of an older outbox has no owner, and nobody knows whether it was delivered. A DBA says
-- whose it is, with evidence; it starts uncertain, so that the ledger is asked before anything
-- is sent. The quarantined row itself stays ownerless.
create or replace function trex.adopt(
    p_instance_key text,
    p_quarantine_id bigint,
    p_evidence text,
    p_actor text,
    p_reason text,
    p_topic text default null,
    p_idempotency_key text default null,
    p_effect_policy text default 'lookup'
)
returns trex.enqueued
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_instance trex.instance;
    v_now timestamptz;
    v_source trex.quarantine;
    v_hint text;
    v_payload text;
    v_id bigint;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_quarantine_id is null or p_quarantine_id < 1 then
        perform trex._raise('TX400', 'quarantine_id: from 1');
    end if;
    if trex._is_text(p_evidence) is not true then
        perform trex._raise('TX400', 'evidence: 1 to 1000 characters, no control characters, not blank');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if trex._is_slug(p_topic) is false then
        perform trex._raise('TX400', 'topic: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    if trex._is_key(p_idempotency_key) is false then
        perform trex._raise(
            'TX400', 'idempotency_key: 1 to 255 characters, no control characters, no blanks at the ends'
        );
    end if;
    if p_effect_policy is null or p_effect_policy not in ('idempotent', 'lookup', 'at_most_once') then
        perform trex._raise('TX400', 'effect_policy: idempotent, lookup or at_most_once');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);

    select q.* into v_source from trex.quarantine q where q.quarantine_id = p_quarantine_id for no key update;
    if not found then
        perform trex._raise('TX404', 'no such row in quarantine');
    end if;
    if v_source.adopted_message_id is not null then
        if not exists (
            select 1 from trex.message m
            where m.instance_key = p_instance_key and m.message_id = v_source.adopted_message_id
        ) then
            perform trex._raise('TX404', 'no such row in quarantine');
        end if;
        return row(v_source.adopted_message_id, 'duplicate')::trex.enqueued;
    end if;
    v_source.topic := coalesce(p_topic, v_source.topic);
    v_source.idempotency_key := coalesce(p_idempotency_key, v_source.idempotency_key);
    v_hint := trex._check_movement(
        v_source.topic, v_source.idempotency_key, v_source.payload, v_source.account, v_source.currency,
        v_source.cash_delta, v_source.correlation_id, null, p_effect_policy, null
    );
    if v_hint is not null then
        perform trex._raise('TX400', 'the quarantined row: ' || v_hint);
    end if;
    v_payload := v_source.payload::text;
    if octet_length(v_payload) > v_instance.payload_max then
        perform trex._raise('TX400', 'the quarantined row: payload: longer than the instance allows');
    end if;
    v_now := trex._now();

    insert into trex.message (
        instance_key, message_id, box, topic, idempotency_key, correlation_id, ordering_key, account, currency,
        cash_delta, payload, digest, effect_policy, enqueued_at
    )
    values (
        p_instance_key, nextval('trex.message_id_seq'), 'outbox', v_source.topic, v_source.idempotency_key,
        v_source.correlation_id, null, v_source.account, v_source.currency,
        round(v_source.cash_delta, (select c.exponent from trex.currency c where c.currency = v_source.currency)),
        v_source.payload, sha256(convert_to(v_payload, 'UTF8')), p_effect_policy, v_now
    )
    on conflict (instance_key, box, idempotency_key) where idempotency_key is not null
    do nothing
    returning message_id into v_id;
    if v_id is null then
        perform trex._raise('TX422', 'another movement has this idempotency_key');
    end if;
    insert into trex.delivery (instance_key, message_id, box, uncertain)
    values (p_instance_key, v_id, 'outbox', true);
    update trex.quarantine q set adopted_message_id = v_id, adopted_at = v_now
    where q.quarantine_id = p_quarantine_id;
    perform trex._audit(
        p_instance_key, 'adopt', v_id, p_actor, p_reason,
        jsonb_build_object('quarantine_id', p_quarantine_id, 'evidence', p_evidence), v_now
    );
    perform trex._wake(v_instance, v_now);
    return row(v_id, 'enqueued')::trex.enqueued;
end
$$;

alter function trex.adopt(text, bigint, text, text, text, text, text, text) owner to trex_owner;
revoke all on function trex.adopt(text, bigint, text, text, text, text, text, text) from public;
grant execute on function trex.adopt(
    text, bigint, text, text, text, text, text, text
) to trex_adopter;

comment on function trex.adopt(text, bigint, text, text, text, text, text, text) is
'Makes one quarantined row a message of this instance, uncertain from the start, once for ever.
Arguments:
  p_quarantine_id: the row; p_evidence: why it belongs to this instance, 1 to 1000 characters
  p_actor: a key; p_reason: 1 to 1000 characters
  p_topic, p_idempotency_key: instead of those of the row, where it has none or none that fits
  p_effect_policy: lookup (default), idempotent or at_most_once (claim then parks it as unknown)
Returns: message_id and status: enqueued, or duplicate when this instance adopted the row before
Errors: TX400, also when the row doesn''t make a message; TX503; TX403; TX404 no such row, or
  another instance has it;
  TX422 another message has the key
Locks: the quarantined row; the key''s index entry
Idempotent: yes';
