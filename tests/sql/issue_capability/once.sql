-- criterion: ac-0059
select trex.register_order('shop', 'acct', 'in_1', 'ord_1', 'sel', 'buy', 'plan', 49.90, 'USD', 2, 1, '1 day') = 'registered';
select r.message_id = 1 from trex.receive('shop', 'stripe', 'acct', 'E1', 'paid', 'in_1', 'raw', '{}') r;
select test.claim(p_box => 'inbox') = 1;
select f.status = 'granted' from trex.finalize_paid('shop', 1, test.fence(1), 'acct', 'in_1', 'ord_1', 'paid') f;

select c.status = 'issued', c.expires_at = trex._now() + interval '5 minutes' from trex.issue_capability('shop', 'cap', (select l.licence_id::text from trex.licence l), 'buy') c;
select c.status = 'duplicate' from trex.issue_capability('shop', 'cap', (select l.licence_id::text from trex.licence l), 'buy', '1 hour') c;

-- expect: TX422
select trex.issue_capability('shop', 'cap', (select l.licence_id::text from trex.licence l), 'thief');

-- expect: TX404
select trex.issue_capability('shop', 'cap2', 'none', 'buy');

-- clock: 24 hours
-- expect: TX423
select trex.issue_capability('shop', 'cap2', (select l.licence_id::text from trex.licence l), 'buy');

-- as: worker
-- expect: 42501
select trex.issue_capability('shop', 'cap2', 'x', 'buy');
