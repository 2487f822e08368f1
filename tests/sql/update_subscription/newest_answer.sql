-- criterion: ac-0056
-- as: worker
select trex.update_subscription('shop', 'acct', 'sub', 'in_1', 'active', (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '1 day' from trex_test.clock c), (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '0' from trex_test.clock c)) = 'created';
select trex.update_subscription('shop', 'acct', 'sub', 'in_1', 'expired', (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '1 day' from trex_test.clock c), (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '-1 s' from trex_test.clock c)) = 'stale';

-- as: worker
-- expect: TX400
select trex.update_subscription('shop', 'acct', 'sub', 'in_1', 'expired', (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '1 day' from trex_test.clock c), (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '1 s' from trex_test.clock c));
select trex.update_subscription('shop', 'acct', 'sub', 'in_1', 'gone', (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '1 day' from trex_test.clock c), (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '0' from trex_test.clock c));
select trex.update_subscription('shop', 'acct', 'sub', 'in_1', 'active', 'infinity', (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '0' from trex_test.clock c));

-- clock: 1 seconds
-- as: worker
select trex.update_subscription('shop', 'acct', 'sub', 'in_1', 'expired', (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '1 day' from trex_test.clock c), (select coalesce(c.frozen_at, clock_timestamp()) + c.shift + '0' from trex_test.clock c)) = 'updated';
