-- Every step that an entity took, from the facts.
create or replace function trex.entity_history(
    p_instance_key text,
    p_machine text,
    p_entity text,
    p_limit integer default 100,
    p_after bigint default 0
)
returns setof trex.entity_step
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
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
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    if p_after is null or p_after < 0 then
        perform trex._raise('TX400', 'after: from 0');
    end if;
    perform trex._enter(p_instance_key);
    return query
    select
        o.version, o.operation_id::text, o.event::text, o.from_state, o.to_state::text, o.actor::text, o.role::text,
        o.amount, o.reason, o.message_id, o.done_at
    from trex.operation o
    where o.instance_key = p_instance_key and o.machine = p_machine and o.entity = p_entity and o.version > p_after
        and o.kind = 'transition'
    order by o.version
    limit p_limit;
end
$$;

alter function trex.entity_history(text, text, text, integer, bigint) owner to trex_owner;
revoke all on function trex.entity_history(text, text, text, integer, bigint) from public;
grant execute on function trex.entity_history(
    text, text, text, integer, bigint
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.entity_history(text, text, text, integer, bigint) is
'The steps of one entity, a page in the order of versions.
Arguments:
  p_machine, p_entity: its names; p_limit: 1 to 10000; p_after: the last version of the page
      before, 0 = from the start
Returns: one entity_step per applied transition; none for an unknown entity
Errors: TX400; TX403
Locks: none
Idempotent: yes';
