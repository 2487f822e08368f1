-- The effect states of messages, derived from delivery, outcome and receipt, with what they mean
-- for people.
create or replace function trex.effect_states(
    p_instance_key text,
    p_effect text default null,
    p_limit integer default 100,
    p_after bigint default 0,
    p_box text default 'outbox'
)
returns setof trex.effect_state
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
as $$
declare
    v_ids bigint[];
begin
    perform trex._check_read(p_instance_key, p_limit, p_after, p_box);
    if p_effect is not null and not trex._effect_machine() -> 'states' ? p_effect then
        perform trex._raise('TX400', 'effect: a state of the shipped machine effect');
    end if;
    perform trex._enter(p_instance_key);
    -- What isn't delivered is little; what is delivered can be everything.
    if p_effect is null then
        v_ids := array(
            select m.message_id
            from trex.message m
            where m.instance_key = p_instance_key and m.box = p_box and m.message_id > p_after
            order by m.message_id
            limit p_limit
        );
    elsif p_effect = 'succeeded' then
        v_ids := array(
            select r.message_id
            from trex.receipt r
            cross join lateral (
                select m.box
                from trex.message m
                where m.instance_key = p_instance_key and m.message_id = r.message_id
                limit 1
            ) m
            where r.instance_key = p_instance_key and r.message_id > p_after and m.box = p_box
            order by r.message_id
            limit p_limit
        );
    else
        v_ids := array(
            select d.message_id
            from trex.delivery d
            cross join lateral (
                select v.effect
                from trex.effect v
                where v.instance_key = p_instance_key and v.message_id = d.message_id
                limit 1
            ) f
            where d.instance_key = p_instance_key and d.box = p_box and d.message_id > p_after
                and f.effect = p_effect
            order by d.message_id
            limit p_limit
        );
    end if;
    return query
    select
        e.message_id, e.box, e.topic::text, e.effect, e.reason::text, e.attempts, e.uncertain, e.since,
        coalesce(e.lease_until, e.since + s.longest_stay), s.owner, s.next_action, s.alert
    from unnest(v_ids) i (message_id)
    cross join lateral (
        select v.*
        from trex.effect v
        where v.instance_key = p_instance_key and v.message_id = i.message_id
        limit 1
    ) e
    cross join lateral trex._effect_meaning(p_instance_key, e.effect) s
    order by e.message_id;
end
$$;

alter function trex.effect_states(text, text, integer, bigint, text) owner to trex_owner;
revoke all on function trex.effect_states(text, text, integer, bigint, text) from public;
grant execute on function trex.effect_states(
    text, text, integer, bigint, text
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.effect_states(text, text, integer, bigint, text) is
'The state of each message''s effect, a page in message_id order: intent_recorded, in_progress,
  waiting, failed, rejected, unknown,
  succeeded.
Arguments:
  p_effect: only these, null = all; p_limit: 1 to 10000; p_after: the last message_id of the page
      before; p_box: outbox or inbox
Returns: one effect_state per message, with owner, deadline, next action and alert of the machine
  effect
Errors: TX400; TX403
Locks: none
Idempotent: yes';
