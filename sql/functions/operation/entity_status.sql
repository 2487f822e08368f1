-- Where an entity is, and what people have to do about it.
create or replace function trex.entity_status(
    p_instance_key text,
    p_machine text,
    p_entity text
)
returns trex.entity_state
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_state trex.entity_state;
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
    perform trex._enter(p_instance_key);
    select
        e.machine::text, e.entity::text, e.state::text, e.version, e.operation_id::text, e.since, e.since + s.longest_stay,
        s.owner::text, s.next_action::text, s.alert::text, coalesce(s.final, false)
    into v_state
    from trex.entity e
    left join trex.machine_state s
        on s.instance_key = p_instance_key and s.machine = p_machine and s.state = e.state
        and s.revision = (
            select max(m.revision) from trex.machine m
            where m.instance_key = p_instance_key and m.machine = p_machine
        )
    where e.instance_key = p_instance_key and e.machine = p_machine and e.entity = p_entity;
    if not found then
        perform trex._raise('TX404', 'no such entity in this instance');
    end if;
    return v_state;
end
$$;

alter function trex.entity_status(text, text, text) owner to trex_owner;
revoke all on function trex.entity_status(text, text, text) from public;
grant execute on function trex.entity_status(
    text, text, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.entity_status(text, text, text) is
'One entity: its state and version, and who has to do what by when.
Arguments:
  p_machine, p_entity: its names
Returns: one entity_state; deadline is null where the state has no longest stay
Errors: TX400; TX403; TX404 no such entity here
Locks: none
Idempotent: yes';
