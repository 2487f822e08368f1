-- A batch of message ids: at most 1000, each once. Returns void or raises.
create or replace function trex._check_ids(p_message_ids bigint[])
returns void
language plpgsql
immutable
security invoker
as $$
begin
    if p_message_ids is null or cardinality(p_message_ids) > 1000 or array_lower(p_message_ids, 1) <> 1
        or array_ndims(p_message_ids) > 1 or (
        select count(*) filter (where i.message_id is null or i.message_id < 1) > 0
            or count(distinct i.message_id) <> count(*)
        from unnest(p_message_ids) i (message_id)
    ) then
        perform trex._raise('TX400', 'message_ids: at most 1000, from 1, each once');
    end if;
end
$$;
