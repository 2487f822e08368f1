-- criterion: ac-0058
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'refund', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'no_grant' from trex.apply_refund('shop', 1, test.fence(1), 'acct', 'in_1', 're_1', 49.90, 'USD', 'seen') f;
select r.message_id = 2 from trex.receive('shop', 'stripe', 'acct', 'E2', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 2;
select f.status = 'granted', f.entitlement_state = 'refunded' from trex.finalize_paid('shop', 2, test.fence(2), 'acct', 'in_1', 'ord_1', 'paid') f;
select a.amount = -49.9, a.balance = 0, a.evidence = 'message:1' from trex.adjustment a;
select f.status = 'replayed' from trex.apply_refund('shop', 1, test.fence(1), 'acct', 'in_1', 're_1', 49.90, 'USD', 'seen') f;

-- expect: TX410
select trex.apply_refund('shop', 1, test.fence(1), 'acct', 'in_1', 're_2', 49.90, 'USD', 'seen');
select trex.apply_refund('shop', 1, test.fence(1), 'acct', 'in_1', 're_1', 1, 'USD', 'seen');
select trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid');
select trex.apply_provider_cancel('shop', 2, test.fence(2), 'acct', 'in_1', 'cancelled', 'void');
