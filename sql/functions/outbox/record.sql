-- The batch form: mixed outcomes of many claims, each with its own typed answer; nothing raises
-- because of one row.
create or replace function trex.record(
    p_instance_key text,
    p_message_ids bigint[],
    p_fences bigint[],
    p_results text[],
    p_reasons text[] default null,
    p_delays interval[] default null,
    p_absent boolean[] default null,
    p_park boolean[] default null,
    p_confirmed_by text[] default null,
    p_references text[] default null,
    p_balances numeric[] default null,
    p_versions bigint[] default null
)
returns setof trex.recorded
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_instance trex.instance;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_reports(
        p_message_ids, p_fences, p_results, p_reasons, p_delays, p_absent, p_park, p_confirmed_by, p_references,
        p_balances, p_versions
    );
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    return query select r.* from trex._record(
        v_instance, p_message_ids, p_fences, p_results, p_reasons, p_delays, p_absent, p_park, p_confirmed_by, p_references,
        p_balances, p_versions, trex._now()
    ) r;
end
$$;

alter function trex.record(
    text, bigint[], bigint[], text[], text[], interval[], boolean[], boolean[], text[], text[],
    numeric[], bigint[]
) owner to trex_owner;
revoke all on function trex.record(
    text, bigint[], bigint[], text[], text[], interval[], boolean[], boolean[], text[], text[],
    numeric[], bigint[]
) from public;
grant execute on function trex.record(
    text, bigint[], bigint[], text[], text[], interval[], boolean[], boolean[], text[], text[],
    numeric[], bigint[]
) to trex_worker;

comment on function trex.record(
    text, bigint[], bigint[], text[], text[], interval[], boolean[], boolean[], text[], text[],
    numeric[], bigint[]
) is
'Records the outcomes of up to 1000 claims, each only while its fence is the current one.
Arguments:
  p_message_ids, p_fences, p_results: arrays of the same length, at most 1000; each message once;
    results are
  completed, duplicate, retry, unknown, conflict, permanent, dead_letter, released, postponed
  p_reasons: codes of the domain trex.reason, not for deliveries (default unspecified)
  p_delays: 0 to 30 days, for retry and unknown (at least the backoff is waited) and postponed
    (required)
  p_absent: a look-up or a same-key answer showed for certain that no earlier attempt took effect;
    clears uncertain
  p_park: for unknown, park now (the adapter can''t honour the effect policy)
  p_confirmed_by: answer (default), lookup, same_key, handler; p_references: keys; both for
    deliveries
  p_balances, p_versions: the ledger''s balance and its version after the posting, together, for
    deliveries with cash
Returns: one row per outcome in the order given; status recorded, already_recorded, ended_otherwise,
  claim_lost, not_found;
  state is what the message is now; late = the lease had ended but nobody had claimed it again
Errors: TX400 (any bad element: nothing is written); TX503; TX403
Locks: delivery rows in id order, then snapshots in key order, then the next row of each freed
  ordering key
Idempotent: yes; the same report again answers already_recorded';
