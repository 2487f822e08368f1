-- The arguments that all paged reads share.
create or replace function trex._check_read(
    p_instance_key text, p_limit integer, p_after bigint, p_box text
)
returns void
language plpgsql
immutable
security invoker
as $$
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    if p_after is null or p_after < 0 then
        perform trex._raise('TX400', 'after: from 0');
    end if;
    if p_box is null or p_box not in ('outbox', 'inbox') then
        perform trex._raise('TX400', 'box: outbox or inbox');
    end if;
end
$$;
