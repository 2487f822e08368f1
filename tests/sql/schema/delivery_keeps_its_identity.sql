-- criterion: ac-0033
select test.put(1, 'lane');
select test.claim() = 1;

-- expect: TX902
update trex.delivery set instance_key = 'other';
update trex.delivery set message_id = 99;
update trex.delivery set box = 'inbox';
update trex.delivery set ordering_key = 'x';
update trex.delivery set ordering_key = null;
update trex.delivery set fence = fence - 1;
update trex.delivery set fence = fence + 1;
update trex.delivery set attempts = attempts + 1;
update trex.delivery set attempts = attempts + 2, fence = fence + 1;

-- It goes only with its receipt.
-- expect: TX902
delete from trex.delivery;

set session_replication_role = replica;

-- expect: TX902
update trex.delivery set fence = fence + 1;
delete from trex.delivery;

reset session_replication_role;

-- One row: one lease, and parked means neither leased nor due.
-- expect: 23514
update trex.delivery set parked = 'unknown';
update trex.delivery set parked = 'unknown', lease_until = null, worker = null;
update trex.delivery set lease_until = null;
update trex.delivery set tries = 2;
update trex.delivery set parked = 'lost', lease_until = null, worker = null, deferred_until = 'infinity';
