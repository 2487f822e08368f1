-- Counts for dashboards and alerts, asked often and never by reading a whole table: each of the
-- four ranges of the claim index (ready, due, deferred, parked or waiting) is read up to p_cap
-- rows, and what lies behind is not counted. No other index has the order that is asked for;
-- with `= 'infinity'` it would be message_id's alone, as the primary key has it.
create or replace function trex.stats(
    p_instance_key text,
    p_box text default 'outbox',
    p_cap integer default 100000
)
returns trex.instance_stats
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_instance trex.instance;
    v_now timestamptz;
    v_ready record;
    v_due record;
    v_deferred record;
    v_rest record;
    v_stats trex.instance_stats;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_box is null or p_box not in ('outbox', 'inbox') then
        perform trex._raise('TX400', 'box: outbox or inbox');
    end if;
    if p_cap is null or p_cap not between 1 and 10000000 then
        perform trex._raise('TX400', 'cap: from 1 to 10000000');
    end if;
    v_instance := trex._enter(p_instance_key);
    v_now := trex._now();

    select
        count(*) as rows,
        count(*) filter (where q.lease_until is null) as free,
        count(*) filter (where q.lease_until > v_now) as leased,
        count(*) filter (where q.lease_until <= v_now) as ended,
        min(q.message_id) filter (where q.lease_until is null) as first_id
    into v_ready
    from (
        select d.message_id, d.lease_until
        from trex.delivery d
        where d.instance_key = p_instance_key and d.box = p_box and d.message_id > 0
            and d.deferred_until is null
        order by d.deferred_until, d.message_id
        limit p_cap
    ) q;
    select
        count(*) as rows,
        count(*) filter (where q.lease_until is null) as free,
        count(*) filter (where q.lease_until > v_now) as leased,
        count(*) filter (where q.lease_until <= v_now) as ended,
        min(q.deferred_until) filter (where q.lease_until is null) as first_at
    into v_due
    from (
        select d.deferred_until, d.lease_until
        from trex.delivery d
        where d.instance_key = p_instance_key and d.box = p_box and d.message_id > 0
            and d.deferred_until <= v_now
        order by d.deferred_until, d.message_id
        limit p_cap
    ) q;
    select count(*) as rows into v_deferred
    from (
        select 1
        from trex.delivery d
        where d.instance_key = p_instance_key and d.box = p_box and d.message_id > 0
            and d.deferred_until > v_now
            and d.deferred_until < 'infinity'
        order by d.deferred_until, d.message_id
        limit p_cap
    ) q;
    select
        count(*) as rows,
        count(*) filter (where q.parked is null) as waiting,
        count(*) filter (where q.parked = 'dead_letter') as dead_letter,
        count(*) filter (where q.parked = 'permanent' and not q.abandoned) as permanent,
        count(*) filter (where q.parked = 'conflict') as conflict,
        count(*) filter (where q.parked = 'unknown') as unknown,
        count(*) filter (where q.abandoned) as abandoned,
        count(distinct q.ordering_key) filter (
            where q.parked is not null and not q.abandoned and q.ordering_key is not null
                and v_instance.on_parked = 'block'
                and not exists (
                    select 1
                    from trex.delivery a
                    where a.instance_key || '' = p_instance_key and a.box = p_box and a.ordering_key = q.ordering_key
                        and a.message_id < q.message_id and not a.abandoned
                )
        ) as blocked,
        min(coalesce(s.opened_at, o.recorded_at)) filter (where q.parked is not null and not q.abandoned) as first_parked_at
    into v_rest
    from (
        select d.message_id, d.ordering_key, d.fence, d.parked, d.abandoned
        from trex.delivery d
        where d.instance_key = p_instance_key and d.box = p_box and d.message_id > 0
            and d.deferred_until >= 'infinity'
        order by d.deferred_until, d.message_id
        limit p_cap
    ) q
    left join lateral (
        select w.opened_at
        from trex.ledger_skip w
        where w.instance_key = p_instance_key and w.message_id = q.message_id
            and w.resolved_at is null and q.parked is not null
        limit 1
    ) s on true
    left join lateral (
        select w.recorded_at
        from trex.outcome w
        where w.instance_key = p_instance_key and w.message_id = q.message_id
            and w.fence = q.fence and s.opened_at is null and q.parked is not null
        limit 1
    ) o on true;

    v_stats.box := p_box;
    v_stats.ready := v_ready.free;
    v_stats.due := v_due.free;
    v_stats.deferred := v_deferred.rows;
    v_stats.waiting := v_rest.waiting;
    v_stats.leased := v_ready.leased + v_due.leased;
    v_stats.lease_ended := v_ready.ended + v_due.ended;
    v_stats.dead_letter := v_rest.dead_letter;
    v_stats.permanent := v_rest.permanent;
    v_stats.conflict := v_rest.conflict;
    v_stats.unknown := v_rest.unknown;
    v_stats.abandoned := v_rest.abandoned;
    v_stats.blocked_keys := v_rest.blocked;
    v_stats.oldest_due_at := least(
        v_due.first_at,
        (
            select m.enqueued_at from trex.message m
            where m.instance_key = p_instance_key and m.message_id = v_ready.first_id
        )
    );
    v_stats.oldest_parked_at := v_rest.first_parked_at;
    v_stats.capped := p_cap in (v_ready.rows, v_due.rows, v_deferred.rows, v_rest.rows);
    return v_stats;
end
$$;

alter function trex.stats(text, text, integer) owner to trex_owner;
revoke all on function trex.stats(text, text, integer) from public;
grant execute on function trex.stats(
    text, text, integer
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.stats(text, text, integer) is
'Undelivered messages of one box by state. Cheap whatever the backlog: at most p_cap rows are read
  of each range (ready, due,
deferred, parked or waiting).
Arguments:
  p_box: outbox or inbox; p_cap: 1 to 10000000
Returns: one instance_stats; ready (never deferred), due (deferred until now or earlier), deferred,
  waiting (behind an earlier
  message of its ordering key), leased, lease_ended, the four ways of being parked, and abandoned:
  parked as permanent, but counted here alone, since it waits for nobody
  blocked_keys: ordering keys whose first message that isn''t abandoned is parked while on_parked is
    block
  oldest_due_at: the earliest due time, or enqueue time of the first ready message;
    oldest_parked_at: since when the oldest that isn''t abandoned is parked
  capped: a range was read up to p_cap, there may be more
Errors: TX400; TX403
Locks: none
Idempotent: yes';
