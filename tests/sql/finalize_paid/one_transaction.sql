-- criterion: ac-0056
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;

-- Nothing but the answer is stored.
select f.status = 'not_paid', f.message_state = 'leased' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'open') f;
select f.status = 'no_order' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_2', 'paid') f;
select (select count(*) from trex.operation) + (select count(*) from trex.entitlement) + (select count(*) from trex.receipt) = 0;

-- expect: TX404
select trex.finalize_paid('shop', 1, test.fence(1), 'acct_2', 'in_1', 'ord_1', 'paid');
select trex.finalize_paid('shop', 2, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid');

-- expect: TX409
select trex.finalize_paid('shop', 1, test.fence(1) + 1, 'acct', 'in_1', 'ord_1', 'paid');

select f.status = 'granted', f.entitlement_state = 'active', f.message_state = 'delivered' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;
select f.status = 'replayed' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;
select e.valid_until = e.granted_at + interval '24 hours', e.seller = 'sel' from trex.entitlement e;
select r.confirmed_by = 'handler', r.reference = o.operation_id from trex.receipt r, trex.operation o;

-- as: app
-- expect: 42501
select trex.finalize_paid('shop', 1, 1, 'acct', 'in_1', 'ord_1', 'paid');
