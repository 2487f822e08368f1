"""The invariants of the kernel that tables alone can show, as SQL: run after each scenario.

    assert not violations(conn)

Each query returns the rows that break its rule. What needs more than the tables (what a call
returned, who could see it, when) is asserted by the suites themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

INVARIANTS: dict[str, str] = {
    "I1 at most one receipt": """
        select instance_key, message_id from trex.receipt
        group by 1, 2 having count(*) > 1
    """,
    "I2 the receipt has the last fence": """
        select r.instance_key, r.message_id, r.fence, o.last
        from trex.receipt r
        left join lateral (
            select max(o.fence) as last from trex.outcome o
            where (o.instance_key, o.message_id) = (r.instance_key, r.message_id)
        ) o on true
        where case
            when r.confirmed_by = 'operator' then r.fence <> coalesce(o.last, 0)
            else r.fence <= coalesce(o.last, 0)
        end
    """,
    "I3 exactly one of delivery and receipt": """
        select m.instance_key, m.message_id
        from trex.message m
        left join trex.delivery d using (instance_key, message_id)
        left join trex.receipt r using (instance_key, message_id)
        where (d.message_id is null) = (r.message_id is null)
    """,
    "I3 no orphans": """
        select q.instance_key, q.message_id, q.source
        from (
            select instance_key, message_id, 'delivery' as source from trex.delivery
            union all select instance_key, message_id, 'receipt' from trex.receipt
            union all select instance_key, message_id, 'outcome' from trex.outcome
            union all select instance_key, message_id, 'stale_report' from trex.stale_report
            union all select instance_key, message_id, 'ledger_skip' from trex.ledger_skip
        ) q
        where not exists (
            select 1 from trex.message m
            where (m.instance_key, m.message_id) = (q.instance_key, q.message_id)
        )
    """,
    "I3 a delivery is its message's": """
        select d.instance_key, d.message_id
        from trex.delivery d
        join trex.message m using (instance_key, message_id)
        where d.box <> m.box or d.ordering_key is distinct from m.ordering_key
    """,
    "I4 a fence is given once": """
        select q.instance_key, q.fence
        from (
            select instance_key, message_id, fence from trex.outcome
            union all
            select instance_key, message_id, fence from trex.receipt
            where confirmed_by <> 'operator'
            union all
            select instance_key, message_id, fence from trex.delivery where lease_until is not null
        ) q
        group by 1, 2 having count(*) > 1
    """,
    "I4 fences rise with attempts, without a gap": """
        select q.instance_key, q.message_id, q.fence
        from (
            select
                e.instance_key, e.message_id, e.fence, e.attempt,
                lag(e.fence) over w as before, row_number() over w as number
            from (
                select instance_key, message_id, fence, attempt from trex.outcome
                union all
                select instance_key, message_id, fence, attempt from trex.receipt
                where confirmed_by <> 'operator'
                union all
                select instance_key, message_id, fence, attempts from trex.delivery
                where lease_until is not null
            ) e
            window w as (partition by e.instance_key, e.message_id order by e.attempt)
        ) q
        where q.attempt <> q.number or q.fence <= q.before
    """,
    "I6 attempts = ends + open claim": """
        select m.instance_key, m.message_id, d.attempts, r.attempt, o.ends
        from trex.message m
        left join trex.delivery d using (instance_key, message_id)
        left join trex.receipt r using (instance_key, message_id)
        left join lateral (
            select count(*) as ends from trex.outcome o
            where (o.instance_key, o.message_id) = (m.instance_key, m.message_id)
        ) o on true
        where coalesce(d.attempts - (d.lease_until is not null)::integer,
            r.attempt - (r.confirmed_by <> 'operator')::integer) <> o.ends
    """,
    "I6 the last fence of a delivery": """
        select d.instance_key, d.message_id, d.fence
        from trex.delivery d
        left join trex.outcome o using (instance_key, message_id, fence)
        where d.fence > 0 and (o.fence is null) <> (d.lease_until is not null)
    """,
    "I7 every row has a registered owner": """
        select m.instance_key, m.message_id from trex.message m
        where not exists (select 1 from trex.instance i where i.instance_key = m.instance_key)
    """,
    "I7 quarantined rows have none": """
        select null::text as instance_key, q.quarantine_id from trex.quarantine q
        where q.instance_key is not null
    """,
    "I8 the digest is the payload's": """
        select m.instance_key, m.message_id from trex.message m
        where m.payload is not null
            and m.digest <> sha256(convert_to(m.payload::text, 'UTF8'))
    """,
    "I8 only delivered outbox messages are purged": """
        select m.instance_key, m.message_id from trex.message m
        where m.payload is null and (
            m.box <> 'outbox' or not exists (
                select 1 from trex.receipt r
                where (r.instance_key, r.message_id) = (m.instance_key, m.message_id)
            )
        )
    """,
    "I13 an uncertain at_most_once message is parked": """
        select d.instance_key, d.message_id
        from trex.delivery d
        join trex.message m using (instance_key, message_id)
        where m.effect_policy = 'at_most_once' and d.uncertain and d.parked is null
            and d.attempts > 0
    """,
    "I13 an at_most_once message is sent once for each decision": """
        select o.instance_key, o.message_id, count(*)
        from trex.outcome o
        join trex.message m using (instance_key, message_id)
        where m.effect_policy = 'at_most_once' and o.state = 'unknown'
        group by 1, 2
        having count(*) > 1 + (
            select count(*) from trex.audit a
            where (a.instance_key, a.message_id) = (o.instance_key, o.message_id)
                and a.action = 'resolve'
        )
    """,
    "I14 unknown and conflict are left by resolve only": """
        select o.instance_key, o.message_id, o.state, count(*)
        from trex.outcome o
        left join trex.delivery d using (instance_key, message_id)
        where o.state in ('unknown', 'conflict')
        group by o.instance_key, o.message_id, o.state, d.parked
        having count(*) > (d.parked is not distinct from o.state)::integer + (
            select count(*) from trex.audit a
            where (a.instance_key, a.message_id) = (o.instance_key, o.message_id)
                and a.action = 'resolve' and a.detail ->> 'parked' = o.state
        )
    """,
    "I14 other parked states are left by an operator only": """
        select o.instance_key, o.message_id, o.state, count(*)
        from trex.outcome o
        left join trex.delivery d using (instance_key, message_id)
        where o.state in ('dead_letter', 'permanent')
        group by o.instance_key, o.message_id, o.state, d.parked
        having count(*) > (d.parked is not distinct from o.state)::integer + (
            select count(*) from trex.audit a
            where (a.instance_key, a.message_id) = (o.instance_key, o.message_id)
                and a.action in ('redrive', 'resolve') and a.detail ->> 'parked' = o.state
        )
    """,
    "I14 an uncertain message is never called failed": """
        select d.instance_key, d.message_id, d.parked from trex.delivery d
        where d.uncertain and d.parked in ('dead_letter', 'conflict')
    """,
    "I14 doubt ends by evidence only": """
        select d.instance_key, d.message_id
        from trex.delivery d
        cross join lateral (
            select o.kind, o.state, o.recorded_at from trex.outcome o
            where (o.instance_key, o.message_id) = (d.instance_key, d.message_id)
            order by o.fence desc
            limit 1
        ) o
        where (o.kind = 'unknown' or o.state = 'unknown') and not d.uncertain and not exists (
            select 1 from trex.audit a
            where (a.instance_key, a.message_id) = (d.instance_key, d.message_id)
                and a.action = 'resolve' and a.detail ->> 'resolution' in ('resend', 'absent')
                and a.at >= o.recorded_at
        )
    """,
    "I15 evidence only of fences that were given out": """
        select s.instance_key, s.message_id, s.fence
        from trex.stale_report s
        where not exists (
            select 1 from trex.outcome o
            where (o.instance_key, o.message_id, o.fence)
                = (s.instance_key, s.message_id, s.fence)
        ) and not exists (
            select 1 from trex.receipt r
            where (r.instance_key, r.message_id, r.fence)
                = (s.instance_key, s.message_id, s.fence)
        ) and not exists (
            select 1 from trex.delivery d
            where (d.instance_key, d.message_id, d.fence)
                = (s.instance_key, s.message_id, s.fence)
        )
    """,
    "I16 one message per key": """
        select instance_key, box, idempotency_key from trex.message
        group by 1, 2, 3 having count(*) > 1
    """,
    "I20 one of an ordering key in flight": """
        select d.instance_key, d.box, d.ordering_key, count(*)
        from trex.delivery d
        where d.ordering_key is not null and d.lease_until > trex._now()
        group by 1, 2, 3 having count(*) > 1
    """,
    "I22 the last end is how it stands": """
        select d.instance_key, d.message_id, d.parked, o.state
        from trex.delivery d
        join trex.outcome o using (instance_key, message_id, fence)
        where o.state in ('dead_letter', 'permanent', 'conflict', 'unknown')
            and d.parked is distinct from o.state
            and not exists (
                select 1 from trex.audit a
                where (a.instance_key, a.message_id) = (d.instance_key, d.message_id)
                    and a.action in ('redrive', 'resolve')
            )
    """,
    "I22 a skip is open while parked, and closed when delivered": """
        select m.instance_key, m.message_id, d.parked, s.parked
        from trex.message m
        left join trex.delivery d using (instance_key, message_id)
        left join trex.ledger_skip s
            on (s.instance_key, s.message_id) = (m.instance_key, m.message_id)
            and s.resolved_at is null
        where m.box = 'outbox' and (
            (d.parked is not null and s.parked is distinct from d.parked)
            or (d.message_id is null and s.message_id is not null)
        )
    """,
    "a lane for every ordering key": """
        select m.instance_key, m.message_id from trex.message m
        where m.ordering_key is not null and not exists (
            select 1 from trex.lane l
            where (l.instance_key, l.box, l.ordering_key)
                = (m.instance_key, m.box, m.ordering_key)
        )
    """,
    "no adopted row is quarantined only in part": """
        select m.instance_key, q.quarantine_id
        from trex.quarantine q
        left join trex.message m on m.message_id = q.adopted_message_id
        where q.adopted_message_id is not null and m.message_id is null
    """,
}
"""Rule: the query for what breaks it; its first column is the instance."""

BOOKS: dict[str, str] = {
    "I17 an event is a message, and a message of the inbox an event": """
        select instance_key, message_id, m.box, e.event_id
        from (select * from trex.message where box = 'inbox') m
        full join trex.inbox_event e using (instance_key, message_id)
        where m.message_id is null or e.message_id is null
    """,
    "I17 an entity's version counts its transitions": """
        select e.instance_key, e.machine, e.entity, e.version
        from trex.entity e
        where array(
            select o.version from trex.operation o
            where (o.instance_key, o.machine, o.entity) = (e.instance_key, e.machine, e.entity)
                and o.kind = 'transition'
            order by o.version
        ) <> array(select generate_series(1, e.version))
        or not exists (
            select 1 from trex.operation o
            where (o.instance_key, o.machine, o.entity, o.version, o.to_state, o.operation_id)
                = (e.instance_key, e.machine, e.entity, e.version, e.state, e.operation_id)
        )
    """,
    "I17 an operation has one audit row": """
        select o.instance_key, o.operation_id, count(a.audit_id)
        from trex.operation o
        left join trex.audit a on a.instance_key = o.instance_key
            and a.action in ('transition', 'grant') and a.detail ->> 'operation_id' = o.operation_id
        group by 1, 2 having count(a.audit_id) <> 1
    """,
    "I17 an operation's message was enqueued": """
        select o.instance_key, o.operation_id, o.message_id from trex.operation o
        where o.message_id is not null and not exists (
            select 1 from trex.message m
            where (m.instance_key, m.message_id) = (o.instance_key, o.message_id)
        )
    """,
    "I17 a grant is one right and one licence": """
        select instance_key, o.operation_id, e.entitlement_id, l.licence_id
        from (select * from trex.operation where kind = 'grant_entitlement') o
        full join (select instance_key, entitlement_id operation_id, entitlement_id
            from trex.entitlement) e using (instance_key, operation_id)
        full join (select instance_key, entitlement_id operation_id, licence_id
            from trex.licence) l using (instance_key, operation_id)
        where o.kind is null or e.entitlement_id is null or l.licence_id is null
    """,
    "I17 a right that has ended was corrected once": """
        select e.instance_key, e.entitlement_id, e.state, e.version from trex.entitlement e
        where (e.state <> 'active') <> exists (
            select 1 from trex.adjustment a
            where (a.instance_key, a.operation_id) = (e.instance_key, e.entitlement_id)
                and a.kind = e.state and (a.amount = 0 or a.balance = 0)
        ) or e.version <> 1 + (e.state <> 'active')::integer
    """,
    "I17 corrections are counted, and add up": """
        select a.instance_key, a.operation_id, a.version, a.balance from (
            select
                a.*, o.amount as original,
                row_number() over w as number, sum(a.amount) over w as moved
            from trex.adjustment a
            join trex.operation o using (instance_key, operation_id)
            window w as (partition by a.instance_key, a.operation_id order by a.version)
        ) a
        where a.version <> a.number or a.balance <> coalesce(a.original, 0) + a.moved
    """,
    "I18 counters are the fold over their records": """
        select instance_key, licence_id, period, u.used, c.uses
        from (
            select u.instance_key, u.licence_id, p.period, count(*) as used
            from trex.license_usage u
            cross join lateral (
                values ('all'), (to_char(u.used_at at time zone 'UTC', 'YYYY-MM'))
            ) p (period)
            group by 1, 2, 3
        ) u
        full join trex.usage_counter c using (instance_key, licence_id, period)
        where u.used is distinct from c.uses
    """,
    "I18 a consumed capability is its use": """
        select instance_key, capability_id, c.consumed_by, u.usage_id
        from (select * from trex.capability where consumed_by is not null) c
        full join trex.license_usage u using (instance_key, capability_id)
        where c.consumed_by is distinct from u.usage_id or c.subject is distinct from u.subject
    """,
    "I18 a licence is used within its bounds": """
        select l.instance_key, l.licence_id from trex.licence l
        where l.uses_max < (
            select count(*) from trex.license_usage u
            where (u.instance_key, u.licence_id) = (l.instance_key, l.licence_id)
        ) or l.devices_max < (
            select count(*) from trex.device_binding d
            where (d.instance_key, d.licence_id) = (l.instance_key, l.licence_id)
        )
    """,
}
"""The same for inbox, operations and rights; a test that plants drifts breaks them."""

STRANDED = """
    select d.instance_key, d.box, d.ordering_key, d.message_id
    from trex.delivery d
    join trex.instance i using (instance_key)
    where d.parked is null and d.deferred_until = 'infinity' and not exists (
        select 1 from trex.delivery e
        where (e.instance_key, e.box, e.ordering_key) = (d.instance_key, d.box, d.ordering_key)
            and e.message_id < d.message_id
            and (e.parked is null or (i.on_parked = 'block' and not e.abandoned))
    )
