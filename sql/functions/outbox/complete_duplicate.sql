-- As final as complete: the lease is released at once and the message is never sent again.
create or replace function trex.complete_duplicate(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_reference text default null,
    p_confirmed_by text default 'answer',
    p_balance numeric default null,
    p_version bigint default null,
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
        p_instance_key, p_message_id, p_fence, 'duplicate', p_on_lost, null, null, null, null, p_confirmed_by,
        p_reference, p_balance, p_version
    );
end
$$;

alter function trex.complete_duplicate(
    text, bigint, bigint, text, text, numeric, bigint, text
) owner to trex_owner;
revoke all on function trex.complete_duplicate(
    text, bigint, bigint, text, text, numeric, bigint, text
) from public;
grant execute on function trex.complete_duplicate(
    text, bigint, bigint, text, text, numeric, bigint, text
) to trex_worker;

comment on function trex.complete_duplicate(
    text, bigint, bigint, text, text, numeric, bigint, text
) is
'Delivered: the sink says that it already has this key with this content.
Arguments:
  p_message_id, p_fence: as claimed
  p_reference: the ledger''s own reference, a key; p_confirmed_by: answer, lookup, same_key, handler
  p_balance, p_version: the ledger''s balance and version after the posting, together; stored in the
    same statement chain
  p_on_lost: raise (default), or report: the refusal is returned as data and kept in stale_report
Returns: one recorded: status, the message''s state now, late, due_at
Errors: TX400; TX503; TX403; TX404 no such message here; TX409 claim lost; TX410 this claim has
  another end
Locks: the delivery row, then the snapshot, then the next row of its ordering key
Idempotent: yes; the same call again answers already_recorded and ignores other arguments';
