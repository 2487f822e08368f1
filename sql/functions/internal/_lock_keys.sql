-- Before parked messages become live again: the lanes of their ordering keys, so that nothing
-- new arrives, then every live row of those keys and the messages themselves, in id order. A
-- claim in progress then either sees them live or is waited for; without this it could take a
-- later message of the key while another claim takes the earlier one.
create or replace function trex._lock_keys(p_instance_key text, p_message_ids bigint[])
returns void
language plpgsql
volatile
security invoker
as $$
declare
    v_box text;
    v_keys text[];
    v_ids bigint[] := p_message_ids;
begin
    for v_box, v_keys in
        select d.box, array_agg(distinct d.ordering_key)
        from trex.delivery d
        where d.instance_key = p_instance_key and d.message_id = any(p_message_ids) and d.ordering_key is not null
        group by d.box
        order by d.box
    loop
        perform trex._lock_lanes(p_instance_key, v_box, v_keys);
        v_ids := v_ids || array(
            select d.message_id
            from trex.delivery d
            where d.instance_key = p_instance_key and d.box = v_box and d.ordering_key = any(v_keys) and d.parked is null
        );
    end loop;
    perform 1
    from trex.delivery d
    where d.instance_key = p_instance_key and d.message_id = any(v_ids)
    order by d.message_id
    for no key update;
end
$$;
