-- base * 2^(tries - 1), capped, half of it jittered; in whole microseconds and from the ids
-- alone, so that the simulation computes the same. Shifting is bounded before it can overflow.
create or replace function trex._backoff(
    p_message_id bigint, p_attempt integer, p_tries integer, p_base interval, p_cap interval
)
returns interval
language plpgsql
immutable
parallel safe
security invoker
as $$
declare
    v_base bigint := (extract(epoch from p_base) * 1000000)::bigint;
    v_cap bigint := (extract(epoch from p_cap) * 1000000)::bigint;
    v_shift integer := least(greatest(p_tries - 1, 0), 30);
    v_full bigint := case when v_base > v_cap >> v_shift then v_cap else v_base << v_shift end;
    v_half bigint := v_full / 2;
    v_hash bigint := ((p_message_id % 2147483648) * 1103515245 + p_attempt * 12345::bigint) % 2147483648;
begin
    return (v_full - v_half + v_half * (v_hash >> 11) / 1048576) * interval '1 microsecond';
end
$$;
