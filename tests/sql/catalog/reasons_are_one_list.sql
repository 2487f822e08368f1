-- criterion: ac-0033
-- The domain refuses what the function refuses, and the other way round.
create function test.in_domain(p_value text)
returns boolean
language plpgsql
as $$
begin
    perform p_value::trex.reason;
    return true;
exception when check_violation then
    return false;
end
$$;

with
domain_list as (
    select m[1] as code
    from pg_constraint c, regexp_matches(pg_get_constraintdef(c.oid), $r$'([^']+)'$r$, 'g') m
    where c.contypid = 'trex.reason'::regtype
),
function_list as (
    select m[1] as code
    from pg_proc p, regexp_matches(p.prosrc, $r$'([^']+)'$r$, 'g') m
    where p.oid = 'trex._is_reason(text)'::regprocedure
)
select
    count(*) > 30, bool_and(d.code is not null), bool_and(f.code is not null), bool_and(test.in_domain(d.code)),
    bool_and(trex._is_reason(f.code))
from domain_list d
full join function_list f on f.code = d.code;

select not test.in_domain('because'), not trex._is_reason('because'), trex._is_reason(null) is null;
