-- criterion: ac-0059
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;
select trex.bind_device('shop', (select l.licence_id::text from trex.licence l), 't') = 'bound';
select c.status = 'issued' from trex.issue_capability('shop', 'cap', (select l.licence_id::text from trex.licence l), 'buy') c;

-- expect: TX404
select trex.execute_licence('shop', 'cap', 'thief', 'use', 't');
select trex.execute_licence('shop', 'none', 'buy', 'use', 't');

-- expect: TX423
select trex.execute_licence('shop', 'cap', 'buy', 'use', 'other');

-- as: app
select u.status = 'executed', u.total = 1, u.month = 1 from trex.execute_licence('shop', 'cap', 'buy', 'use', 't') u;
select u.status = 'replayed', u.total = 1 from trex.execute_licence('shop', 'cap', 'buy', 'use', 't') u;

-- as: app
-- expect: TX410
select trex.execute_licence('shop', 'cap', 'buy', 'use2', 't');

-- as: app
select u.status = 'consumed' from trex.execute_licence('shop', 'cap', 'buy', 'use2', 't', 'report') u;

select s.kind = 'consumed', s.usage_id = 'use2' from trex.security_event s;
select count(*) = 2, bool_and(c.uses = 1), bool_or(c.period = to_char(trex._now() at time zone 'UTC', 'YYYY-MM')) from trex.usage_counter c;
