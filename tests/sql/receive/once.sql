-- criterion: ac-0055
-- as: app
select r.message_id = 1, r.status = 'received', r.state = 'ready', not r.differs
from trex.receive('shop', 'stripe', 'acct', 'evt', 'paid', 'in_1', 'raw', '{"a": 1}') r;

select r.message_id = 1, r.status = 'deduplicated', r.differs
from trex.receive('shop', 'stripe', 'acct', 'evt', 'paid', 'in_1', 'RAW', '{"a": 2}') r;

select count(*) = 1 from trex.message;
select e.raw = 'raw', e.body_hash = sha256('raw') from trex.inbox_event e;
select v.body_hash = sha256('RAW') from trex.inbox_variant v;
select m.idempotency_key = encode(sha256('["stripe", "acct", "evt"]'), 'hex') from trex.message m;
