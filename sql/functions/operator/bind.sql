-- Only a role named here may act for the instance. Its name is compared exactly; memberships
-- don't count.
create or replace function trex.bind(
    p_instance_key text,
    p_role_name text,
    p_actor text,
    p_reason text
)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if trex._is_key(p_role_name) is not true or octet_length(p_role_name) > 63 then
        perform trex._raise('TX400', 'role_name: 1 to 63 bytes');
    end if;
    perform trex._check_act(p_actor, p_reason);
    perform trex._durable();
    if not exists (select 1 from trex.instance i where i.instance_key = p_instance_key) then
        perform trex._raise('TX403', 'register the instance first');
    end if;
    v_now := trex._now();
    insert into trex.binding (instance_key, role_name, bound_at)
    values (p_instance_key, p_role_name, v_now)
    on conflict (instance_key, role_name) do nothing;
    if found then
        perform trex._audit(
            p_instance_key, 'bind', null, p_actor, p_reason, jsonb_build_object('role_name', p_role_name), v_now
        );
        return true;
    end if;
    return false;
end
$$;

alter function trex.bind(text, text, text, text) owner to trex_owner;
revoke all on function trex.bind(text, text, text, text) from public;
grant execute on function trex.bind(text, text, text, text) to trex_operator;

comment on function trex.bind(text, text, text, text) is
'Lets a database role act for an instance; it needs trex_app, trex_worker, ... besides.
Arguments:
  p_role_name: the exact name, 1 to 63 bytes; p_actor: a key; p_reason: 1 to 1000 characters
Returns: true when it was bound now, false when it was before
Errors: TX400; TX503; TX403 no such instance (the caller needs no binding)
Locks: the binding
Idempotent: yes';
