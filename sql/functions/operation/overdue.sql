-- What stays longer than its state allows: entities of all machines, and effects of messages that
-- aren't delivered.
create or replace function trex.overdue(
    p_instance_key text,
    p_limit integer default 100
)
returns setof trex.overdue
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_limit is null or p_limit not between 1 and 10000 then
        perform trex._raise('TX400', 'limit: from 1 to 10000');
    end if;
    perform trex._enter(p_instance_key);
    return query select o.* from trex._overdue(p_instance_key, p_limit, trex._now()) o;
end
$$;

alter function trex.overdue(text, integer) owner to trex_owner;
revoke all on function trex.overdue(text, integer) from public;
grant execute on function trex.overdue(
    text, integer
) to trex_app, trex_worker, trex_operator, trex_reader;

comment on function trex.overdue(text, integer) is
'Entities and undelivered messages that are past the longest stay of their state, the oldest
  deadline first.
Arguments:
  p_limit: 1 to 10000
Returns: one overdue each: source entity or effect, who owns it, what is to be done and which
  alert is due
Errors: TX400; TX403
Locks: none
Idempotent: yes';
