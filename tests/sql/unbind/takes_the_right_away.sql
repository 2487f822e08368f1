-- criterion: ac-0035
-- as: app
select e.status = 'enqueued' from trex.enqueue('shop', 't', 'k', '{}') e;

select trex.unbind('shop', 'trex_test_app', 'me', 'why');
select not trex.unbind('shop', 'trex_test_app', 'me', 'why');

-- as: app
-- expect: TX403
select trex.enqueue('shop', 't', 'k2', '{}');

select count(*) = 1 from trex.audit a where a.action = 'unbind' and a.instance_key = 'shop';
