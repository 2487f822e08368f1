select trex.enqueue('shop', 't', 'k', '{}', p_delay => '1 day');

select d.deferred_until = trex._now() + interval '24 hours' from trex.delivery d;

-- expect: no rows
select * from trex.claim('shop', 'w');

-- clock: 24 hours
select c.message_id = 1 from trex.claim('shop', 'w') c;
