-- Payloads of delivered outbox messages only, a bounded page at a time: key, digest and receipt
-- stay, so the promises about duplicates stay as well. The guard of message refuses anything
-- else, this function included.
create or replace function trex.purge(
    p_instance_key text,
    p_older_than interval,
    p_actor text,
    p_reason text,
    p_limit integer default 1000,
    p_after bigint default 0,
    p_dry_run boolean default false
)
returns trex.purged
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
    v_ids bigint[];
    v_id bigint;
    v_purged trex.purged;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_duration(p_older_than, '0', '876600 hours') is not true then
        perform trex._raise('TX400', 'older_than: from 0 to 36525 days, without months');
    end if;
    perform trex._check_act(p_actor, p_reason);
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    if p_after is null or p_after < 0 then
        perform trex._raise('TX400', 'after: from 0');
    end if;
    if p_dry_run is null then
        perform trex._raise('TX400', 'dry_run: true or false');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    v_now := trex._now();

    select
        count(*), coalesce(max(q.message_id), p_after),
        coalesce(
            array_agg(m.message_id order by m.message_id)
                filter (where m.box = 'outbox' and m.payload is not null and q.delivered_at <= v_now - trex._span(p_older_than)),
            '{}'
        )
    into v_purged.examined, v_purged.last_message_id, v_ids
    from (
        select r.message_id, r.delivered_at
        from trex.receipt r
        where r.instance_key = p_instance_key and r.message_id > p_after
        order by r.message_id
        limit p_limit
    ) q
    cross join lateral (
        select w.message_id, w.box, w.payload
        from trex.message w
        where w.instance_key = p_instance_key and w.message_id = q.message_id
        limit 1
    ) m;
    v_purged.purged := cardinality(v_ids);
    if p_dry_run then
        return v_purged;
    end if;
    -- Another purge may have been here meanwhile: only what this one removes is counted.
    v_purged.purged := 0;
    foreach v_id in array v_ids
    loop
        update trex.message m set payload = null
        where m.instance_key = p_instance_key and m.message_id = v_id and m.payload is not null;
        if found then
            v_purged.purged := v_purged.purged + 1;
            perform trex._audit(p_instance_key, 'purge', v_id, p_actor, p_reason, '{}', v_now);
        end if;
    end loop;
    return v_purged;
end
$$;

alter function trex.purge(text, interval, text, text, integer, bigint, boolean) owner to trex_owner;
revoke all on function trex.purge(text, interval, text, text, integer, bigint, boolean) from public;
grant execute on function trex.purge(
    text, interval, text, text, integer, bigint, boolean
) to trex_operator;

comment on function trex.purge(text, interval, text, text, integer, bigint, boolean) is
'Removes the payloads of outbox messages delivered at least p_older_than ago, and nothing else.
Arguments:
  p_older_than: 0 to 36525 days; p_actor: a key; p_reason: 1 to 1000 characters
  p_limit: 1 to 10000 delivered messages are examined; p_after: the last_message_id of the call
    before, 0 = from the start
  p_dry_run: only count
Returns: one purged: examined, purged, last_message_id (p_after when there was none); the end is
  reached when examined is
  less than p_limit
Errors: TX400; TX503; TX403
Locks: the purged messages in id order
Idempotent: yes';
