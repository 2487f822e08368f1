-- criterion: ac-0036
insert into trex.quarantine (source, source_key, topic, idempotency_key, payload, account)
values ('old', '1', 'Refund', null, '{}', null), ('old', '2', 't', 'k', null, null), ('old', '3', 't', 'k', '{}', 'a'),
    ('old', '4', 't', 'same for many', '{}', null), ('old', '5', 't', 'same for many', '{}', null);

-- expect: TX400
select trex.adopt('shop', 1, 'seen', 'dba', 'why');
select trex.adopt('shop', 1, 'seen', 'dba', 'why', 'refund');
select trex.adopt('shop', 2, 'seen', 'dba', 'why');
select trex.adopt('shop', 3, 'seen', 'dba', 'why');

select a.status = 'enqueued' from trex.adopt('shop', 1, 'seen', 'dba', 'why', 'refund', 'old-1') a;
select a.status = 'enqueued' from trex.adopt('shop', 4, 'seen', 'dba', 'why') a;

-- Two movements don't become one because somebody gave them the same key.
-- expect: TX422
select trex.adopt('shop', 5, 'seen', 'dba', 'why');

select a.status = 'enqueued' from trex.adopt('shop', 5, 'seen', 'dba', 'why', null, 'old-5') a;
select count(*) = 3 from trex.message;
