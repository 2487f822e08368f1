-- What the tables of reconciliation refuse, whoever writes to them.
create or replace function trex._guard_reconcile()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trex._raise('TX902', 'a finished run and a finding stay as they are');
    return null;
end
$$;

-- The checks, in the order of a run.
create or replace function trex._reconcile_checks()
returns text[]
language sql
immutable
parallel safe
security invoker
as $$
select array[
    'messages', 'deliveries', 'receipts', 'skips', 'snapshots', 'entities', 'payments', 'entitlements',
    'subscriptions', 'licences'
]
$$;

-- One page of one check: a row for everything that was looked at (place, to go on after), and
-- beside it one for each drift. Ids are walked in the order of their primary keys, so a page costs
-- what it holds, whatever the size of the instance.
create or replace function trex._reconcile_page(
    p_instance_key text,
    p_check text,
    p_after text,
    p_limit integer,
    p_stay interval,
    p_now timestamptz
)
returns setof trex.drift
language plpgsql
stable
security invoker
set plan_cache_mode = force_custom_plan
set jit = off
as $$
declare
    v_id bigint := case when p_check in ('messages', 'deliveries', 'receipts', 'skips') then p_after::bigint end;
    v_first text := case when v_id is null then coalesce(p_after::jsonb ->> 0, '') end;
    v_second text := case when v_id is null then coalesce(p_after::jsonb ->> 1, '') end;
