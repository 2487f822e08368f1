-- criterion: ac-0040
select e.status = 'enqueued'
from trex.enqueue(
    'shop', repeat('t', 63), repeat('k', 255), to_jsonb(repeat('x', 1048574)), repeat('a', 255), 'KRW',
    99999999999999999999999999999999999999, repeat('c', 255), repeat('o', 255), 'at_most_once', '720 hours'
) e;

-- 255 characters, not bytes; zero is zero; trailing zeros beyond the decimals are the same number.
select e.status = 'enqueued' from trex.enqueue('shop', 't', repeat('😀', 255), 'null', 'a', 'USD', -0.00) e;
select e.status = 'enqueued' from trex.enqueue('shop', 't', 'zeros', '1', 'a', 'USD', 1.5000) e;
select e.status = 'enqueued' from trex.enqueue('shop', 't', 'a b', '1', 'a', 'ETH', 0.000000000000000001) e;

select m.cash_delta::text = '0.00' from trex.message m where m.idempotency_key = repeat('😀', 255);
select m.cash_delta::text = '1.50' from trex.message m where m.idempotency_key = 'zeros';
