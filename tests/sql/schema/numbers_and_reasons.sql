-- criterion: ac-0033
-- expect: 23514
insert into trex.message values ('shop', 1, 'outbox', 't', 'k', null, null, 'a', 'USD', 'NaN', '{}', sha256('x'), 'lookup', now());
insert into trex.message values ('shop', 1, 'outbox', 't', 'k', null, null, 'a', 'USD', 'Infinity', '{}', sha256('x'), 'lookup', now());
insert into trex.message values ('shop', 1, 'outbox', 't', 'k', null, null, 'a', null, 1, '{}', sha256('x'), 'lookup', now());
insert into trex.message values ('shop', 1, 'outbox', 't', ' k', null, null, null, null, null, '{}', sha256('x'), 'lookup', now());
insert into trex.message values ('Shop', 1, 'outbox', 't', 'k', null, null, null, null, null, '{}', sha256('x'), 'lookup', now());
insert into trex.message values ('shop', 1, 'inbox', 't', 'k', null, null, null, null, null, null, sha256('x'), 'lookup', now());
insert into trex.outcome values ('shop', 1, 1, 1, 'retry', 'deferred', 'HTTP 500: gateway said no', false, now());
insert into trex.outcome values ('shop', 1, 1, 1, 'done', 'deferred', 'timeout', false, now());
insert into trex.quarantine (source, source_key, instance_key) values ('old', '1', 'shop');

-- One receipt a message, one end a fence, one message a key.
insert into trex.receipt values ('shop', 1, 1, 1, false, false, 'answer', null, now());

-- expect: 23505
insert into trex.receipt values ('shop', 1, 2, 2, false, false, 'answer', null, now());

insert into trex.outcome values ('shop', 1, 3, 1, 'retry', 'deferred', 'timeout', false, now());

-- expect: 23505
insert into trex.outcome values ('shop', 1, 3, 1, 'unknown', 'deferred', 'timeout', false, now());