begin
    case p_check
    when 'messages' then
        return query
        -- The rows to go on after come from the page itself: a join may change their order.
        with page as materialized (
            select m.message_id, m.box, m.enqueued_at
            from trex.message m
            where m.instance_key = p_instance_key and m.message_id > v_id
            order by m.message_id
            limit p_limit
        ),
        known as materialized (
            select
                g.message_id, g.box, g.enqueued_at, d.message_id is not null as live, r.message_id is not null as done,
                d.parked, d.abandoned, d.fence, d.lease_until, coalesce(r.attempt, d.attempts) as attempts, o.ends,
                case
                    when r.message_id is not null then (r.confirmed_by <> 'operator')::integer
                    else (d.lease_until is not null)::integer
                end as open,
                greatest(
                    g.enqueued_at, d.lease_until, case when l.kind <> 'postponed' then l.recorded_at end,
                    case when l.kind is distinct from 'postponed' then nullif(d.deferred_until, 'infinity') end
                ) as moved_at
            from page g
            left join trex.delivery d on d.instance_key = p_instance_key and d.message_id = g.message_id
            left join trex.receipt r on r.instance_key = p_instance_key and r.message_id = g.message_id
            cross join lateral (
                select count(*) as ends
                from trex.outcome e
                where e.instance_key = p_instance_key and e.message_id = g.message_id
            ) o
            left join lateral (
                select e.kind, e.recorded_at
                from trex.outcome e
                where e.instance_key = p_instance_key and e.message_id = g.message_id
                order by e.fence desc
                limit 1
            ) l on true
        )
        select g.message_id::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint, null::bigint
        from page g
        union all
        select
            g.message_id::text, 'orphan_row', jsonb_build_object('message_id', g.message_id),
            'one delivery or one receipt', case when g.live then 'both' else 'neither' end, '[]',
            'restore the missing fact from a backup', null, null
        from known g
        where g.live = g.done
        union all
        select
            g.message_id::text, 'fence_gap', jsonb_build_object('message_id', g.message_id),
            'attempts = ends + open claims', format('attempts %s, ends %s, open %s', g.attempts, g.ends, g.open), '[]',
            'find out who wrote past the functions', null, null
        from known g
        where g.live <> g.done and g.attempts <> g.ends + g.open
        union all
        select
            g.message_id::text, case g.box when 'outbox' then 'failed_or_stuck_outbox' else 'unprocessed_inbox_events' end,
            case
                when g.parked is not null
                    then jsonb_build_object('message_id', g.message_id, 'fence', g.fence, 'parked', g.parked)
                when g.lease_until is not null
                    then jsonb_build_object('message_id', g.message_id, 'fence', g.fence)
                else jsonb_build_object('message_id', g.message_id)
            end,
            'delivered within the longest stay',
            case when g.parked is not null then 'parked ' || g.parked when g.lease_until is not null then 'lease ended' else 'stuck' end,
            jsonb_build_array('message:' || g.message_id),
            case
                when g.parked in ('unknown', 'conflict') then 'look up, then resolve with evidence'
                when g.parked is not null then 'fix the cause, then redrive'
                when g.lease_until is not null then 'end the lease, so that it is due again'
                else 'start a worker, or find out what it waits for'
            end,
            case when g.lease_until is not null then g.message_id end, case when g.lease_until is not null then g.fence end
        from known g
        where g.live and not g.done and not g.abandoned and (g.parked is not null or g.moved_at < p_now - p_stay);
    when 'deliveries' then
        return query
        with page as materialized (
            select d.message_id
            from trex.delivery d
            where d.instance_key = p_instance_key and d.message_id > v_id
            order by d.message_id
            limit p_limit
        )
        select g.message_id::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint, null::bigint
        from page g
        union all
        select
            g.message_id::text, 'orphan_row', jsonb_build_object('table', 'delivery', 'message_id', g.message_id),
            'a message', 'none', '[]', 'restore the missing fact from a backup', null, null
        from page g
        where not exists (
            select 1 from trex.message m
            where m.instance_key = p_instance_key and m.message_id = g.message_id
        );
    when 'receipts' then
        return query
        with page as materialized (
            select r.message_id
            from trex.receipt r
            where r.instance_key = p_instance_key and r.message_id > v_id
            order by r.message_id
            limit p_limit
        )
        select g.message_id::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint, null::bigint
        from page g
        union all
        select
            g.message_id::text, 'orphan_row', jsonb_build_object('table', 'receipt', 'message_id', g.message_id),
            'a message', 'none', '[]', 'restore the missing fact from a backup', null, null
        from page g
        where not exists (
            select 1 from trex.message m
            where m.instance_key = p_instance_key and m.message_id = g.message_id
        );
    when 'skips' then
        return query
        with page as materialized (
            select s.message_id, s.resolved_at
            from trex.ledger_skip s
            where s.instance_key = p_instance_key and s.message_id > v_id
            order by s.message_id
            limit p_limit
        )
        select g.message_id::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint, null::bigint
        from page g
        union all
        select
            g.message_id::text, 'skip_without_parked_row', jsonb_build_object('message_id', g.message_id),
            case when g.resolved_at is null then 'an undelivered message' else 'a delivered message' end,
            case when g.resolved_at is null then 'none' else 'undelivered' end, '[]',
            'compare with the ledger, then correct the books', null, null
        from page g
        where (g.resolved_at is null) <> exists (
            select 1 from trex.delivery d
            where d.instance_key = p_instance_key and d.message_id = g.message_id
        );
    when 'snapshots' then
        return query
        with page as materialized (
            select s.account, s.currency, s.message_id, s.fence, s.contradicted
            from trex.ledger_snapshot s
            where s.instance_key = p_instance_key and (s.account, s.currency) > (v_first collate "C", v_second collate "C")
            order by s.account, s.currency
            limit p_limit
        )
        select
            jsonb_build_array(g.account, g.currency)::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint,
            null::bigint
        from page g
        union all
        select
            jsonb_build_array(g.account, g.currency)::text, 'snapshot_drift',
            jsonb_build_object('account', g.account, 'currency', g.currency), 'one balance for each version, from a receipt',
            case when g.contradicted > 0 then 'contradicted' else 'no receipt' end,
            jsonb_build_array('message:' || g.message_id), 'read the balance from the ledger again', null, null
        from page g
        where g.contradicted > 0 or not exists (
            select 1 from trex.receipt r
            where r.instance_key = p_instance_key and r.message_id = g.message_id and r.fence = g.fence
        );
    when 'entities' then
        return query
        with page as materialized (
            select e.machine, e.entity, e.state, e.version, e.since
            from trex.entity e
            where e.instance_key = p_instance_key and (e.machine, e.entity) > (v_first collate "C", v_second collate "C")
            order by e.machine, e.entity
            limit p_limit
        )
        select
            jsonb_build_array(g.machine, g.entity)::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint,
            null::bigint
        from page g
        union all
        select
            jsonb_build_array(g.machine, g.entity)::text, 'overdue_state',
            jsonb_build_object('machine', g.machine, 'entity', g.entity, 'version', g.version),
            'to leave the state within its longest stay', 'still ' || g.state, '[]',
            coalesce(s.next_action::text, 'ask the owner of the state'), null, null
        from page g
        join trex.machine_state s
            on s.instance_key = p_instance_key and s.machine = g.machine and s.state = g.state
            and s.revision = (
                select max(m.revision) from trex.machine m
                where m.instance_key = p_instance_key and m.machine = g.machine
            )
        where g.since < p_now - s.longest_stay;
    when 'payments' then
        return query
        with page as materialized (
            select p.account, p.invoice_id, max(p.asked) as asked
            from trex.payment p
            where p.instance_key = p_instance_key and (p.account, p.invoice_id) > (v_first collate "C", v_second collate "C")
            group by p.account, p.invoice_id
            order by p.account, p.invoice_id
            limit p_limit
        )
        select
            jsonb_build_array(g.account, g.invoice_id)::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint,
            null::bigint
        from page g
        union all
        select
            jsonb_build_array(g.account, g.invoice_id)::text, 'paid_no_entitlement',
            jsonb_build_object('account', g.account, 'invoice_id', g.invoice_id), 'a right', 'none',
            case when p.message_id is null then '[]' else jsonb_build_array('message:' || p.message_id) end,
            'find the order, then let an event of the invoice be handled', null, null
        from page g
        join trex.payment p
            on p.instance_key = p_instance_key and p.account = g.account and p.invoice_id = g.invoice_id
            and p.asked = g.asked
        where p.status = 'paid' and p.asked_at < p_now - p_stay and not exists (
            select 1 from trex.entitlement e
            where e.instance_key = p_instance_key and e.account = g.account and e.invoice_id = g.invoice_id
        );
    when 'entitlements' then
        return query
        with page as materialized (
            select e.entitlement_id, e.account, e.invoice_id, e.state
            from trex.entitlement e
            where e.instance_key = p_instance_key and e.entitlement_id > v_first collate "C"
            order by e.entitlement_id
            limit p_limit
        ),
        known as materialized (
            select
                g.*, p.status, p.message_id,
                p.status = 'refunded' or (o.amount > 0 and (
                    select a.balance from trex.adjustment a
                    where a.instance_key = p_instance_key and a.operation_id = g.entitlement_id
                    order by a.version desc
                    limit 1
                ) = 0) or (
                    select sum(r.amount) from trex.refund r
                    where r.instance_key = p_instance_key and r.account = g.account and r.invoice_id = g.invoice_id
                ) >= o.amount as refunded
            from page g
            left join lateral (
                select q.status, q.message_id
                from trex.payment q
                where q.instance_key = p_instance_key and q.account = g.account and q.invoice_id = g.invoice_id
                order by q.asked desc
                limit 1
            ) p on true
            left join trex.operation o on o.instance_key = p_instance_key and o.operation_id = g.entitlement_id
        )
        select
            jsonb_build_array(g.entitlement_id)::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint,
            null::bigint
        from page g
        union all
        select
            jsonb_build_array(g.entitlement_id)::text,
            case when g.refunded then 'refunded_but_valid_entitlement' else 'unpaid_but_entitled' end,
            jsonb_build_object('entitlement_id', g.entitlement_id, 'account', g.account, 'invoice_id', g.invoice_id),
            case when g.refunded then 'an ended right' else 'a payment' end, coalesce(g.status::text, 'none'),
            case when g.message_id is null then '[]' else jsonb_build_array('message:' || g.message_id) end,
            'ask the provider, then end the right', null, null
        from known g
        where g.state = 'active' and (g.refunded or g.status is distinct from 'paid')
        union all
        select
            jsonb_build_array(g.entitlement_id)::text, 'duplicate_issuance_per_payment',
            jsonb_build_object('account', g.account, 'invoice_id', g.invoice_id), 'one right for one invoice',
            format('%s rights', (
                select count(*) from trex.entitlement d
                where d.instance_key = p_instance_key and d.account = g.account and d.invoice_id = g.invoice_id
            )), '[]', 'decide which right stays, then end the other', null, null
        from known g
        where (
            select count(*) > 1 and min(d.entitlement_id collate "C") = g.entitlement_id
            from trex.entitlement d
            where d.instance_key = p_instance_key and d.account = g.account and d.invoice_id = g.invoice_id
        );
    when 'subscriptions' then
        return query
        with page as materialized (
            select s.account, s.subscription_id, s.invoice_id, s.status, s.period_end
            from trex.subscription s
            where s.instance_key = p_instance_key
                and (s.account, s.subscription_id) > (v_first collate "C", v_second collate "C")
            order by s.account, s.subscription_id
            limit p_limit
        )
        select
            jsonb_build_array(g.account, g.subscription_id)::text, null, null::jsonb, null, null, null::jsonb, null,
            null::bigint, null::bigint
        from page g
        union all
        select
            jsonb_build_array(g.account, g.subscription_id)::text, 'subscription_expired_but_renewed',
            jsonb_build_object('account', g.account, 'subscription_id', g.subscription_id),
            'no right beyond the paid period', 'subscription ' || g.status, '[]', 'ask the provider, then end the right', null, null
        from page g
        where g.status in ('cancelled', 'expired') and g.period_end < p_now and exists (
            select 1 from trex.entitlement e
            where e.instance_key = p_instance_key and e.account = g.account and e.invoice_id = g.invoice_id
                and e.state = 'active' and (e.valid_until is null or e.valid_until > g.period_end)
        );
    else
        return query
        with page as materialized (
            select l.licence_id
            from trex.licence l
            where l.instance_key = p_instance_key and l.licence_id > v_first collate "C"
            order by l.licence_id
            limit p_limit
        )
        select
            jsonb_build_array(g.licence_id)::text, null, null::jsonb, null, null, null::jsonb, null, null::bigint,
            null::bigint
        from page g
        union all
        select
            jsonb_build_array(g.licence_id)::text, 'counter_drift',
            jsonb_build_object('licence_id', g.licence_id, 'period', n.period), format('%s uses', n.used),
            format('%s counted', n.counted), '[]', 'count the records again', null, null
        from page g
        cross join lateral (
            select k.period, coalesce(sum(k.used), 0) as used, coalesce(sum(k.counted), 0) as counted
            from (
                select p.period, 1 as used, 0 as counted
                from trex.license_usage u
                cross join lateral (
                    values ('all'), (to_char(u.used_at at time zone 'UTC', 'YYYY-MM'))
                ) p (period)
                where u.instance_key = p_instance_key and u.licence_id = g.licence_id
                union all
                select c.period, 0, c.uses
                from trex.usage_counter c
                where c.instance_key = p_instance_key and c.licence_id = g.licence_id
            ) k
            group by k.period
        ) n
        where n.used <> n.counted;
    end case;
