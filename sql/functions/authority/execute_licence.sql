-- One winner: a single statement takes the capability (not consumed, not expired, for this
-- subject), records the usage and raises both counters; whatever stops one part stops all. The
-- licence row is locked first, so that uses_max holds across capabilities; the entitlement is
-- locked shared, so that its end and this use have an order. The block catches a usage id that
-- another licence's use is storing at this moment.
create or replace function trex.execute_licence(
    p_instance_key text,
    p_capability_id text,
    p_subject text,
    p_usage_id text,
    p_thumbprint text default null,
    p_on_refused text default 'raise'
)
returns trex.executed
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_licence trex.licence;
    v_right trex.entitlement;
    v_capability trex.capability;
    v_usage trex.license_usage;
    v_now timestamptz;
    v_month text;
    v_total bigint;
    v_monthly bigint;
    v_status text;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_capability_id) is not true then
        perform trex._raise('TX400', 'capability_id: a key');
    end if;
    if trex._is_key(p_subject) is not true then
        perform trex._raise('TX400', 'subject: a key');
    end if;
    if trex._is_key(p_usage_id) is not true then
        perform trex._raise('TX400', 'usage_id: a key');
    end if;
    if trex._is_key(p_thumbprint) is false then
        perform trex._raise('TX400', 'thumbprint: a key, or null');
    end if;
    if p_on_refused is null or p_on_refused not in ('raise', 'report') then
        perform trex._raise('TX400', 'on_refused: raise or report');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    select l.* into v_licence
    from trex.licence l
    where l.instance_key = p_instance_key and l.licence_id = (
        select c.licence_id
        from trex.capability c
        where c.instance_key = p_instance_key and c.capability_id = p_capability_id
    )
    for no key update;
    if not found then
        if p_on_refused = 'raise' then
            perform trex._raise('TX404', 'no such capability for this subject');
        end if;
        return row(p_usage_id, 'not_found', null, null, null, null)::trex.executed;
    end if;
    select e.* into v_right
    from trex.entitlement e
    where e.instance_key = p_instance_key and e.entitlement_id = v_licence.entitlement_id
    for share;
    for v_round in 1..2 loop
        v_now := trex._now();
        v_month := to_char(v_now at time zone 'UTC', 'YYYY-MM');
        select c.* into v_capability
        from trex.capability c
        where c.instance_key = p_instance_key and c.capability_id = p_capability_id;
        v_usage := null;
        select u.* into v_usage
        from trex.license_usage u
        where u.instance_key = p_instance_key and u.usage_id = p_usage_id;
        v_total := null;
        v_monthly := null;
        select
            max(n.uses) filter (where n.period = 'all'),
            max(n.uses) filter (
                where n.period = coalesce(to_char(v_usage.used_at at time zone 'UTC', 'YYYY-MM'), v_month)
            )
        into v_total, v_monthly
        from trex.usage_counter n
        where n.instance_key = p_instance_key and n.licence_id = v_licence.licence_id;
        v_status := case
            when v_capability.subject <> p_subject then 'other_subject'
            when v_usage.capability_id = p_capability_id then 'replayed'
            when v_usage.usage_id is not null then 'operation_conflict'
            when v_capability.consumed_by is not null then 'consumed'
            when v_capability.expires_at <= v_now then 'expired'
            when v_right.state <> 'active' or v_right.valid_until <= v_now then 'not_active'
            when v_total >= v_licence.uses_max then 'exhausted'
            when v_licence.devices_max is not null and not exists (
                select 1 from trex.device_binding b
                where b.instance_key = p_instance_key and b.licence_id = v_licence.licence_id
                    and b.thumbprint = p_thumbprint
            ) then 'device_unknown'
            else 'executed'
        end;
        if v_status = 'replayed' then
            return row(
                p_usage_id, 'replayed', v_licence.licence_id, v_usage.used_at, v_total, v_monthly
            )::trex.executed;
        end if;
        if v_status <> 'executed' then
            if p_on_refused = 'raise' then
                perform trex._refuse_use(v_status);
            end if;
            if v_status <> 'operation_conflict' then
                insert into trex.security_event (
                    instance_key, capability_id, kind, usage_id, licence_id, account, seller, subject, seen_at
                )
                values (
                    p_instance_key, p_capability_id, v_status, p_usage_id, v_licence.licence_id, v_licence.account,
                    v_licence.seller, p_subject, v_now
                )
                on conflict (instance_key, capability_id, kind, usage_id) do nothing;
            end if;
            if v_status = 'other_subject' then
                return row(p_usage_id, 'not_found', null, null, null, null)::trex.executed;
            end if;
            return row(p_usage_id, v_status, v_licence.licence_id, null, v_total, v_monthly)::trex.executed;
        end if;
        begin
            with taken as (
                update trex.capability c
                set consumed_by = p_usage_id, consumed_at = v_now
                where c.instance_key = p_instance_key and c.capability_id = p_capability_id and c.consumed_by is null
                    and c.expires_at > v_now and c.subject = p_subject
                returning c.capability_id, c.licence_id
            ),
            used as (
                insert into trex.license_usage (
                    instance_key, usage_id, capability_id, licence_id, account, seller, subject, used_at
                )
                select
                    p_instance_key, p_usage_id, t.capability_id, t.licence_id, v_licence.account, v_licence.seller,
                    p_subject, v_now
                from taken t
            ),
            counted as (
                insert into trex.usage_counter as n (
                    instance_key, licence_id, period, account, seller, uses, counted_at
                )
                select p_instance_key, t.licence_id, p.period, v_licence.account, v_licence.seller, 1, v_now
                from taken t
                cross join (values ('all'), (v_month)) p (period)
                order by p.period
                on conflict (instance_key, licence_id, period) do update
                set uses = n.uses + 1, counted_at = excluded.counted_at
                returning n.period, n.uses
            )
            select max(k.uses) filter (where k.period = 'all'), max(k.uses) filter (where k.period <> 'all')
            into v_total, v_monthly
            from counted k;
            if v_total is not null then
                return row(
                    p_usage_id, 'executed', v_licence.licence_id, v_now, v_total, v_monthly
                )::trex.executed;
            end if;
        exception when unique_violation then
            null;
        end;
    end loop;
    perform trex._raise('TX902', 'a use that no round could classify');
    return null;
end
$$;

alter function trex.execute_licence(text, text, text, text, text, text) owner to trex_owner;
revoke all on function trex.execute_licence(text, text, text, text, text, text) from public;
grant execute on function trex.execute_licence(text, text, text, text, text, text) to trex_app;

comment on function trex.execute_licence(text, text, text, text, text, text) is
'Uses a licence once: consumes the capability, records the usage and counts it, for ever and for
  the month (UTC), or nothing of it.
Arguments:
  p_capability_id: as issued; p_subject: who uses it, as issued; p_usage_id: a key, once per
      instance for one use
  p_thumbprint: of the device''s key, where the licence is for bound devices only
  p_on_refused: raise (default), or report: the refusal is returned as data and kept as a
      security event
Returns: one executed: status executed, replayed (used_at of then, the counters as they are now), or not_found (also for another
  subject), operation_conflict, consumed,
  expired, not_active, exhausted, device_unknown, in this order; the counters of all time and of
      the month
Errors: TX400; TX503; TX403; TX404 no such capability for this subject; TX422 the usage id has
  another capability; TX410 consumed by
  another use; TX423 expired, right not active, uses exhausted, or device unknown
Locks: the licence row, the entitlement row (shared), the capability row, then the counters
Idempotent: yes, by usage_id';
