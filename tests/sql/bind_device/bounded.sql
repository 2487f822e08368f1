-- criterion: ac-0059
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;

select trex.bind_device('shop', (select l.licence_id::text from trex.licence l), 't') = 'bound';
select trex.bind_device('shop', (select l.licence_id::text from trex.licence l), 't') = 'duplicate';

-- expect: TX423
select trex.bind_device('shop', (select l.licence_id::text from trex.licence l), 'u');

-- expect: TX404
select trex.bind_device('shop', 'none', 't');
