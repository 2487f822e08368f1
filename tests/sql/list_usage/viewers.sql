-- criterion: ac-0061
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;
select trex.bind_device('shop', (select l.licence_id::text from trex.licence l), 't') = 'bound';
select c.status = 'issued' from trex.issue_capability('shop', 'cap', (select l.licence_id::text from trex.licence l), 'buy') c;
select u.status = 'executed' from trex.execute_licence('shop', 'cap', 'buy', 'use', 't') u;
select u.status = 'consumed' from trex.execute_licence('shop', 'cap', 'buy', 'use2', 't', 'report') u;

-- as: app
select count(*) = 1, bool_and(x.seller = 'sel') from trex.list_usage('shop', 'admin', 'acct', null, 'acct') x;
select count(*) = 1 from trex.list_usage('shop', 'seller', 'acct', 'sel', 'acct') x;
select count(*) = 0 from trex.list_usage('shop', 'seller', 'acct', 'sel2', 'acct') x;

-- as: app
-- expect: TX401
select trex.list_usage('shop', null, null, null, 'acct');
select trex.list_usage('shop', 'anonymous', 'acct', null, 'acct');

-- as: app
-- expect: TX403
select trex.list_usage('shop', 'buyer', 'acct', null, 'acct');
select trex.list_usage('other', 'admin', 'acct', null, 'acct');

-- as: app
-- expect: TX404
select trex.list_usage('shop', 'admin', 'acct2', null, 'acct');
select trex.list_usage('shop', 'seller', 'acct', 'sel', 'acct', 'sel2');

-- as: reader
-- expect: 42501
select trex.list_usage('shop', 'admin', 'acct', null, 'acct');
