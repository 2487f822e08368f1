-- criterion: ac-0058
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;
select r.message_id = 2 from trex.receive('shop', 'stripe', 'acct', 'E2', 'voided', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 2;

select f.status = 'ended', f.entitlement_state = 'cancelled' from trex.apply_provider_cancel('shop', 2, test.fence(2), 'acct', 'in_1', 'cancelled', 'void') f;
select a.kind = 'cancelled', a.amount = 0, a.balance = 49.9, a.version = 1 from trex.adjustment a;
select f.status = 'replayed' from trex.apply_provider_cancel('shop', 2, test.fence(2), 'acct', 'in_1', 'cancelled', 'void') f;

-- expect: TX400
select trex.apply_provider_cancel('shop', 2, test.fence(2), 'acct', 'in_1', 'refunded', 'void');
select trex.apply_provider_cancel('shop', 2, test.fence(2), 'acct', 'in_1', 'cancelled', ' ');
