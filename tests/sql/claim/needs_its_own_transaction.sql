-- criterion: ac-0029
begin;

select test.put();

-- expect: TX501
select * from trex.claim('shop', 'w');

rollback;

begin isolation level repeatable read;

-- expect: TX501
select * from trex.claim('shop', 'w');

rollback;

begin isolation level serializable;

-- expect: TX501
select * from trex.claim('shop', 'w');

rollback;

begin read only;

-- expect: TX503
select * from trex.claim('shop', 'w');

rollback;
