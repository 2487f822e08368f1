-- The drifts that were found, and when they were last seen.
create or replace function trex.reconcile_findings(
    p_instance_key text,
    p_run_id bigint default null,
    p_state text default null,
    p_limit integer default 100,
    p_after text default ''
)
returns setof trex.reconcile_line
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
    if p_run_id < 1 then
        perform trex._raise('TX400', 'run_id: from 1, or null');
    end if;
    if p_state not in ('needs_review', 'repaired') then
        perform trex._raise('TX400', 'state: needs_review or repaired, or null');
    end if;
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    if p_after is null or length(p_after) > 64 then
        perform trex._raise('TX400', 'after: the last finding_id of the page before, or empty');
    end if;
    perform trex._enter(p_instance_key);
    if p_run_id is not null and not exists (
        select 1 from trex.reconcile_run r
        where r.instance_key = p_instance_key and r.run_id = p_run_id
    ) then
        perform trex._raise('TX404', 'no such run in this instance');
    end if;
    return query
    select
        f.finding_id, f.type, f.ref_ids, f.expected, f.actual, f.causal_events, f.recoverable, f.recommended_action, f.state,
        f.first_run, f.last_run, f.found_at, f.seen_at
    from trex.reconcile_finding f
    where f.instance_key = p_instance_key and f.finding_id > p_after collate "C"
        and (p_run_id is null or (f.first_run <= p_run_id and f.last_run >= p_run_id))
        and (p_state is null or f.state = p_state)
    order by f.finding_id
    limit p_limit;
end
$$;

alter function trex.reconcile_findings(text, bigint, text, integer, text) owner to trex_owner;
revoke all on function trex.reconcile_findings(text, bigint, text, integer, text) from public;
grant execute on function trex.reconcile_findings(
    text, bigint, text, integer, text
) to trex_operator;

comment on function trex.reconcile_findings(text, bigint, text, integer, text) is
'Findings of reconciliation, a page in the order of their ids.
Arguments:
  p_run_id: those that existed in this run, null = all; p_state: needs_review or repaired, null =
      both
  p_limit: 1 to 10000; p_after: the last finding_id of the page before
Returns: one reconcile_line each: type, what it is about, what was expected and found, what is
  recommended
Errors: TX400; TX403; TX404 no such run
Locks: none
Idempotent: yes';
