-- What is wrong with a machine's definition, as a hint of constant text; null when nothing is.
create or replace function trex._check_machine(p_definition jsonb)
returns text
language plpgsql
immutable
parallel safe
security invoker
as $$
declare
    v_states jsonb := p_definition -> 'states';
    v_transitions jsonb := p_definition -> 'transitions';
    v_name text;
    v_value jsonb;
begin
    if jsonb_typeof(p_definition) is distinct from 'object' then
        return 'definition: an object';
    end if;
    if exists (select 1 from jsonb_object_keys(p_definition) k (name) where k.name not in ('states', 'transitions')) then
        return 'definition: states and transitions, nothing else';
    end if;
    if jsonb_typeof(v_states) is distinct from 'object' or jsonb_typeof(v_transitions) is distinct from 'array' then
        return 'definition: states is an object, transitions an array';
    end if;
    if (select count(*) from jsonb_object_keys(v_states)) not between 1 and 100
        or jsonb_array_length(v_transitions) not between 1 and 1000
    then
        return 'definition: 1 to 100 states and 1 to 1000 transitions';
    end if;
    for v_name, v_value in select e.key, e.value from jsonb_each(v_states) e loop
        if trex._is_slug(v_name) is not true or jsonb_typeof(v_value) <> 'object' then
            return 'definition: states: 1 to 63 of a-z 0-9 . _ : - each, an object';
        end if;
        if exists (
            select 1
            from jsonb_each(v_value) f
            where case f.key
                when 'owner' then jsonb_typeof(f.value) = 'string' and trex._is_key(f.value #>> '{}')
                when 'next_action' then jsonb_typeof(f.value) = 'string' and trex._is_key(f.value #>> '{}')
                when 'alert' then jsonb_typeof(f.value) = 'string' and trex._is_slug(f.value #>> '{}')
                when 'longest_stay' then jsonb_typeof(f.value) = 'number' and f.value #>> '{}' ~ '^[1-9][0-9]{0,8}$'
                when 'final' then jsonb_typeof(f.value) = 'boolean'
                else false
            end is not true
        ) then
            return 'definition: states: owner, next_action, alert, longest_stay in whole seconds, final';
        end if;
    end loop;
    for v_value in select e.value from jsonb_array_elements(v_transitions) e loop
        if jsonb_typeof(v_value) <> 'object' then
            return 'definition: transitions: an object each';
        end if;
        if not v_value ?& array['event', 'to'] or exists (
            select 1
            from jsonb_each(v_value) f
            where case f.key
                when 'from' then f.value = 'null' or (jsonb_typeof(f.value) = 'string' and v_states ? (f.value #>> '{}'))
                when 'to' then jsonb_typeof(f.value) = 'string' and v_states ? (f.value #>> '{}')
                when 'event' then jsonb_typeof(f.value) = 'string' and trex._is_slug(f.value #>> '{}')
                when 'topic' then jsonb_typeof(f.value) = 'string' and trex._is_slug(f.value #>> '{}')
                when 'effect_policy' then f.value in ('"idempotent"', '"lookup"', '"at_most_once"')
                when 'roles' then jsonb_typeof(f.value) = 'array' and not exists (
                    select 1
                    from jsonb_path_query(f.value, 'lax $[*]') r (value)
                    where jsonb_typeof(r.value) <> 'string' or trex._is_slug(r.value #>> '{}') is not true
                )
                when 'amount_min' then jsonb_typeof(f.value) in ('string', 'number')
                    and f.value #>> '{}' ~ '^-?[0-9]{1,20}([.][0-9]{1,18})?$'
                when 'amount_max' then jsonb_typeof(f.value) in ('string', 'number')
                    and f.value #>> '{}' ~ '^-?[0-9]{1,20}([.][0-9]{1,18})?$'
                else false
            end is not true
        ) then
            return 'definition: transitions: from, event, to, roles, amount_min, amount_max, topic, effect_policy';
        end if;
        if (v_value ->> 'amount_min')::numeric > (v_value ->> 'amount_max')::numeric then
            return 'definition: transitions: amount_min is at most amount_max';
        end if;
        if v_states -> (v_value ->> 'from') -> 'final' = 'true' then
            return 'definition: transitions: none leaves a final state';
        end if;
    end loop;
    if (
        select count(*) <> count(distinct (coalesce(e.value ->> 'from', ''), e.value ->> 'event'))
        from jsonb_array_elements(v_transitions) e
    ) then
        return 'definition: transitions: one for each state and event';
    end if;
    return null;
end
$$;
