-- The single-row outcomes: the same compare-and-set, but a report that wasn't recorded raises,
-- so that a business transaction around it can't commit. p_on_lost = 'report' returns it as data
-- instead.
create or replace function trex._record_one(
    p_instance_key text,
    p_message_id bigint,
    p_fence bigint,
    p_result text,
    p_on_lost text,
    p_reason text,
    p_delay interval,
    p_absent boolean,
    p_park boolean,
    p_confirmed_by text,
    p_reference text,
    p_balance numeric,
    p_version bigint
)
returns trex.recorded
language plpgsql
volatile
security invoker
as $$
declare
    v_delivered boolean := p_result in ('completed', 'duplicate');
    v_instance trex.instance;
    v_now timestamptz;
    v_hint text;
    v_recorded trex.recorded;
begin
    if trex._is_slug(p_instance_key) is not true then
        perform trex._raise('TX400', 'instance_key');
    end if;
    if p_on_lost is null or p_on_lost not in ('raise', 'report') then
        perform trex._raise('TX400', 'on_lost: raise or report');
    end if;
    if v_delivered then
        v_hint := trex._delivery_hint(
            p_message_id, p_fence, p_confirmed_by, p_reference, p_balance, p_version
        );
    else
        v_hint := trex._report_hint(
            p_message_id, p_fence, p_result, p_reason, p_delay, p_absent, p_park, p_confirmed_by,
            p_reference, p_balance, p_version
        );
    end if;
    if v_hint is not null then
        perform trex._raise('TX400', v_hint);
    end if;
    perform trex._durable();
    v_instance := trex._enter(p_instance_key);
    v_now := trex._now();
    if v_delivered then
        v_recorded := trex._deliver_one(
            p_instance_key, p_message_id, p_fence, p_result, p_confirmed_by, p_reference, p_balance,
            p_version, v_now, false
        );
        if v_recorded.status is not null then
            return v_recorded;
        end if;
    end if;
    select r.* into v_recorded from trex._record(
        v_instance, array[p_message_id], array[p_fence], array[p_result], array[p_reason],
        array[p_delay], array[p_absent], array[p_park], array[p_confirmed_by], array[p_reference],
        array[p_balance], array[p_version], v_now
    ) r;
    if p_on_lost = 'raise' then
        perform trex._refuse(v_recorded.status);
    end if;
    return v_recorded;
end
$$;
