-- The only way to change an entity's state, for services and operators alike. The version says
-- whether the caller has seen the newest state, the operation id says whether this is the same
-- intent again: the two are never mixed, and a replay is found before a stale version is, else the
-- retry of a call whose answer was lost would look like a conflict. The entity's row is locked
-- first; the writes stand in a block of their own so that a concurrent creation, or the same
-- operation id on another entity, undoes them and is classified in the next round.
create or replace function trex.transition(
    p_instance_key text,
    p_machine text,
    p_entity text,
    p_event text,
    p_expected_version bigint,
    p_operation_id text,
    p_actor text,
    p_role text,
    p_reason text,
    p_amount numeric default null,
    p_arguments jsonb default '{}',
    p_on_refused text default 'raise'
)
returns trex.transitioned
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
    v_digest bytea;
    v_now timestamptz;
    v_entity trex.entity;
    v_done trex.operation;
    v_step trex.machine_transition;
    v_revision integer;
    v_status text;
    v_message_id bigint;
    v_key_taken boolean := false;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_slug(p_machine) is not true then
        perform trex._raise('TX400', 'machine: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    if trex._is_key(p_entity) is not true then
        perform trex._raise('TX400', 'entity: a key');
    end if;
    if trex._is_slug(p_event) is not true then
        perform trex._raise('TX400', 'event: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    if p_expected_version is null or p_expected_version < 0 then
        perform trex._raise('TX400', 'expected_version: from 0, where 0 is an entity that does not exist yet');
    end if;
    if trex._is_key(p_operation_id) is not true then
        perform trex._raise('TX400', 'operation_id: a key');
    end if;
    if p_operation_id ^@ 'grant_entitlement:' then
        perform trex._raise('TX400', 'operation_id: grant_entitlement: is for grants');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if trex._is_slug(p_role) is not true then
        perform trex._raise('TX400', 'role: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    if p_amount is not null and trex._is_amount(p_amount, 18) is not true then
        perform trex._raise('TX400', 'amount: finite, at most 20 digits before and 18 after the point');
    end if;
    if jsonb_typeof(p_arguments) is distinct from 'object' then
        perform trex._raise('TX400', 'arguments: an object');
    end if;
    if p_on_refused is null or p_on_refused not in ('raise', 'report') then
        perform trex._raise('TX400', 'on_refused: raise or report');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    if octet_length(p_arguments::text) > v_instance.payload_max then
        perform trex._raise('TX400', 'arguments: longer than the instance allows');
    end if;
    v_digest := trex._operation_digest(
        'transition', p_machine, p_entity, p_event, p_amount, p_arguments
    );

    for v_round in 1..3 loop
        v_entity := null;
        v_done := null;
        v_step := null;
        select e.* into v_entity
        from trex.entity e
        where e.instance_key = p_instance_key and e.machine = p_machine and e.entity = p_entity
        for no key update;
        v_now := trex._now();
        select max(m.revision) into v_revision
        from trex.machine m
        where m.instance_key = p_instance_key and m.machine = p_machine;
        select o.* into v_done
        from trex.operation o
        where o.instance_key = p_instance_key and o.operation_id = p_operation_id;
        select t.* into v_step
        from trex.machine_transition t
        where t.instance_key = p_instance_key and t.machine = p_machine and t.revision = v_revision
            and t.from_state = coalesce(v_entity.state, '') and t.event = p_event;
        v_status := case
            when v_revision is null or (v_entity.entity is null and p_expected_version > 0) then 'not_found'
            when v_done.digest = v_digest then 'replayed'
            when v_done.operation_id is not null then 'operation_conflict'
            when coalesce(v_entity.version, 0) <> p_expected_version then 'version_conflict'
            when v_step.event is null then 'forbidden'
            when v_step.roles <> '[]' and not v_step.roles ? p_role then 'forbidden'
            when num_nonnulls(v_step.amount_min, v_step.amount_max) > 0 and p_amount is null then 'forbidden'
            when p_amount < v_step.amount_min or p_amount > v_step.amount_max then 'forbidden'
            when v_key_taken then 'operation_conflict'
            else 'applied'
        end;
        if v_status = 'replayed' then
            return row(
                p_entity, 'replayed', v_done.to_state, v_done.version, p_operation_id, v_done.message_id, v_done.done_at
            )::trex.transitioned;
        end if;
        if v_status <> 'applied' then
            if p_on_refused = 'raise' then
                perform trex._refuse_operation(v_status);
            end if;
            return row(
                p_entity, v_status, v_entity.state, v_entity.version, p_operation_id, null, null
            )::trex.transitioned;
        end if;
        begin
            if p_expected_version = 0 then
                insert into trex.entity (instance_key, machine, entity, state, version, operation_id, since)
                values (p_instance_key, p_machine, p_entity, v_step.to_state, 1, p_operation_id, v_now)
                on conflict (instance_key, machine, entity) do nothing;
            else
                update trex.entity e
                set state = v_step.to_state, version = e.version + 1, operation_id = p_operation_id, since = v_now
                where e.instance_key = p_instance_key and e.machine = p_machine and e.entity = p_entity
                    and e.version = p_expected_version;
            end if;
            if not found then
                perform trex._raise('TX902', 'another round');
            end if;
            v_message_id := null;
            if v_step.topic is not null then
                select q.message_id, q.status = 'conflict' into v_message_id, v_key_taken
                from trex.enqueue(
                    p_instance_key, v_step.topic,
                    'operation:' || encode(sha256(convert_to(p_operation_id, 'UTF8')), 'hex'),
                    jsonb_build_object(
                        'machine', p_machine, 'entity', p_entity, 'event', p_event, 'state', v_step.to_state,
                        'version', p_expected_version + 1, 'operation_id', p_operation_id,
                        'amount', trim_scale(p_amount), 'arguments', p_arguments
                    ),
                    p_correlation_id => p_entity, p_effect_policy => v_step.effect_policy,
                    p_on_conflict => 'report'
                ) q;
                -- The operation id is another entity's that has just committed, or its movement's
                -- key was enqueued by somebody else.
                if v_key_taken then
                    perform trex._raise('TX902', 'another round');
                end if;
            end if;
            insert into trex.operation (
                instance_key, operation_id, kind, machine, entity, event, from_state, to_state, version, actor, role,
                amount, arguments, digest, reason, message_id, done_at
            )
            values (
                p_instance_key, p_operation_id, 'transition', p_machine, p_entity, p_event, v_step.from_state,
                v_step.to_state, p_expected_version + 1, p_actor, p_role, trim_scale(p_amount), p_arguments, v_digest,
                p_reason, v_message_id, v_now
            )
            on conflict (instance_key, operation_id) do nothing;
            if not found then
                perform trex._raise('TX902', 'another round');
            end if;
            perform trex._audit(
                p_instance_key, 'transition', v_message_id, p_actor, p_reason,
                jsonb_build_object(
                    'machine', p_machine, 'entity', p_entity, 'event', p_event, 'from', v_step.from_state,
                    'to', v_step.to_state, 'version', p_expected_version + 1, 'operation_id', p_operation_id,
                    'role', p_role
                ), v_now
            );
            return row(
                p_entity, 'applied', v_step.to_state, p_expected_version + 1, p_operation_id, v_message_id, v_now
            )::trex.transitioned;
        exception when sqlstate 'TX902' then
            null;
        end;
    end loop;
    perform trex._raise('TX902', 'a transition that no round could classify');
    return null;
end
$$;

alter function trex.transition(
    text, text, text, text, bigint, text, text, text, text, numeric, jsonb, text
) owner to trex_owner;
revoke all on function trex.transition(
    text, text, text, text, bigint, text, text, text, text, numeric, jsonb, text
) from public;
grant execute on function trex.transition(
    text, text, text, text, bigint, text, text, text, text, numeric, jsonb, text
) to trex_app, trex_worker, trex_operator;

comment on function trex.transition(
    text, text, text, text, bigint, text, text, text, text, numeric, jsonb, text
) is
'Moves an entity by one event, if its machine, its version, the actor''s role and the amount allow
  it.
Arguments:
  p_machine, p_event: 1 to 63 of a-z 0-9 . _ : - ; p_entity: a key
  p_expected_version: the version that the caller has seen; 0: the entity doesn''t exist yet
  p_operation_id: a key, once per instance for one intent, that doesn''t begin with
      grant_entitlement: ; p_actor: a key; p_role: whom the actor
      acts as, told by a trusted service
  p_reason: 1 to 1000 characters; p_amount: exact; p_arguments: an object
  p_on_refused: raise (default), or report: the refusal is returned as data
Returns: one transitioned: status applied, replayed (as it was then), or not_found,
  operation_conflict, version_conflict, forbidden,
  in this order, with the entity''s state and version now; message_id of what was put into the
      outbox
Errors: TX400; TX503; TX403; TX404 no such machine or entity; TX422 the operation id has another
  intent, or the key of its movement is taken; TX412 another version;
  TX423 not from this state, not by this role, or not with this amount
Locks: the entity row
Idempotent: yes, by operation_id';
