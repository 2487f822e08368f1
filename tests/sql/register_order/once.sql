-- criterion: ac-0056
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';

-- as: app
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.9, 'USD', 2, 1, '24 hours') = 'duplicate';

-- as: app
-- expect: TX422
select trex.register_order('shop', 'acct', 'in_1', 'ord_2', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day');

-- as: app
-- expect: TX400
select trex.register_order('shop', 'acct', 'in_2', 'ord_2', 'sel', 'buy', 'plan', 0.001, 'USD');
select trex.register_order('shop', 'acct', 'in_2', 'ord_2', 'sel', 'buy', 'plan', 'NaN', 'USD');
select trex.register_order('shop', 'acct', 'in_2', 'ord_2', 'sel', 'buy', 'plan', 1, 'XXX');
select trex.register_order('shop', 'acct', 'in_2', 'ord_2', 'sel', 'buy', 'plan', 1, 'USD', p_valid_for => '1 month');

-- as: app
-- expect: TX403
select trex.register_order('other', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 1, 'USD');
