-- What becomes of a message whose claim ended without a delivery: the one rule, used by every
-- outcome and by claim's sweep. Uncertain is sticky: only certain absence (p_absent) or a
-- conflict answer clears it. An uncertain at_most_once message, and any uncertain one whose
-- allowance is used up, can only be parked as unknown; nobody may call it failed.
create or replace function trex._settle(
    p_kind text,
    p_policy text,
    p_uncertain boolean,
    p_sent boolean,
    p_tries integer,
    p_max_attempts integer,
    p_absent boolean,
    p_park boolean,
    out parked text,
    out uncertain boolean,
    out tries integer
)
language plpgsql
immutable
parallel safe
security invoker
as $$
begin
    uncertain := case p_kind
        when 'unknown' then true
        when 'conflict' then false
        when 'lease_expired' then p_uncertain or p_policy <> 'at_most_once' or p_sent
        else p_uncertain and not p_absent
    end;
    -- An at_most_once sink was called: it must not be called again without an operator, unless the answer was final.
    if p_policy = 'at_most_once' and p_sent and p_kind in ('retry', 'released', 'postponed') and not p_absent then
        uncertain := true;
    end if;
    tries := p_tries - case when p_kind in ('released', 'postponed') then 1 else 0 end;
    parked := case
        when p_kind = 'conflict' then 'conflict'
        when uncertain and p_policy = 'at_most_once' then 'unknown'
        when p_kind = 'permanent' then 'permanent'
        when p_kind = 'dead_letter' and uncertain then 'unknown'
        when p_kind = 'dead_letter' then 'dead_letter'
        when p_policy = 'at_most_once' and p_sent and p_kind in ('retry', 'released', 'postponed') then 'dead_letter'
        when p_kind = 'unknown' and p_park then 'unknown'
        when p_kind in ('retry', 'unknown', 'lease_expired') and tries >= p_max_attempts
            then case when uncertain then 'unknown' else 'dead_letter' end
    end;
end
$$;
