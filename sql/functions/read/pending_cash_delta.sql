-- Whoever looks at the ledger's balance alone forgets what is under way; whoever adds all of it
-- to the balance counts twice what may be there already. Hence three sums that are never added
-- up here.
create or replace function trex.pending_cash_delta(
    p_instance_key text,
    p_account text default null,
    p_currency text default null
)
returns setof trex.cash
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_account is not null and trex._is_key(p_account) is not true then
        perform trex._raise('TX400', 'account: a key');
    end if;
    if p_currency is not null and not exists (select 1 from trex.currency c where c.currency = p_currency) then
        perform trex._raise('TX400', 'currency: registered');
    end if;
    perform trex._enter(p_instance_key);
    return query
    select
        m.account::text, m.currency,
        coalesce(sum(m.cash_delta) filter (where d.parked is null and not d.uncertain), 0),
        coalesce(sum(m.cash_delta) filter (where d.uncertain), 0),
        coalesce(sum(m.cash_delta) filter (where d.parked is not null and not d.uncertain), 0),
        count(*)
    from trex.delivery d
    join trex.message m on m.instance_key = d.instance_key and m.message_id = d.message_id
    where d.instance_key = p_instance_key and m.instance_key = p_instance_key and d.box = 'outbox'
        and m.account is not null
        and (p_account is null or m.account = p_account)
        and (p_currency is null or m.currency = p_currency)
    group by m.account, m.currency
    order by m.account, m.currency;
end
$$;

alter function trex.pending_cash_delta(text, text, text) owner to trex_owner;
revoke all on function trex.pending_cash_delta(text, text, text) from public;
grant execute on function trex.pending_cash_delta(
    text, text, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.pending_cash_delta(text, text, text) is
'What is still to come at the ledger, per account and currency, from undelivered outbox messages.
Arguments:
  p_account, p_currency: only these; null = all
Returns: one row per account and currency, in that order: pending = live and certain, in flight
  included; uncertain = live or
  parked, may have reached the ledger; skipped = parked and certainly not there; entries = messages
    in the three sums
Errors: TX400; TX403
Locks: none
Idempotent: yes';
