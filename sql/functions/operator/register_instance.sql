-- Registers an instance, or changes its policy. It binds nobody: until somebody does, every call
-- for the instance is refused. Null leaves a value as it is, so the defaults stand in one place,
-- the table.
create or replace function trex.register_instance(
    p_instance_key text,
    p_actor text,
    p_reason text,
    p_max_attempts integer default null,
    p_lease_default interval default null,
    p_lease_max interval default null,
    p_backoff_base interval default null,
    p_backoff_cap interval default null,
    p_on_parked text default null,
    p_wake boolean default null,
    p_payload_max integer default null
)
returns text
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now timestamptz;
    v_registered boolean;
    v_old trex.instance;
    v_new trex.instance;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if p_max_attempts not between 1 and 1000 then
        perform trex._raise('TX400', 'max_attempts: from 1 to 1000');
    end if;
    if trex._is_duration(p_lease_default, '100 milliseconds', '24 hours') is false then
        perform trex._raise('TX400', 'lease_default: from 100 milliseconds to 24 hours, without months');
    end if;
    if trex._is_duration(p_lease_max, '100 milliseconds', '24 hours') is false then
        perform trex._raise('TX400', 'lease_max: from 100 milliseconds to 24 hours, without months');
    end if;
    if trex._is_duration(p_backoff_base, '1 millisecond', '720 hours') is false then
        perform trex._raise('TX400', 'backoff_base: from 1 millisecond to 30 days, without months');
    end if;
    if trex._is_duration(p_backoff_cap, '1 millisecond', '720 hours') is false then
        perform trex._raise('TX400', 'backoff_cap: from 1 millisecond to 30 days, without months');
    end if;
    if p_on_parked not in ('block', 'continue') then
        perform trex._raise('TX400', 'on_parked: block or continue');
    end if;
    if p_payload_max not between 2 and 16777216 then
        perform trex._raise('TX400', 'payload_max: from 2 to 16777216');
    end if;
    perform trex._durable();
    v_now := trex._now();

    insert into trex.instance (instance_key, registered_at)
    values (p_instance_key, v_now)
    on conflict (instance_key) do nothing;
    v_registered := found;
    select i.* into v_old from trex.instance i where i.instance_key = p_instance_key for no key update;
    v_new := v_old;
    v_new.max_attempts := coalesce(p_max_attempts, v_old.max_attempts);
    v_new.lease_default := coalesce(trex._span(p_lease_default), v_old.lease_default);
    v_new.lease_max := coalesce(trex._span(p_lease_max), v_old.lease_max);
    v_new.backoff_base := coalesce(trex._span(p_backoff_base), v_old.backoff_base);
    v_new.backoff_cap := coalesce(trex._span(p_backoff_cap), v_old.backoff_cap);
    v_new.on_parked := coalesce(p_on_parked, v_old.on_parked);
    v_new.wake := coalesce(p_wake, v_old.wake);
    v_new.payload_max := coalesce(p_payload_max, v_old.payload_max);
    if v_new.lease_default > v_new.lease_max then
        perform trex._raise('TX400', 'lease_default: at most lease_max');
    end if;
    if v_new.backoff_base > v_new.backoff_cap then
        perform trex._raise('TX400', 'backoff_base: at most backoff_cap');
    end if;
    if v_new is not distinct from v_old and not v_registered then
        return 'unchanged';
    end if;
    update trex.instance i
    set max_attempts = v_new.max_attempts, lease_default = v_new.lease_default, lease_max = v_new.lease_max,
        backoff_base = v_new.backoff_base, backoff_cap = v_new.backoff_cap, on_parked = v_new.on_parked,
        wake = v_new.wake, payload_max = v_new.payload_max
    where i.instance_key = p_instance_key;
    if v_old.on_parked = 'block' and v_new.on_parked = 'continue' and not v_registered then
        perform trex._free_heads(p_instance_key, 'inbox', false, v_now, 2147483647);
        perform trex._free_heads(p_instance_key, 'outbox', false, v_now, 2147483647);
    end if;
    -- Durations in microseconds.
    perform trex._audit(
        p_instance_key, 'register_instance', null, p_actor, p_reason,
        jsonb_build_object(
            'max_attempts', v_new.max_attempts,
            'lease_default', (extract(epoch from v_new.lease_default) * 1000000)::bigint,
            'lease_max', (extract(epoch from v_new.lease_max) * 1000000)::bigint,
            'backoff_base', (extract(epoch from v_new.backoff_base) * 1000000)::bigint,
            'backoff_cap', (extract(epoch from v_new.backoff_cap) * 1000000)::bigint,
            'on_parked', v_new.on_parked,
            'wake', v_new.wake,
            'payload_max', v_new.payload_max
        ), v_now
    );
    return case when v_registered then 'registered' else 'changed' end;
end
$$;

alter function trex.register_instance(
    text, text, text, integer, interval, interval, interval, interval, text, boolean, integer
) owner to trex_owner;
revoke all on function trex.register_instance(
    text, text, text, integer, interval, interval, interval, interval, text, boolean, integer
) from public;
grant execute on function trex.register_instance(
    text, text, text, integer, interval, interval, interval, interval, text, boolean, integer
) to trex_operator;

comment on function trex.register_instance(
    text, text, text, integer, interval, interval, interval, interval, text, boolean, integer
) is
'Registers an instance, or changes its policy. Needs no binding and binds nobody.
Arguments:
  p_instance_key: 1 to 63 of a-z 0-9 . _ : - ; p_actor: a key; p_reason: 1 to 1000 characters
  p_max_attempts: 1 to 1000 (12), the allowance of tries
  p_lease_default: (30 s) up to p_lease_max: (15 min) up to 24 h
  p_backoff_base: (1 s) up to p_backoff_cap: (1 h) up to 30 days
  p_on_parked: block (default), a parked message holds back its ordering key; or continue
  p_wake: notify waiting workers (true); p_payload_max: 2 to 16777216 bytes (1 MiB)
  null: the default in brackets at first, later the value it has
Returns: registered, changed or unchanged
Errors: TX400; TX503
Locks: the instance; on a change to continue, the first waiting row of each ordering key (skip
  locked)
Idempotent: yes';
