-- criterion: ac-0035
select not trex.resume('shop', 'me', 'why');
select trex.pause('shop', 'me', 'why');
select trex.resume('shop', 'me', 'why');
select not i.paused from trex.instance i where i.instance_key = 'shop';

select count(*) = 1, bool_and(a.detail = '{}'), bool_and(a.message_id is null) from trex.audit a where a.action = 'resume';
