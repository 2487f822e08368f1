-- What the provider said when somebody asked, outside of any event: what reconciliation compares
-- rights with.
create or replace function trex.record_payment(
    p_instance_key text,
    p_account text,
    p_invoice_id text,
    p_status text
)
returns boolean
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
    if trex._is_key(p_invoice_id) is not true then
        perform trex._raise('TX400', 'invoice_id: a key');
    end if;
    if trex._is_slug(p_status) is not true then
        perform trex._raise('TX400', 'status: 1 to 63 of a-z 0-9 . _ : -');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    return trex._note_payment(p_instance_key, p_account, p_invoice_id, p_status, null, trex._now());
end
$$;

alter function trex.record_payment(text, text, text, text) owner to trex_owner;
revoke all on function trex.record_payment(text, text, text, text) from public;
grant execute on function trex.record_payment(text, text, text, text) to trex_worker, trex_operator;

comment on function trex.record_payment(text, text, text, text) is
'Stores what the provider says of one invoice now. It grants and ends nothing.
Arguments:
  p_account, p_invoice_id: keys; p_status: paid, unpaid, refunded or another word of the provider
Returns: true if that is news
Errors: TX400; TX503; TX403
Locks: the payment''s index entry
Idempotent: yes';
