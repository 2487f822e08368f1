-- Refused uses, for a verified viewer. A key may hold a colon: the length says where it ends.
create or replace function trex.list_security_events(
    p_instance_key text,
    p_viewer_kind text,
    p_viewer_tenant text,
    p_viewer_seller text,
    p_account text,
    p_seller text default null,
    p_limit integer default 100,
    p_after text default ''
)
returns setof trex.security_line
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
as $$
declare
    v_seller text;
begin
    perform trex._check_view(p_instance_key, p_account, p_seller, p_limit, p_after);
    perform trex._enter(p_instance_key);
    v_seller := trex._viewed_seller(p_viewer_kind, p_viewer_tenant, p_viewer_seller, p_account, p_seller);
    return query
    select length(t.capability_id)::text || ':' || t.capability_id || ':' || t.kind || ':' || t.usage_id, t.kind, t.licence_id::text, t.account::text, t.seller::text, t.subject::text, t.seen_at
    from trex.security_event t
    where t.instance_key = p_instance_key and t.account = p_account
        and (v_seller is null or t.seller = v_seller) and (length(t.capability_id)::text || ':' || t.capability_id || ':' || t.kind || ':' || t.usage_id) collate "C" > p_after
    order by (length(t.capability_id)::text || ':' || t.capability_id || ':' || t.kind || ':' || t.usage_id) collate "C"
    limit p_limit;
end
$$;

alter function trex.list_security_events(
    text, text, text, text, text, text, integer, text
) owner to trex_owner;
revoke all on function trex.list_security_events(
    text, text, text, text, text, text, integer, text
) from public;
grant execute on function trex.list_security_events(
    text, text, text, text, text, text, integer, text
) to trex_app;

comment on function trex.list_security_events(text, text, text, text, text, text, integer, text) is
'Refused uses, a page in the order of ids: an administrator sees all of the account, a seller
  their own.
Arguments:
  p_viewer_kind, p_viewer_tenant, p_viewer_seller: who asks, verified by the calling service:
      admin, seller or buyer; their account;
    the seller they are
  p_account: whose rows; p_seller: only this seller''s, null = all that the viewer may see
  p_limit: 1 to 10000; p_after: the id of the last row of the page before
Returns: one security_line each
Errors: TX400; TX403 (also for a buyer); TX401 no verified viewer, or anonymous; TX404 another
  account, or another seller''s
Locks: none
Idempotent: yes';
