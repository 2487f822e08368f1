-- The same row and the same key, with a fresh allowance. attempts stay exact and the fence keeps
-- rising, so a late worker of an earlier claim is still refused. Whether an unknown, a conflict or
-- an at_most_once message in doubt may be sent again is decided by resolve, not here.
create or replace function trex.redrive(
    p_instance_key text,
    p_message_ids bigint[],
    p_actor text,
    p_reason text
)
returns setof trex.operated
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
    v_instance trex.instance;
    v_now timestamptz;
    v_row record;
    v_ids bigint[] := array[]::bigint[];
    v_statuses text[] := array[]::text[];
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    perform trex._check_ids(p_message_ids);
    perform trex._check_act(p_actor, p_reason);
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    perform trex._lock_keys(p_instance_key, p_message_ids);
    v_now := trex._now();

    for v_row in
        select
            i.message_id, d.parked,
            case
                when m.effect_policy is null then 'not_found'
                when d.message_id is null then 'delivered'
                when d.parked is null then 'not_parked'
                when d.parked in ('unknown', 'conflict') then 'needs_resolve'
                when d.uncertain and m.effect_policy = 'at_most_once' then 'needs_resolve'
                else 'redriven'
            end as status
        from unnest(p_message_ids) with ordinality i (message_id, ord)
        left join lateral (
            select w.effect_policy
            from trex.message w
            where w.instance_key = p_instance_key and w.message_id = i.message_id
            limit 1
        ) m on true
        left join lateral (
            select w.*
            from trex.delivery w
            where w.instance_key = p_instance_key and w.message_id = i.message_id
            limit 1
        ) d on true
        order by i.ord
    loop
        v_ids := v_ids || v_row.message_id;
        v_statuses := v_statuses || v_row.status;
        if v_row.status = 'redriven' then
            update trex.delivery d
            set parked = null, abandoned = false, deferred_until = v_now, tries = 0
            where d.instance_key = p_instance_key and d.message_id = v_row.message_id;
            perform trex._audit(
                p_instance_key, 'redrive', v_row.message_id, p_actor, p_reason,
                jsonb_build_object('parked', v_row.parked), v_now
            );
        end if;
    end loop;
    if 'redriven' = any(v_statuses) then
        perform trex._wake(v_instance, v_now);
    end if;
    return query select u.message_id, u.status from unnest(v_ids, v_statuses) u (message_id, status);
end
$$;

alter function trex.redrive(text, bigint[], text, text) owner to trex_owner;
revoke all on function trex.redrive(text, bigint[], text, text) from public;
grant execute on function trex.redrive(text, bigint[], text, text) to trex_operator;

comment on function trex.redrive(text, bigint[], text, text) is
'Makes parked messages (dead_letter, permanent) live again: due now, with a fresh allowance.
An abandoned one too: what went on without it isn''t called back.
Arguments:
  p_message_ids: at most 1000, each once; p_actor: a key; p_reason: 1 to 1000 characters
Returns: one row per message in the order given: status redriven, needs_resolve (unknown, conflict,
  at_most_once and uncertain), not_parked, delivered, not_found
Errors: TX400; TX503; TX403
Locks: the lanes of the messages'' ordering keys, then the live rows of those keys and the messages,
  in id order
Idempotent: yes; a second call answers not_parked';
