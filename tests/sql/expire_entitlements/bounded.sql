-- criterion: ac-0058
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;

-- as: worker
select trex.expire_entitlements('shop', 'cron', 'time') = 0;

-- clock: 24 hours
-- as: operator
select trex.expire_entitlements('shop', 'cron', 'time', 1) = 1;
select trex.expire_entitlements('shop', 'cron', 'time', 1) = 0;

select e.state = 'expired', e.version = 2 from trex.entitlement e;

-- expect: TX400
select trex.expire_entitlements('shop', 'cron', 'time', 0);
select trex.expire_entitlements('shop', 'cron', '');
