-- criterion: ac-0030
begin;

select e.status = 'enqueued' from trex.enqueue('shop', 't', 'k', '{}') e;

rollback;

select not exists (select from trex.message), not exists (select from trex.delivery);

select e.status = 'enqueued' from trex.enqueue('shop', 't', 'k', '{}') e;