"""
"""Waiting messages that nothing stands before. A claim that finds nothing else frees them, so none
are left after one that returned fewer rows than its limit."""

GUARDS = """
    select c.relname, t.tgname
    from pg_trigger t
    join pg_class c on c.oid = t.tgrelid
    where c.relnamespace = 'trex'::regnamespace and not t.tgisinternal and t.tgenabled <> 'A'
"""
"""I8, I9: triggers that a session could switch off."""


def violations(
    conn: psycopg.Connection[Any],
    instances: Sequence[str] | None = None,
    *,
    books: bool = False,
    stranded: bool = False,
) -> list[str]:
    """What breaks an invariant, one line a row.

    Args:
        conn: as a role that may read all tables.
        instances: only rows of these; all by default.
        books: also ask `BOOKS`.
        stranded: also look for stranded ordering keys.
    """
    rules = INVARIANTS | BOOKS if books else dict(INVARIANTS)
    if stranded:
        rules["I19 no stranded ordering key"] = STRANDED
    found = []
    for rule, query in rules.items():
        where = "true" if instances is None else "q.instance_key = any(%(instances)s)"
        rows = conn.execute(
            f"select * from ({query}) q where {where} limit 20",
            {"instances": list(instances or ())},
        ).fetchall()
        found += [f"{rule}: {row}" for row in rows]
    found += [f"a guard is off: {row}" for row in conn.execute(GUARDS).fetchall()]
    return found
