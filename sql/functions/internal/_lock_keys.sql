-- Delivery rows in id order. One look-up each: `= any(array)` in order of the id reads the whole
-- instance when it was planned on a small table.
create or replace function trex._lock_rows(p_instance_key text, p_message_ids bigint[])
returns void
language plpgsql
volatile
security invoker
as $$
begin
    perform 1
    from (select distinct u.message_id from unnest(p_message_ids) u (message_id) order by 1) i
    cross join lateral (
        select 1
        from trex.delivery d
        where d.instance_key = p_instance_key and d.message_id = i.message_id
        limit 1
        for no key update
    ) l;
end
$$;

-- The live rows of the ordering keys of these messages.
create or replace function trex._live_siblings(p_instance_key text, p_message_ids bigint[])
returns bigint[]
language plpgsql
volatile
security invoker
as $$
begin
    return array(
        select k.message_id
        from (
            select distinct d.box, d.ordering_key
            from unnest(p_message_ids) i (message_id)
            cross join lateral (
                select w.box, w.ordering_key
                from trex.delivery w
                where w.instance_key = p_instance_key and w.message_id = i.message_id
                limit 1
            ) d
            where d.ordering_key is not null
        ) l
        cross join lateral (
            select s.message_id
            from trex.delivery s
            where s.instance_key || '' = p_instance_key and s.box = l.box
                and s.ordering_key = l.ordering_key and s.parked is null
            offset 0
        ) k
    );
end
$$;

-- Before parked messages become live again: the lanes of their ordering keys, so that nothing new
-- arrives, then every live row of those keys and the messages themselves, in id order. A claim in
-- progress then either sees them live or is waited for; without this it could take a later message
-- of the key while another claim takes the earlier one.
create or replace function trex._lock_keys(p_instance_key text, p_message_ids bigint[])
returns void
language plpgsql
volatile
security invoker
as $$
declare
    v_box text;
    v_keys text[];
begin
    for v_box, v_keys in
        select d.box, array_agg(distinct d.ordering_key)
        from unnest(p_message_ids) i (message_id)
        cross join lateral (
            select w.box, w.ordering_key
            from trex.delivery w
            where w.instance_key = p_instance_key and w.message_id = i.message_id
            limit 1
        ) d
        where d.ordering_key is not null
        group by d.box
        order by d.box
    loop
        perform trex._lock_lanes(p_instance_key, v_box, v_keys);
    end loop;
    perform trex._lock_rows(
        p_instance_key, p_message_ids || trex._live_siblings(p_instance_key, p_message_ids)
    );
end
$$;
