-- A machine is data. What is loaded becomes a new revision, and every state of the one before
-- stays: entities are in them, and a transition that reads the older revision at this moment may
-- still lead there.
create or replace function trex.machine_load(
    p_instance_key text,
    p_machine text,
    p_definition jsonb,
    p_actor text,
    p_reason text
)
returns text
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_instance trex.instance;
    v_hint text;
    v_now timestamptz;
    v_digest bytea;
    v_revision integer;
    v_same boolean;
    v_states jsonb;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_slug(p_machine) is not true then
        perform trex._raise('TX400', 'machine: 1 to 63 of a-z 0-9 . _ : -');
    end if;

    v_hint := trex._check_machine(p_definition);
    if v_hint is not null then
        perform trex._raise('TX400', v_hint);
    end if;
    perform trex._check_act(p_actor, p_reason);
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    if octet_length(p_definition::text) > v_instance.payload_max then
        perform trex._raise('TX400', 'definition: longer than the instance allows');
    end if;
    -- Loads of an instance take their turn.
    perform 1 from trex.instance i where i.instance_key = p_instance_key for no key update;
    v_now := trex._now();
    v_digest := sha256(convert_to(p_definition::text, 'UTF8'));
    select m.revision, m.digest = v_digest, m.definition -> 'states' into v_revision, v_same, v_states
    from trex.machine m
    where m.instance_key = p_instance_key and m.machine = p_machine
    order by m.revision desc
    limit 1;
    if v_same then
        return 'unchanged';
    end if;
    if exists (select 1 from jsonb_object_keys(v_states) s (state) where not p_definition -> 'states' ? s.state) then
        perform trex._raise('TX423', 'a state of the machine is missing: entities may be in it');
    end if;
    v_revision := coalesce(v_revision, 0) + 1;
    insert into trex.machine (instance_key, machine, revision, definition, digest, loaded_at)
    values (p_instance_key, p_machine, v_revision, p_definition, v_digest, v_now);
    insert into trex.machine_state (
        instance_key, machine, revision, state, owner, longest_stay, next_action, alert, final
    )
    select
        p_instance_key, p_machine, v_revision, s.key, s.value ->> 'owner',
        (s.value ->> 'longest_stay')::integer * interval '1 second', s.value ->> 'next_action', s.value ->> 'alert',
        coalesce((s.value ->> 'final')::boolean, false)
    from jsonb_each(p_definition -> 'states') s;
    insert into trex.machine_transition (
        instance_key, machine, revision, from_state, event, to_state, roles, amount_min, amount_max, topic, effect_policy
    )
    select
        p_instance_key, p_machine, v_revision, coalesce(t.value ->> 'from', ''), t.value ->> 'event', t.value ->> 'to',
        coalesce(t.value -> 'roles', '[]'), trim_scale((t.value ->> 'amount_min')::numeric),
        trim_scale((t.value ->> 'amount_max')::numeric), t.value ->> 'topic',
        coalesce(t.value ->> 'effect_policy', 'idempotent')
    from jsonb_array_elements(p_definition -> 'transitions') t;
    perform trex._audit(
        p_instance_key, 'machine_load', null, p_actor, p_reason,
        jsonb_build_object('machine', p_machine, 'revision', v_revision, 'digest', encode(v_digest, 'hex')), v_now
    );
    return case when v_revision = 1 then 'loaded' else 'changed' end;
end
$$;

alter function trex.machine_load(text, text, jsonb, text, text) owner to trex_owner;
revoke all on function trex.machine_load(text, text, jsonb, text, text) from public;
grant execute on function trex.machine_load(text, text, jsonb, text, text) to trex_operator;

comment on function trex.machine_load(text, text, jsonb, text, text) is
'Loads a machine''s definition, as a new revision when it differs from the current one.
Arguments:
  p_machine: 1 to 63 of a-z 0-9 . _ : -
  p_definition: {"states": {name: {owner, longest_stay (seconds), next_action, alert, final}},
    "transitions": [{from (null: the entity doesn''t exist yet), event, to, roles (none: anybody),
    amount_min, amount_max, topic (a
    message goes to the outbox), effect_policy}]}; names as topics
  p_actor: a key; p_reason: 1 to 1000 characters
Returns: loaded, changed or unchanged
Errors: TX400; TX503; TX403; TX423 a state of the current revision is missing
Locks: the instance row
Idempotent: yes; the same definition again answers unchanged';
