-- Amounts are exact only with a known number of decimals, which can't change afterwards: it
-- would change every amount.
create or replace function trex.register_currency(
    p_currency text,
    p_exponent integer,
    p_actor text,
    p_reason text
)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_currency is null or p_currency !~ '^[A-Z][A-Z0-9]{2,11}$' then
        perform trex._raise('TX400', 'currency: 3 to 12 of A-Z 0-9, a letter first');
    end if;
    if p_exponent is null or p_exponent not between 0 and 18 then
        perform trex._raise('TX400', 'exponent: from 0 to 18');
    end if;
    perform trex._check_act(p_actor, p_reason);
    perform trex._durable();
    insert into trex.currency (currency, exponent)
    values (p_currency, p_exponent)
    on conflict (currency) do nothing;
    if found then
        perform trex._audit(
            null, 'register_currency', null, p_actor, p_reason,
            jsonb_build_object('currency', p_currency, 'exponent', p_exponent), trex._now()
        );
        return true;
    end if;
    if not exists (select 1 from trex.currency c where c.currency = p_currency and c.exponent = p_exponent) then
        perform trex._raise('TX422', 'the currency has another exponent, for ever');
    end if;
    return false;
end
$$;

alter function trex.register_currency(text, integer, text, text) owner to trex_owner;
revoke all on function trex.register_currency(text, integer, text, text) from public;
grant execute on function trex.register_currency(text, integer, text, text) to trex_operator;

comment on function trex.register_currency(text, integer, text, text) is
'Makes a currency or asset known, with its number of decimals, for all instances and for ever.
Arguments:
  p_currency: 3 to 12 of A-Z 0-9, a letter first; p_exponent: 0 to 18
  p_actor: a key; p_reason: 1 to 1000 characters
Returns: true when it was registered now, false when it was before
Errors: TX400; TX503; TX422 registered with another exponent
Locks: the currency
Idempotent: yes';
