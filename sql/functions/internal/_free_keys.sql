-- A message that left an ordering key lets the next one go. Whichever row is first and not
-- leased is locked, whatever it looked like in this snapshot: a claim may be moving it behind us
-- right now, and READ COMMITTED then shows its newest version while an older snapshot gets 40001
-- instead of a stranded key. Making a row due is always safe: claim checks again. Claim itself
-- holds rows in its own order, so it must not wait (p_wait false): whoever has that row locked
-- claims it, or makes it due, or moves it behind another row whose end will free it. Nobody waits
-- for a row before the one that left (a redriven one): everything else takes a key's rows in id
-- order, and that row's own end frees the key.
create or replace function trex._free_keys(
    p_instance_key text, p_boxes text[], p_keys text[], p_message_ids bigint[], p_now timestamptz,
    p_wait boolean
)
returns void
language plpgsql
volatile
security invoker
as $$
declare
    v_box text;
    v_key text;
    v_left bigint;
    v_id bigint;
    v_due timestamptz;
begin
    for v_box, v_key, v_left in
        select k.box collate "C", k.ordering_key collate "C", min(k.message_id)
        from unnest(p_boxes, p_keys, p_message_ids) k (box, ordering_key, message_id)
        where k.ordering_key is not null
        group by 1, 2
        order by 1, 2
    loop
        select d.message_id into v_id
        from trex.delivery d
        where d.instance_key || '' = p_instance_key and d.box = v_box
            and d.ordering_key = v_key and d.parked is null and d.lease_until is null
        order by d.message_id
        limit 1;
        continue when not found;
        if p_wait and v_id > v_left then
            select d.message_id, d.deferred_until into v_id, v_due
            from trex.delivery d
            where d.instance_key || '' = p_instance_key and d.box = v_box
                and d.ordering_key = v_key and d.parked is null and d.lease_until is null
                and d.message_id > v_left
            order by d.message_id
            limit 1
            for no key update;
        else
            select d.message_id, d.deferred_until into v_id, v_due
            from trex.delivery d
            where d.instance_key || '' = p_instance_key and d.box = v_box
                and d.ordering_key = v_key and d.parked is null and d.lease_until is null
            order by d.message_id
            limit 1
            for no key update skip locked;
        end if;
        if v_due = 'infinity' then
            update trex.delivery d set deferred_until = p_now
            where d.instance_key = p_instance_key and d.message_id = v_id;
        end if;
    end loop;
end
$$;

-- The safety net of claim when it found nothing to do: the first row of each ordering key must
-- not be waiting. At most p_most keys a call, by a loose scan of the index.
create or replace function trex._free_heads(
    p_instance_key text, p_box text, p_block boolean, p_now timestamptz, p_most integer default 1000
)
returns void
language plpgsql
volatile
security invoker
as $$
declare
    v_key text := '';
    v_id bigint;
    v_due timestamptz;
begin
    for v_round in 1..p_most loop
        select d.ordering_key into v_key
        from trex.delivery d
        where d.instance_key || '' = p_instance_key and d.box = p_box and d.ordering_key > v_key
        order by d.ordering_key
        limit 1;
        exit when not found;
        select d.message_id, case when d.parked is null then d.deferred_until end into v_id, v_due
        from trex.delivery d
        where d.instance_key || '' = p_instance_key and d.box = p_box and d.ordering_key = v_key
            and (d.parked is null or (p_block and not d.abandoned))
        order by d.message_id
        limit 1;
        if v_due = 'infinity' then
            perform 1 from trex.delivery d
            where d.instance_key = p_instance_key and d.message_id = v_id
                and d.parked is null and d.deferred_until = 'infinity'
            for no key update skip locked;
            if found then
                update trex.delivery d set deferred_until = p_now
                where d.instance_key = p_instance_key and d.message_id = v_id;
            end if;
        end if;
    end loop;
end
$$;
