-- The machine as a table: every state with every event, the forbidden ones too, so that nobody has
-- to imagine them.
create or replace function trex.machine_show(
    p_instance_key text,
    p_machine text
)
returns setof trex.machine_cell
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_revision integer;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_slug(p_machine) is not true then
        perform trex._raise('TX400', 'machine: 1 to 63 of a-z 0-9 . _ : -');
    end if;

    perform trex._enter(p_instance_key);
    select max(m.revision) into v_revision
    from trex.machine m
    where m.instance_key = p_instance_key and m.machine = p_machine;
    if v_revision is null then
        perform trex._raise('TX404', 'no such machine in this instance');
    end if;
    return query
    select
        s.state::text, e.event::text, t.to_state::text,
        array(select r.value from jsonb_array_elements_text(t.roles) with ordinality r (value, ord) order by r.ord),
        t.amount_min, t.amount_max, t.topic::text, s.owner::text, s.longest_stay, s.next_action::text, s.alert::text,
        coalesce(s.final, false), v_revision
    from (
        select '' as state, null as owner, null::interval as longest_stay, null as next_action, null as alert, null::boolean as final
        union all
        select a.state, a.owner, a.longest_stay, a.next_action, a.alert, a.final
        from trex.machine_state a
        where a.instance_key = p_instance_key and a.machine = p_machine and a.revision = v_revision
    ) s
    cross join (
        select distinct b.event
        from trex.machine_transition b
        where b.instance_key = p_instance_key and b.machine = p_machine and b.revision = v_revision
    ) e
    left join trex.machine_transition t
        on t.instance_key = p_instance_key and t.machine = p_machine and t.revision = v_revision
        and t.from_state = s.state collate "C" and t.event = e.event
    order by s.state collate "C", e.event collate "C";
end
$$;

alter function trex.machine_show(text, text) owner to trex_owner;
revoke all on function trex.machine_show(text, text) from public;
grant execute on function trex.machine_show(
    text, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.machine_show(text, text) is
'The current revision of a machine: one row for each state and event; to_state is null where that
  is forbidden.
Arguments:
  p_machine: its name; state '''' is where an entity is before it exists
Returns: one machine_cell per state and event, by state and event
Errors: TX400; TX403; TX404 no such machine
Locks: none
Idempotent: yes';
