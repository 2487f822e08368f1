-- criterion: ac-0033
insert into trex.ledger_snapshot values ('shop', 'a', 'USD', 10, 5, 1, 1, 0, 0, now());

-- expect: TX902
update trex.ledger_snapshot set version = 4;
update trex.ledger_snapshot set balance = 11;
update trex.ledger_snapshot set account = 'b';
update trex.ledger_snapshot set instance_key = 'other';

update trex.ledger_snapshot set balance = 11, version = 6;

select s.balance = 11 from trex.ledger_snapshot s;
