-- criterion: ac-0035
select trex.pause('shop', 'me', 'why');
select not trex.pause('shop', 'me', 'why');
select i.paused from trex.instance i where i.instance_key = 'shop';

-- Everything but claim goes on.
select test.put() = 1;

select count(*) = 1, bool_and(a.detail = '{}'), bool_and(a.message_id is null) from trex.audit a where a.action = 'pause';
