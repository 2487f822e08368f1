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
    conn: psycopg.Connection[Any], instances: Sequence[str] | None = None, *, stranded: bool = False
) -> list[str]:
    """What breaks an invariant, one line a row.

    Args:
        conn: as a role that may read all tables.
        instances: only rows of these; all by default.
        stranded: also look for stranded ordering keys.
    """
    rules = dict(INVARIANTS)
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
