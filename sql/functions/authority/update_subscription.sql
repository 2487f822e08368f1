-- A subscription as the provider states it when asked. Events come late and in any order, so the
-- time of asking decides, never the time in an event: an answer that is not newer than the stored
-- one changes nothing.
create or replace function trex.update_subscription(
    p_instance_key text,
    p_account text,
    p_subscription_id text,
    p_invoice_id text,
    p_status text,
    p_period_end timestamptz,
    p_asked_at timestamptz
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
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_account) is not true then
        perform trex._raise('TX400', 'account: a key');
    end if;
    if trex._is_key(p_subscription_id) is not true then
        perform trex._raise('TX400', 'subscription_id: a key');
    end if;
    if trex._is_key(p_invoice_id) is not true then
        perform trex._raise('TX400', 'invoice_id: a key');
    end if;
    if p_status is null or p_status not in ('active', 'past_due', 'cancelled', 'expired') then
        perform trex._raise('TX400', 'status: active, past_due, cancelled or expired');
    end if;
    if p_period_end is null or not isfinite(p_period_end) then
        perform trex._raise('TX400', 'period_end: a time');
    end if;
    if p_asked_at is null or not isfinite(p_asked_at) then
        perform trex._raise('TX400', 'asked_at: a time');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    if p_asked_at > trex._now() then
        perform trex._raise('TX400', 'asked_at: not in the future');
    end if;
    insert into trex.subscription (
        instance_key, account, subscription_id, invoice_id, status, period_end, version, asked_at
    )
    values (
        p_instance_key, p_account, p_subscription_id, p_invoice_id, p_status, p_period_end, 1, p_asked_at
    )
    on conflict (instance_key, account, subscription_id) do nothing;
    if found then
        return 'created';
    end if;
    update trex.subscription s
    set invoice_id = p_invoice_id, status = p_status, period_end = p_period_end, version = s.version + 1,
        asked_at = p_asked_at
    where s.instance_key = p_instance_key and s.account = p_account and s.subscription_id = p_subscription_id
        and s.asked_at < p_asked_at;
    return case when found then 'updated' else 'stale' end;
end
$$;

alter function trex.update_subscription(
    text, text, text, text, text, timestamptz, timestamptz
) owner to trex_owner;
revoke all on function trex.update_subscription(
    text, text, text, text, text, timestamptz, timestamptz
) from public;
grant execute on function trex.update_subscription(
    text, text, text, text, text, timestamptz, timestamptz
) to trex_worker;

comment on function trex.update_subscription(
    text, text, text, text, text, timestamptz, timestamptz
) is
'Stores a subscription as the provider states it now.
Arguments:
  p_account, p_subscription_id, p_invoice_id (the latest invoice): keys; p_status: active,
      past_due, cancelled or expired
  p_period_end: what is paid for; p_asked_at: when the provider was asked, by our clock, not in
      the future
Returns: created, updated, or stale: the stored answer is as new or newer
Errors: TX400; TX503; TX403
Locks: the subscription row
Idempotent: yes; the same answer again is stale';
