-- criterion: ac-0030
do $$
declare
    v_hint text;
begin
    perform trex.enqueue_many('shop', array['t', 't', 'T'], array['a', 'b', 'c'], array['1', '2', '3']::jsonb []);
    assert false;
exception when sqlstate 'TX400' then
    get stacked diagnostics v_hint = pg_exception_hint;
    assert v_hint like 'movement 3: %', v_hint;
end
$$;

select trex.enqueue('shop', 't', 'b', '1');

do $$
declare
    v_hint text;
begin
    perform trex.enqueue_many('shop', array['t', 't'], array['a', 'b'], array['1', '2']::jsonb []);
    assert false;
exception when sqlstate 'TX422' then
    get stacked diagnostics v_hint = pg_exception_hint;
    assert v_hint like 'movement 2: %', v_hint;
end
$$;

select count(*) = 1 from trex.message;

-- On request the conflict is data, and the rest stays.
select array_agg(m.status) = array['enqueued', 'conflict', 'conflict']
from trex.enqueue_many(
    'shop', array['t', 't', 't'], array['a', 'b', 'a'], array['1', '2', '3']::jsonb [], p_on_conflict => 'report'
) m;
