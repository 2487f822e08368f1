-- criterion: ac-0058
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;
select r.message_id = 2 from trex.receive('shop', 'stripe', 'acct', 'E2', 'voided', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 2;

-- expect: TX423
select trex.apply_refund('shop', 2, test.fence(2), 'acct', 'in_1', 're_1', 49.91, 'USD', 'seen');
select trex.apply_refund('shop', 2, test.fence(2), 'acct', 'in_1', 're_1', 1, 'EUR', 'seen');

-- expect: TX400
select trex.apply_refund('shop', 2, test.fence(2), 'acct', 'in_1', 're_1', 0, 'USD', 'seen');

select count(*) = 0 from trex.refund;
select f.status = 'refunded', f.entitlement_state = 'refunded' from trex.apply_refund('shop', 2, test.fence(2), 'acct', 'in_1', 're_1', 49.90, 'USD', 'seen') f;
select a.amount = -49.9, a.balance = 0 from trex.adjustment a;
