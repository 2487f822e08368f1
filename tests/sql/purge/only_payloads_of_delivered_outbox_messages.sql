-- criterion: ac-0035
select test.put(5);
select test.put_inbox() = 6;
select count(*) = 4 from test.claim(4);
select test.claim(p_box => 'inbox') = 6;
select count(*) = 2 from generate_series(1, 2) n, trex.complete('shop', n, test.fence(n));
select test.park(4, 'permanent') = 'permanent';
select r.state = 'delivered' from trex.complete('shop', 6, test.fence(6)) r;

-- clock: 1 hours
select r.state = 'delivered' from trex.complete('shop', 3, test.fence(3)) r;

-- Delivered: 1 and 2 an hour ago, 3 now, 6 from the inbox.
select p.examined = 4, p.purged = 2, p.last_message_id = 6 from trex.purge('shop', '1 hour', 'me', 'why', p_dry_run => true) p;
select count(*) = 6 from trex.message m where m.payload is not null;
select p.examined = 1, p.purged = 1, p.last_message_id = 1 from trex.purge('shop', '1 hour', 'me', 'why', 1) p;
select p.examined = 3, p.purged = 1, p.last_message_id = 6 from trex.purge('shop', '1 hour', 'me', 'why', 100, 1) p;
select p.examined = 0, p.purged = 0, p.last_message_id = 6 from trex.purge('shop', '1 hour', 'me', 'why', 100, 6) p;
select p.purged = 0 from trex.purge('shop', '1 hour', 'me', 'why') p;
select array_agg(m.message_id order by m.message_id) = array[1, 2]::bigint [] from trex.message m where m.payload is null;
select count(*) = 2 from trex.audit a where a.action = 'purge';

-- Key, digest and receipt stay: the same content is still a duplicate.
create table test.first as select * from trex.message where message_id = 1;

select e.message_id = 1, e.status = 'duplicate'
from test.first m, trex.enqueue('shop', m.topic, m.idempotency_key, '{"n": 1}') e;
select s.state = 'delivered' from trex.status('shop', 1) s;