end
$$;

-- A lease that ended without an outcome, long ago: turned back, as the next claim would have done
-- it. Nothing else is ever repaired.
create or replace function trex._reconcile_lease(
    p_instance trex.instance,
    p_message_id bigint,
    p_fence bigint,
    p_actor text,
    p_reason text,
    p_now timestamptz
)
returns boolean
language plpgsql
volatile
security invoker
as $$
begin
    perform 1
    from trex.delivery d
    where d.instance_key = p_instance.instance_key and d.message_id = p_message_id and d.fence = p_fence
        and d.lease_until <= p_now
    for no key update skip locked;
    if not found then
        return false;
    end if;
    perform trex._sift(p_instance, array[p_message_id], 1, p_now);
    update trex.delivery d
    set deferred_until = p_now
    where d.instance_key = p_instance.instance_key and d.message_id = p_message_id and d.parked is null
        and d.deferred_until is distinct from 'infinity';
    perform trex._audit(
        p_instance.instance_key, 'reconcile', p_message_id, p_actor, p_reason, jsonb_build_object('fence', p_fence), p_now
    );
    return true;
end
$$;

-- A run as its operators read it.
create or replace function trex._reconcile_report(p_run trex.reconcile_run)
returns trex.reconcile_report
language sql
immutable
parallel safe
security invoker
as $$
select row(
    p_run.run_id, p_run.state, (trex._reconcile_checks())[p_run.at_check], p_run.examined, p_run.found, p_run.fresh,
    p_run.repaired, p_run.failed_check, p_run.failed_code, p_run.actor::text, p_run.reason, p_run.started_at,
    p_run.finished_at
)::trex.reconcile_report
$$;
