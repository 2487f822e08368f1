-- criterion: ac-0035
select trex.register_currency('XTS', 4, 'me', 'why');
select not trex.register_currency('XTS', 4, 'me', 'why');
select not trex.register_currency('USD', 2, 'me', 'why');
select count(*) = 1, max(a.detail::text) = '{"currency": "XTS", "exponent": 4}' from trex.audit a where a.action = 'register_currency';

-- Another number of decimals would change every amount.
-- expect: TX422
select trex.register_currency('XTS', 2, 'me', 'why');
select trex.register_currency('USD', 3, 'me', 'why');

select e.status = 'enqueued' from trex.enqueue('shop', 't', 'k', '{}', 'a', 'XTS', 1.0001) e;

-- expect: TX400
select trex.register_currency(null, 2, 'me', 'why');
select trex.register_currency('', 2, 'me', 'why');
select trex.register_currency('usd', 2, 'me', 'why');
select trex.register_currency('US', 2, 'me', 'why');
select trex.register_currency('1AB', 2, 'me', 'why');
select trex.register_currency('AB-C', 2, 'me', 'why');
select trex.register_currency(e'ABC\n', 2, 'me', 'why');
select trex.register_currency(repeat('A', 13), 2, 'me', 'why');
select trex.register_currency('XXX', null, 'me', 'why');
select trex.register_currency('XXX', -1, 'me', 'why');
select trex.register_currency('XXX', 19, 'me', 'why');
select trex.register_currency('XXX', 2, null, 'why');
select trex.register_currency('XXX', 2, '', 'why');
select trex.register_currency('XXX', 2, ' me', 'why');
select trex.register_currency('XXX', 2, e'm\ne', 'why');
select trex.register_currency('XXX', 2, repeat('m', 256), 'why');
select trex.register_currency('XXX', 2, 'me', null);
select trex.register_currency('XXX', 2, 'me', '');
select trex.register_currency('XXX', 2, 'me', ' ');
select trex.register_currency('XXX', 2, 'me', e'w\nhy');
select trex.register_currency('XXX', 2, 'me', e'w\u0085');
select trex.register_currency('XXX', 2, 'me', repeat('w', 1001));
