-- Trigger functions behind the tables' guards. AFTER triggers that are ENABLE ALWAYS: a BEFORE
-- trigger misses what another trigger changes later, and an ordinary one is off in a session
-- with session_replication_role = replica.
create or replace function trex._guard_fact()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trex._raise('TX901', 'append-only: nothing changes or goes');
    return null;
end
$$;

create or replace function trex._guard_message()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
    v_purged trex.message := old;
begin
    v_purged.payload := null;
    if old.box <> 'outbox' or new is distinct from v_purged or not exists (
        select 1 from trex.receipt r
        where r.instance_key = old.instance_key and r.message_id = old.message_id
    ) then
        perform trex._raise('TX901', 'only the payload of a delivered outbox message may be purged');
    end if;
    return null;
end
$$;

create or replace function trex._guard_delivery()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trex._raise('TX902', 'owner, box and key never change; fence and attempts rise together, by a claim');
    return null;
end
$$;

create or replace function trex._guard_delivered()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One look-up a row, whatever the planner believes: as an anti-join it read all receipts.
    if exists (
        select 1
        from gone g
        left join lateral (
            select true as found
            from trex.receipt r
            where r.instance_key = g.instance_key and r.message_id = g.message_id
            limit 1
        ) r on true
        where r.found is null
    ) then
        perform trex._raise('TX902', 'a delivery goes only with its receipt');
    end if;
    return null;
end
$$;

create or replace function trex._guard_snapshot()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trex._raise('TX902', 'the version of a snapshot only rises');
    return null;
end
$$;

create or replace function trex._guard_epoch()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trex._raise('TX902', 'the epoch only rises');
    return null;
end
$$;

create or replace function trex._guard_quarantine()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
    v_adopted trex.quarantine := old;
begin
    v_adopted.adopted_message_id := new.adopted_message_id;
    v_adopted.adopted_at := new.adopted_at;
    if old.adopted_at is not null or new.adopted_at is null or new is distinct from v_adopted then
        perform trex._raise('TX901', 'a quarantined row changes once, when it is adopted');
    end if;
    return null;
end
$$;

-- The CHECKs of message, delivery and receipt. They name nothing outside pg_catalog, so a restore
-- may run them before anything else is there.
create or replace function trex._message_holds(
    p_box text,
    p_account text,
    p_currency text,
    p_cash_delta numeric,
    p_has_payload boolean,
    p_digest_length integer,
    p_effect_policy text
)
returns boolean
language plpgsql
immutable
parallel safe
security invoker
as $$
begin
    return p_box in ('outbox', 'inbox')
    and (p_has_payload or p_box = 'outbox')
    and p_digest_length = 32
    and p_effect_policy in ('idempotent', 'lookup', 'at_most_once')
    and num_nulls(p_account, p_currency, p_cash_delta) in (0, 3)
    and (p_cash_delta is null or (p_cash_delta > '-Infinity' and p_cash_delta < 'Infinity'));
end
$$;

create or replace function trex._delivery_holds(
    p_parked text,
    p_deferred_until timestamptz,
    p_lease_until timestamptz,
    p_worker text,
    p_fence bigint,
    p_attempts integer,
    p_tries integer,
    p_abandoned boolean
)
returns boolean
language plpgsql
immutable
parallel safe
security invoker
as $$
begin
    return (
        p_parked is null
        or (
            p_parked in ('dead_letter', 'permanent', 'conflict', 'unknown')
            and p_lease_until is null and p_deferred_until is not distinct from 'infinity'
        )
    )
    and (p_lease_until is null) = (p_worker is null)
    and (p_lease_until is null or p_fence > 0)
    and p_tries between 0 and p_attempts
    and (p_attempts = 0) = (p_fence = 0)
    and (not p_abandoned or p_parked is not distinct from 'permanent');
end
$$;

create or replace function trex._receipt_holds(
    p_fence bigint, p_attempt integer, p_confirmed_by text
)
returns boolean
language plpgsql
immutable
parallel safe
security invoker
as $$
begin
    return (
        p_fence > 0 and p_attempt > 0
        and p_confirmed_by in ('answer', 'lookup', 'same_key', 'handler', 'operator')
    )
    or (p_fence = 0 and p_attempt = 0 and p_confirmed_by = 'operator');
end
$$;
