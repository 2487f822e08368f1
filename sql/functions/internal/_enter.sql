-- Who calls, and may they act for this instance? session_user, or the role of SET ROLE: neither
-- can be forged by a setting. Compared by exact name with binding: pg_has_role() is true for
-- superusers and for memberships.
create or replace function trex._caller()
returns name
language sql
stable
parallel safe
security invoker
as $$
select case current_setting('role') when 'none' then session_user else current_setting('role')::name end
$$;

create or replace function trex._enter(p_instance_key text)
returns trex.instance
language plpgsql
stable
security invoker
as $$
declare
    v_instance trex.instance;
begin
    select i.* into v_instance
    from trex.instance i
    join trex.binding b on b.instance_key = i.instance_key
    where i.instance_key = p_instance_key and b.role_name = trex._caller();
    if not found then
        perform trex._raise('TX403', 'instance unknown or not bound to the calling role: register and bind it');
    end if;
    return v_instance;
end
$$;

-- Writers only: never on a standby (there every transaction is read-only), and never with a commit
-- that PostgreSQL may forget after acknowledging it.
create or replace function trex._durable()
returns void
language plpgsql
volatile
security invoker
as $$
begin
    if current_setting('transaction_read_only') = 'on' then
        perform trex._raise('TX503', 'connect to the primary');
    end if;
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;
