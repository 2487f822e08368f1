-- criterion: ac-0029
begin;

select test.put();

-- expect: TX501
select * from trex.exchange('shop', 'w', 1);

rollback;

begin isolation level repeatable read;

-- expect: TX501
select * from trex.exchange('shop', 'w', 1);

rollback;
