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
