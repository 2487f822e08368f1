-- The order that a payment must match. Written before the provider is asked, by whoever sold
-- something.
create or replace function trex.register_order(
    p_instance_key text,
    p_account text,
    p_invoice_id text,
    p_order_id text,
    p_seller text,
    p_buyer text,
    p_item text,
    p_amount numeric,
    p_currency text,
    p_uses_max integer default null,
    p_devices_max integer default null,
    p_valid_for interval default null
)
returns text
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_exponent integer;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_account) is not true then
        perform trex._raise('TX400', 'account: a key');
    end if;
    if trex._is_key(p_invoice_id) is not true then
        perform trex._raise('TX400', 'invoice_id: a key');
    end if;
    if trex._is_key(p_order_id) is not true then
        perform trex._raise('TX400', 'order_id: a key');
    end if;
    if trex._is_key(p_seller) is not true then
        perform trex._raise('TX400', 'seller: a key');
    end if;
    if trex._is_key(p_buyer) is not true then
        perform trex._raise('TX400', 'buyer: a key');
    end if;
    if trex._is_key(p_item) is not true then
        perform trex._raise('TX400', 'item: a key');
    end if;
    select c.exponent into v_exponent from trex.currency c where c.currency = p_currency;
    if p_amount is null or p_amount < 0 or trex._is_amount(p_amount, v_exponent) is not true
        or trex._is_amount(p_amount, 18) is not true
    then
        perform trex._raise('TX400', 'amount: from 0, in the decimals of a registered currency');
    end if;
    if p_uses_max < 1 then
        perform trex._raise('TX400', 'uses_max: from 1');
    end if;
    if p_devices_max < 1 then
        perform trex._raise('TX400', 'devices_max: from 1');
    end if;
    if trex._is_duration(p_valid_for, '1 second', '876600 hours') is false then
        perform trex._raise('TX400', 'valid_for: from 1 second to 36525 days, without months');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    insert into trex.order_invoice (
        instance_key, account, invoice_id, order_id, seller, buyer, item, amount, currency, uses_max, devices_max,
        valid_for, registered_at
    )
    values (
        p_instance_key, p_account, p_invoice_id, p_order_id, p_seller, p_buyer, p_item, round(p_amount, v_exponent),
        p_currency, p_uses_max, p_devices_max, trex._span(p_valid_for), trex._now()
    )
    on conflict (instance_key, account, invoice_id) do nothing;
    if found then
        return 'registered';
    end if;
    if not exists (
        select 1
        from trex.order_invoice o
        where o.instance_key = p_instance_key and o.account = p_account and o.invoice_id = p_invoice_id
            and o.order_id = p_order_id and o.seller = p_seller and o.buyer = p_buyer and o.item = p_item
            and o.amount = p_amount and o.currency = p_currency and o.uses_max is not distinct from p_uses_max
            and o.devices_max is not distinct from p_devices_max
            and o.valid_for is not distinct from trex._span(p_valid_for)
    ) then
        perform trex._raise('TX422', 'this invoice belongs to another order');
    end if;
    return 'duplicate';
end
$$;

alter function trex.register_order(
    text, text, text, text, text, text, text, numeric, text, integer, integer, interval
) owner to trex_owner;
revoke all on function trex.register_order(
    text, text, text, text, text, text, text, numeric, text, integer, integer, interval
) from public;
grant execute on function trex.register_order(
    text, text, text, text, text, text, text, numeric, text, integer, integer, interval
) to trex_app, trex_worker;

comment on function trex.register_order(
    text, text, text, text, text, text, text, numeric, text, integer, integer, interval
) is
'Registers what was ordered under one invoice.
Arguments:
  p_account, p_invoice_id: the provider''s, keys; p_order_id, p_seller, p_buyer, p_item: ours,
      keys
  p_amount, p_currency: an exact amount from 0 in a registered currency
  p_uses_max, p_devices_max: from 1, null = without bound; p_valid_for: how long the right lasts
      from the grant, null = for ever
Returns: registered, or duplicate
Errors: TX400; TX503; TX403; TX422 the invoice exists with other content
Locks: the invoice''s index entry
Idempotent: yes, by account and invoice';
