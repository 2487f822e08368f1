-- The right to use a licence once, for one subject, until a time. Whoever holds its id can't use it
-- for somebody else.
create or replace function trex.issue_capability(
    p_instance_key text,
    p_capability_id text,
    p_licence_id text,
    p_subject text,
    p_lifetime interval default '5 minutes'
)
returns trex.capability_issued
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
    v_now timestamptz;
    v_right trex.entitlement;
    v_known trex.capability;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_capability_id) is not true then
        perform trex._raise('TX400', 'capability_id: a key');
    end if;
    if trex._is_key(p_licence_id) is not true then
        perform trex._raise('TX400', 'licence_id: a key');
    end if;
    if trex._is_key(p_subject) is not true then
        perform trex._raise('TX400', 'subject: a key');
    end if;
    if trex._is_duration(p_lifetime, '1 second', '720 hours') is not true then
        perform trex._raise('TX400', 'lifetime: from 1 second to 30 days, without months');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    v_now := trex._now();
    select e.* into v_right
    from trex.entitlement e
    where e.instance_key = p_instance_key and e.entitlement_id = (
        select l.entitlement_id
        from trex.licence l
        where l.instance_key = p_instance_key and l.licence_id = p_licence_id
    )
    for share;
    if not found then
        perform trex._raise('TX404', 'no such licence in this instance');
    end if;
    select c.* into v_known
    from trex.capability c
    where c.instance_key = p_instance_key and c.capability_id = p_capability_id;
    if not found then
        if v_right.state <> 'active' or v_right.valid_until <= v_now then
            perform trex._raise('TX423', 'the right is not active');
        end if;
        insert into trex.capability (instance_key, capability_id, licence_id, subject, issued_at, expires_at)
        values (
            p_instance_key, p_capability_id, p_licence_id, p_subject, v_now, v_now + trex._span(p_lifetime)
        )
        on conflict (instance_key, capability_id) do nothing;
        if found then
            return row(
                p_capability_id, 'issued', p_licence_id, v_now + trex._span(p_lifetime)
            )::trex.capability_issued;
        end if;
        select c.* into v_known
        from trex.capability c
        where c.instance_key = p_instance_key and c.capability_id = p_capability_id;
    end if;
    if v_known.licence_id <> p_licence_id or v_known.subject <> p_subject then
        perform trex._raise('TX422', 'this capability id has another content');
    end if;
    return row(p_capability_id, 'duplicate', p_licence_id, v_known.expires_at)::trex.capability_issued;
end
$$;

alter function trex.issue_capability(text, text, text, text, interval) owner to trex_owner;
revoke all on function trex.issue_capability(text, text, text, text, interval) from public;
grant execute on function trex.issue_capability(text, text, text, text, interval) to trex_app;

comment on function trex.issue_capability(text, text, text, text, interval) is
'Issues a capability: one use of a licence by one subject.
Arguments:
  p_capability_id: a key that can''t be guessed; p_licence_id: as granted; p_subject: who may use
      it, a key
  p_lifetime: 1 second to 30 days
Returns: one capability_issued: status issued, or duplicate (the first one, its time not
  extended)
Errors: TX400; TX503; TX403; TX404 no such licence; TX422 the id has another content; TX423 the
  right is not active
Locks: the entitlement row, shared
Idempotent: yes, by capability_id';
