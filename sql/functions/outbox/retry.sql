-- Only for an outcome that is known: the sink said no, or was never reached. A time-out after
-- sending is mark_unknown.
create or replace function trex.retry(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_reason text default 'unspecified',
    p_delay interval default null,
    p_absent boolean default false,
    p_on_lost text default 'raise'
)
returns trex.recorded
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
begin
    return trex._record_one(
        p_instance_key, p_message_id, p_fence, 'retry', p_on_lost, p_reason, p_delay, p_absent, null, null,
        null, null, null
    );
end
$$;

alter function trex.retry(text, bigint, bigint, text, interval, boolean, text) owner to trex_owner;
revoke all on function trex.retry(text, bigint, bigint, text, interval, boolean, text) from public;
grant execute on function trex.retry(
    text, bigint, bigint, text, interval, boolean, text
) to trex_worker;

comment on function trex.retry(text, bigint, bigint, text, interval, boolean, text) is
'Not delivered: again after the backoff, or parked when the allowance is used up.
Arguments:
  p_message_id, p_fence: as claimed
  p_reason: a code of trex.reason; p_delay: wait at least this long (Retry-After), 0 to 30 days
  p_absent: no earlier attempt took effect, for certain (look-up or same-key answer)
  p_on_lost: raise (default), or report: the refusal is returned as data and kept in stale_report
Returns: one recorded: status, the message''s state now, late, due_at
Errors: TX400; TX503; TX403; TX404 no such message here; TX409 claim lost; TX410 this claim has
  another end
Locks: the delivery row, then the snapshot, then the next row of its ordering key
Idempotent: yes; the same call again answers already_recorded and ignores other arguments';
