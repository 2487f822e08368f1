-- Compares what should agree, a bounded page per call, and goes on where the last call stopped,
-- after a crash too. Money and rights are never touched: they only become findings. What is
-- repaired is a lease that ended long ago, and the way back is the one of claim. A source that
-- can't be read makes the run failed, never clean: so every page stands in a block of its own.
create or replace function trex.reconcile(
    p_instance_key text,
    p_actor text,
    p_reason text,
    p_run_id bigint default null,
    p_longest_stay interval default '1 hour',
    p_limit integer default 1000
)
returns trex.reconcile_report
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_instance trex.instance;
    v_now timestamptz;
    v_run trex.reconcile_run;
    v_pages trex.reconcile_run;
    v_checks text[] := trex._reconcile_checks();
    v_drift record;
    v_place text;
    v_seen integer;
    v_left integer := p_limit;
    v_repaired boolean;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if p_run_id < 1 then
        perform trex._raise('TX400', 'run_id: from 1, or null for a new run');
    end if;
    if trex._is_duration(p_longest_stay, '1 second', '8784 hours') is not true then
        perform trex._raise('TX400', 'longest_stay: from 1 second to 366 days, without months');
    end if;
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    v_now := trex._now();
    if p_run_id is null then
        -- New runs of an instance take their turn.
        perform 1 from trex.instance i where i.instance_key = p_instance_key for no key update;
        insert into trex.reconcile_run (
            instance_key, run_id, state, longest_stay, at_check, after, actor, reason, started_at
        )
        select
            p_instance_key, coalesce(max(r.run_id), 0) + 1, 'running', trex._span(p_longest_stay), 1, '0', p_actor,
            p_reason, v_now
        from trex.reconcile_run r
        where r.instance_key = p_instance_key
        returning * into v_run;
        perform trex._audit(
            p_instance_key, 'reconcile', null, p_actor, p_reason, jsonb_build_object('run_id', v_run.run_id), v_now
        );
    else
        select r.* into v_run
        from trex.reconcile_run r
        where r.instance_key = p_instance_key and r.run_id = p_run_id
        for update;
        if not found then
            perform trex._raise('TX404', 'no such run in this instance');
        end if;
    end if;

    while v_run.state = 'running' and v_left > 0 loop
        v_pages := v_run;
        begin
            v_seen := 0;
            -- Drifts are told in the order of their ids: two runs at once can't lock each other out.
            for v_drift in
                select
                    d.*,
                    case
                        when d.type is not null then encode(sha256(convert_to(
                            jsonb_build_array(d.type, d.ref_ids)::text, 'UTF8'
                        )), 'hex')
                    end as finding_id
                from trex._reconcile_page(
                    p_instance_key, v_checks[v_run.at_check], v_run.after, v_left, v_run.longest_stay, v_now
                ) with ordinality d (
                    place, type, ref_ids, expected, actual, causal_events, recommended_action, message_id, fence, ord
                )
                order by 11 nulls first, d.ord
            loop
                if v_drift.type is null then
                    v_seen := v_seen + 1;
                    v_place := v_drift.place;
                    continue;
                end if;
                v_repaired := v_drift.fence is not null and trex._reconcile_lease(
                    v_instance, v_drift.message_id, v_drift.fence, p_actor, p_reason, v_now
                );
                insert into trex.reconcile_finding as f (
                    instance_key, finding_id, type, ref_ids, expected, actual, causal_events, recoverable,
                    recommended_action, state, first_run, last_run, found_at, seen_at
                )
                values (
                    p_instance_key, v_drift.finding_id, v_drift.type, v_drift.ref_ids, v_drift.expected, v_drift.actual,
                    v_drift.causal_events, v_drift.fence is not null, v_drift.recommended_action,
                    case when v_repaired then 'repaired' else 'needs_review' end, v_run.run_id, v_run.run_id, v_now, v_now
                )
                on conflict (instance_key, finding_id) do nothing;
                if found then
                    v_run.fresh := v_run.fresh + 1;
                else
                    update trex.reconcile_finding f
                    set last_run = greatest(f.last_run, v_run.run_id), seen_at = v_now, actual = v_drift.actual
                    where f.instance_key = p_instance_key and f.finding_id = v_drift.finding_id;
                end if;
                v_run.found := v_run.found + 1;
                v_run.repaired := v_run.repaired + v_repaired::integer;
            end loop;
            v_run.examined := v_run.examined + v_seen;
            if v_seen = v_left then
                v_run.after := v_place;
            else
                v_run.at_check := v_run.at_check + 1;
                v_run.after := case
                    when v_checks[v_run.at_check] in ('messages', 'deliveries', 'receipts', 'skips') then '0'
                    else '[]'
                end;
            end if;
            v_left := v_left - v_seen;
            if v_run.at_check > cardinality(v_checks) then
                v_run.at_check := cardinality(v_checks);
                v_run.state := case when v_run.found = 0 then 'clean' else 'findings' end;
                v_run.finished_at := v_now;
            end if;
        exception
            when serialization_failure or deadlock_detected then
                raise;
            when others then
                v_run := v_pages;
                v_run.state := 'failed';
                v_run.failed_check := v_checks[v_run.at_check];
                v_run.failed_code := sqlstate;
                v_run.finished_at := v_now;
        end;
    end loop;
    update trex.reconcile_run r
    set state = v_run.state, at_check = v_run.at_check, after = v_run.after, examined = v_run.examined,
        found = v_run.found, fresh = v_run.fresh, repaired = v_run.repaired, failed_check = v_run.failed_check,
        failed_code = v_run.failed_code, finished_at = v_run.finished_at
    where r.instance_key = p_instance_key and r.run_id = v_run.run_id and r.state = 'running';
    return trex._reconcile_report(v_run);
end
$$;

alter function trex.reconcile(text, text, text, bigint, interval, integer) owner to trex_owner;
revoke all on function trex.reconcile(text, text, text, bigint, interval, integer) from public;
grant execute on function trex.reconcile(
    text, text, text, bigint, interval, integer
) to trex_operator;

comment on function trex.reconcile(text, text, text, bigint, interval, integer) is
'Starts a reconciliation, or goes on with one, for a bounded number of rows.
Arguments:
  p_actor: a key; p_reason: 1 to 1000 characters; p_run_id: the run to go on with, null = a new
      one
  p_longest_stay: 1 second to 366 days: how long a message may be undelivered, or a payment
      without a right; fixed by the first call
  p_limit: 1 to 10000 rows to look at in this call
Returns: the run: state running (call again with its run_id), clean, findings, or failed
  (failed_check could not be read: failed_code is
  the SQLSTATE); examined, found (drifts that this run saw), fresh (of these, unknown before),
      repaired
Errors: TX400; TX503; TX403; TX404 no such run
Locks: for a new run the instance row; the run row; ended leases; findings in the order of their
  ids
Idempotent: going on with a finished run answers as it ended; a drift is one finding however
  often it is seen';
