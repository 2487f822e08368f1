-- For a worker that writes business rows and the outcome in one transaction: the row is locked
-- first, so nobody can take the claim over in between. A frozen worker would block it for ever,
-- hence the server's own timeout, for this transaction.
create or replace function trex.hold(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_timeout interval default '10 seconds'
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
declare
    v_now timestamptz;
    v_lease timestamptz;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_claimed(p_message_id, p_fence);
    if trex._is_duration(p_timeout, '100 milliseconds', '10 minutes') is not true then
        perform trex._raise('TX400', 'timeout: from 100 milliseconds to 10 minutes');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);

    select d.lease_until into v_lease
    from trex.delivery d
    where d.instance_key = p_instance_key and d.message_id = p_message_id and d.fence = p_fence
        and d.lease_until is not null
    for update;
    v_now := trex._now();
    if v_lease is null then
        return trex._tell_one(p_instance_key, p_message_id, p_fence, 'raise', v_now);
    end if;
    perform set_config(
        'idle_in_transaction_session_timeout', ceil(extract(epoch from p_timeout) * 1000)::integer || 'ms', true
    );
    return row(
        p_message_id, p_fence, 'recorded', case when v_lease > v_now then 'leased' else 'lease_ended' end,
        v_lease <= v_now, null
    )::trex.recorded;
end
$$;

alter function trex.hold(text, bigint, bigint, interval) owner to trex_owner;
revoke all on function trex.hold(text, bigint, bigint, interval) from public;
grant execute on function trex.hold(text, bigint, bigint, interval) to trex_worker;

comment on function trex.hold(text, bigint, bigint, interval) is
'Locks a claimed message until the caller''s transaction ends, so that nobody takes it over.
Arguments:
  p_message_id, p_fence: as claimed
  p_timeout: 100 ms to 10 min; PostgreSQL ends this session when the transaction is idle for longer
Returns: one recorded: status recorded, state leased or lease_ended; late = the lease had ended but
  nobody had claimed it again
Errors: TX400; TX503; TX403; TX404 no such message here; TX409 claim lost; TX410 this claim has an
  end
Locks: the delivery row, until the transaction ends
Idempotent: yes';
