-- criterion: ac-0033
select trex.bump_epoch('me', 'why') = 1;

-- expect: TX902
update trex.epoch set epoch = 0;

-- expect: TX901
delete from trex.epoch;
truncate trex.epoch;

select e.epoch = 1 from trex.epoch e;
select trex.bump_epoch('me', 'why') = 2;
