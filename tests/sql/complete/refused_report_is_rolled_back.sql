-- criterion: ac-0029
select test.put();
select test.claim() = 1;

-- clock: 30 seconds
select test.claim() = 1;

-- The business row around it can't commit.
create table test.business (n integer);

begin;

insert into test.business values (1);

-- expect: TX409
select * from trex.complete('shop', 1, test.fence(1, 1));

rollback;

select count(*) = 0 from test.business;
