-- What is past the longest stay of its state: entities, and effects of undelivered messages. An
-- abandoned one waits for nobody.
create or replace function trex._overdue(p_instance_key text, p_limit integer, p_now timestamptz)
returns setof trex.overdue
language sql
stable
security invoker
as $$
select o.source, o.machine, o.entity, o.message_id, o.state, o.since, o.deadline, o.owner, o.next_action, o.alert
from (
    select
        'entity' as source, e.machine::text as machine, e.entity::text as entity, null::bigint as message_id,
        e.state::text as state, e.since, e.since + s.longest_stay as deadline, s.owner::text as owner,
        s.next_action::text as next_action, s.alert::text as alert
    from (
        select m.machine, max(m.revision) as revision
        from trex.machine m
        where m.instance_key = p_instance_key
        group by m.machine
    ) r
    join trex.machine_state s
        on s.instance_key = p_instance_key and s.machine = r.machine and s.revision = r.revision
        and s.longest_stay is not null
    cross join lateral (
        select t.*
        from trex.entity t
        where t.instance_key = p_instance_key and t.machine = s.machine and t.state = s.state
            and t.since < p_now - s.longest_stay
        order by t.since, t.entity
        limit p_limit
    ) e
    union all
    select
        'effect', 'effect', null, f.message_id, f.effect, f.since, coalesce(f.lease_until, f.since + s.longest_stay),
        s.owner, s.next_action, s.alert
    from trex.delivery d
    cross join lateral (
        select v.*
        from trex.effect v
        where v.instance_key = p_instance_key and v.message_id = d.message_id
        limit 1
    ) f
    cross join lateral trex._effect_meaning(p_instance_key, f.effect) s
    where d.instance_key = p_instance_key and not d.abandoned
        and coalesce(f.lease_until, f.since + s.longest_stay) < p_now
) o
order by o.deadline, o.machine collate "C", o.entity collate "C", o.message_id
limit p_limit
$$;
