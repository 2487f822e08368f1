-- 10,000 rows for legacy.outbox: every state, 1,250 of each, with what real tables hold: missing
-- accounts and keys, doubled dedup keys, zero, negative, tiny and huge amounts, NaN, text in any
-- case and script, rows locked by workers that are long gone. The same rows every time.
insert into legacy.outbox (
    event_type, dedup_key, correlation_id, account, currency, amount, payload, status, attempts,
    locked_by, locked_until, next_attempt_at, last_error, created_at, updated_at
)
select
    (array['payout', 'Refund', 'FEE', 'top-up', ''])[1 + n % 5],
    case n % 7 when 0 then null when 1 then 'same for many' else 'key-' || n end,
    case when n % 3 > 0 then 'order-' || n / 4 end,
    case n % 11 when 0 then null when 1 then '  Kim 김 ' else 'acct-' || n % 97 end,
    (array['KRW', 'JPY', 'usd', 'BTC', null])[1 + n % 5],
    case n % 13
        when 0 then null
        when 1 then 'NaN'::numeric
        when 2 then 0.00000001
        when 3 then -99999999999999999999.999999999999999999
        else (n - 5000) * 0.01
    end,
    jsonb_build_object('n', n, 'note', E'line\nnext "quoted" \\ ''single'' 😀'),
    s.status,
    (case when s.status = 'pending' then 0 else n % 9 end)::integer,
    case when s.status = 'processing' then 'worker-' || n % 4 end,
    case when s.status = 'processing' then b.at + n * interval '1 minute' end,
    case when s.status = 'retry' then coalesce(
        case when n % 2 = 0 then 'infinity'::timestamptz end, b.at + n * interval '1 hour'
    ) end,
    case when s.status in ('failed', 'dead', 'retry') then 'HTTP 500: gateway said no' end,
    b.at + n * interval '1 second',
    b.at + n * interval '2 seconds'
from generate_series(1, 10000) as g (n)
cross join (values (timestamptz '2024-02-29 23:59:59+00')) as b (at)
cross join lateral (values ((array[
    'pending', 'processing', 'retry', 'sent', 'acknowledged', 'failed', 'dead', 'cancelled'
])[1 + g.n % 8])) as s (status);
