-- Enqueuers of one ordering key take their turn here before an id is drawn, so that ids within a
-- key commit in order. Own rows instead of advisory locks, which anybody could take.
create or replace function trex._lock_lanes(p_instance_key text, p_box text, p_keys text[])
returns void
language plpgsql
volatile
security invoker
as $$
declare
    v_key text;
begin
    for v_key in
        select distinct k.ordering_key collate "C"
        from unnest(p_keys) k (ordering_key)
        where k.ordering_key is not null
        order by 1
    loop
        perform 1 from trex.lane l
        where l.instance_key = p_instance_key and l.box = p_box and l.ordering_key = v_key
        for no key update;
        if not found then
            insert into trex.lane (instance_key, box, ordering_key)
            values (p_instance_key, p_box, v_key)
            on conflict (instance_key, box, ordering_key) do nothing;
            perform 1 from trex.lane l
            where l.instance_key = p_instance_key and l.box = p_box and l.ordering_key = v_key
            for no key update;
        end if;
    end loop;
end
$$;
