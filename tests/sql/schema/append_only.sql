-- criterion: ac-0033
-- Even for the owner of everything, and with triggers turned off for replication.
select test.put(4, p_cash => 1);
select count(*) = 3 from test.claim(3);
select r.state = 'delivered' from trex.complete('shop', 1, test.fence(1), p_balance => 1, p_version => 1) r;
select test.park(2, 'permanent') = 'permanent';

-- clock: 30 seconds
select count(*) = 2 from test.claim(2);

select r.status = 'claim_lost' from trex.retry('shop', 3, test.fence(3, 1), p_on_lost => 'report') r;
insert into trex.quarantine (source, source_key) values ('old', '1');

-- expect: TX901
update trex.receipt set instance_key = instance_key;
delete from trex.receipt;
truncate trex.receipt;

set session_replication_role = replica;

-- expect: TX901
update trex.receipt set instance_key = instance_key;
delete from trex.receipt;
truncate trex.receipt;

reset session_replication_role;

-- expect: TX901
update trex.outcome set instance_key = instance_key;
delete from trex.outcome;
truncate trex.outcome;

set session_replication_role = replica;

-- expect: TX901
update trex.outcome set instance_key = instance_key;
delete from trex.outcome;
truncate trex.outcome;

reset session_replication_role;

-- expect: TX901
update trex.stale_report set instance_key = instance_key;
delete from trex.stale_report;
truncate trex.stale_report;

set session_replication_role = replica;

-- expect: TX901
update trex.stale_report set instance_key = instance_key;
delete from trex.stale_report;
truncate trex.stale_report;

reset session_replication_role;

-- expect: TX901
update trex.audit set instance_key = instance_key;
delete from trex.audit;
truncate trex.audit;

set session_replication_role = replica;

-- expect: TX901
update trex.audit set instance_key = instance_key;
delete from trex.audit;
truncate trex.audit;

reset session_replication_role;

-- expect: TX901
update trex.message set topic = 'u';
update trex.message set payload = '{}' where message_id = 1;
update trex.message set payload = null where message_id = 2;
delete from trex.message;
truncate trex.message;
truncate trex.delivery;
truncate trex.ledger_snapshot;
delete from trex.ledger_snapshot;
truncate trex.quarantine;
delete from trex.quarantine;
update trex.quarantine set topic = 't';
delete from trex.instance where instance_key = 'sealed';
delete from trex.currency;
update trex.currency set exponent = 3 where currency = 'USD';

-- The payload of a delivered outbox message may go.
update trex.message set payload = null where message_id = 1;

select m.payload is null from trex.message m where m.message_id = 1;
