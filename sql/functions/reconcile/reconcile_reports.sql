-- The runs, newest first.
create or replace function trex.reconcile_reports(
    p_instance_key text,
    p_limit integer default 100,
    p_before bigint default null
)
returns setof trex.reconcile_report
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
as $$
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    if p_before < 1 then
        perform trex._raise('TX400', 'before: from 1, or null');
    end if;
    perform trex._enter(p_instance_key);
    return query
    select (t.report).*
    from (
        select trex._reconcile_report(r) as report
        from trex.reconcile_run r
        where r.instance_key = p_instance_key and r.run_id < coalesce(p_before, 9223372036854775807)
        order by r.run_id desc
        limit p_limit
    ) t
    order by (t.report).run_id desc;
end
$$;

alter function trex.reconcile_reports(text, integer, bigint) owner to trex_owner;
revoke all on function trex.reconcile_reports(text, integer, bigint) from public;
grant execute on function trex.reconcile_reports(text, integer, bigint) to trex_operator;

comment on function trex.reconcile_reports(text, integer, bigint) is
'Runs of reconciliation, the newest first.
Arguments:
  p_limit: 1 to 10000; p_before: the last run_id of the page before, null = from the newest
Returns: one reconcile_report each
Errors: TX400; TX403
Locks: none
Idempotent: yes';
