-- criterion: ac-0056
-- as: worker
select trex.record_payment('shop', 'acct', 'in_1', 'open');
select not trex.record_payment('shop', 'acct', 'in_1', 'open');
select trex.record_payment('shop', 'acct', 'in_1', 'paid');

select array_agg(p.status::text order by p.asked) = array['open', 'paid'] from trex.payment p;

-- as: app
-- expect: 42501
select trex.record_payment('shop', 'acct', 'in_1', 'paid');
