-- The high bits of every fence. A server that was restarted, promoted or restored may have lost
-- acknowledged history and would draw the same sequence values again, so the epoch rises
-- whenever the postmaster's start time isn't the stored one.
create or replace function trex._epoch()
returns bigint
language plpgsql
volatile
security invoker
as $$
declare
    v_epoch bigint;
    v_start timestamptz;
begin
    select e.epoch, e.postmaster_start into v_epoch, v_start from trex.epoch e;
    if v_start is distinct from pg_postmaster_start_time() then
        -- Two first claims: the second waits here, finds the new start time and raises nothing.
        update trex.epoch e
        set epoch = e.epoch + 1, postmaster_start = pg_postmaster_start_time()
        where e.postmaster_start is distinct from pg_postmaster_start_time();
        select e.epoch into v_epoch from trex.epoch e;
    end if;
    return v_epoch << 42;
end
$$;

-- For claims: _durable, _enter, and the epoch as it is, null when it has to rise first. Returns a
-- record (instance trex.instance, epoch bigint).
create or replace function trex._enter_worker(p_instance_key text)
returns trex.entered
language plpgsql
volatile
security invoker
as $$
declare
    v_entered trex.entered;
begin
    if current_setting('transaction_read_only') = 'on'
        or current_setting('synchronous_commit') = 'off'
    then
        perform trex._durable();
    end if;
    select
        i as instance,
        case when e.postmaster_start = pg_postmaster_start_time() then e.epoch << 42 end as epoch
    into v_entered
    from trex.instance i
    join trex.binding b on b.instance_key = i.instance_key
    cross join trex.epoch e
    where i.instance_key = p_instance_key and b.role_name = trex._caller();
    if not found then
        perform trex._enter(p_instance_key);
    end if;
    return v_entered;
end
$$;
