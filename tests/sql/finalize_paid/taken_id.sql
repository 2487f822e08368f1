-- criterion: ac-0056
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;

-- What was granted under this id was of another amount.
insert into trex.operation (
    instance_key, operation_id, kind, actor, role, amount, arguments, digest, reason, done_at
)
select
    'shop', trex._grant_id('acct', 'in_1'), 'grant_entitlement', 'stripe', 'provider', 1,
    jsonb_build_object('account', 'acct', 'invoice_id', 'in_1', 'order_id', 'ord_1', 'currency', 'USD'),
    trex._operation_digest(
        'grant_entitlement', null, null, null, 1,
        jsonb_build_object('account', 'acct', 'invoice_id', 'in_1', 'order_id', 'ord_1', 'currency', 'USD')
    ), 'paid', now()
returning true;

-- expect: TX422
select trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid');

select (select count(*) from trex.entitlement) + (select count(*) from trex.receipt) + (select count(*) from trex.payment) = 0;
