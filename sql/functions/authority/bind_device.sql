-- A device is bound by the thumbprint of its key. The licence row is locked, so that devices_max
-- holds.
create or replace function trex.bind_device(
    p_instance_key text,
    p_licence_id text,
    p_thumbprint text
)
returns text
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
    v_licence trex.licence;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_licence_id) is not true then
        perform trex._raise('TX400', 'licence_id: a key');
    end if;
    if trex._is_key(p_thumbprint) is not true then
        perform trex._raise('TX400', 'thumbprint: a key');
    end if;
    perform trex._durable();
    perform trex._enter(p_instance_key);
    select l.* into v_licence
    from trex.licence l
    where l.instance_key = p_instance_key and l.licence_id = p_licence_id
    for no key update;
    if not found then
        perform trex._raise('TX404', 'no such licence in this instance');
    end if;
    if exists (
        select 1 from trex.device_binding b
        where b.instance_key = p_instance_key and b.licence_id = p_licence_id and b.thumbprint = p_thumbprint
    ) then
        return 'duplicate';
    end if;
    if (
        select count(*) from trex.device_binding b
        where b.instance_key = p_instance_key and b.licence_id = p_licence_id
    ) >= v_licence.devices_max then
        perform trex._raise('TX423', 'the licence has all its devices');
    end if;
    insert into trex.device_binding (instance_key, licence_id, thumbprint, account, seller, bound_at)
    values (p_instance_key, p_licence_id, p_thumbprint, v_licence.account, v_licence.seller, trex._now());
    return 'bound';
end
$$;

alter function trex.bind_device(text, text, text) owner to trex_owner;
revoke all on function trex.bind_device(text, text, text) from public;
grant execute on function trex.bind_device(text, text, text) to trex_app;

comment on function trex.bind_device(text, text, text) is
'Binds one more device to a licence.
Arguments:
  p_licence_id: as granted; p_thumbprint: of the device''s key, a key itself; the device''s key
      never comes here
Returns: bound, or duplicate
Errors: TX400; TX503; TX403; TX404 no such licence; TX423 the licence has all its devices
Locks: the licence row
Idempotent: yes';
