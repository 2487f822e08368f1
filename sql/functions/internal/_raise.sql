-- The one place that raises: constant text per SQLSTATE, so nothing of a row can leave through
-- an error.
create or replace function trex._raise(p_code text, p_hint text)
returns void
language plpgsql
immutable
parallel safe
security invoker
as $$
begin
    raise exception using
        errcode = p_code,
        message = case p_code
            when 'TX400' then 'invalid argument'
            when 'TX401' then 'no verified viewer'
            when 'TX403' then 'access denied'
            when 'TX404' then 'not found'
            when 'TX409' then 'claim lost'
            when 'TX410' then 'already ended otherwise'
            when 'TX412' then 'version conflict'
            when 'TX422' then 'key reused with other content'
            when 'TX423' then 'transition forbidden'
            when 'TX425' then 'outcome unknown, needs resolve'
            when 'TX501' then 'wrong isolation level, or a transaction with work done before'
            when 'TX503' then 'standby or read-only'
            when 'TX901' then 'immutable fact touched'
            else 'invariant violated'
        end,
        hint = p_hint;
end
$$;
