-- criterion: ac-0040
insert into trex.quarantine (source, source_key, topic, idempotency_key, payload) values ('old', '1', 't', 'k', '{}');

-- expect: TX400
select trex.adopt('', 1, 'seen', 'me', 'why');
select trex.adopt('shop', null, 'seen', 'me', 'why');
select trex.adopt('shop', 0, 'seen', 'me', 'why');
select trex.adopt('shop', 1, null, 'me', 'why');
select trex.adopt('shop', 1, '', 'me', 'why');
select trex.adopt('shop', 1, ' ', 'me', 'why');
select trex.adopt('shop', 1, e'a\nb', 'me', 'why');
select trex.adopt('shop', 1, repeat('x', 1001), 'me', 'why');
select trex.adopt('shop', 1, 'seen', null, 'why');
select trex.adopt('shop', 1, 'seen', '', 'why');
select trex.adopt('shop', 1, 'seen', ' me', 'why');
select trex.adopt('shop', 1, 'seen', e'm\ne', 'why');
select trex.adopt('shop', 1, 'seen', repeat('m', 256), 'why');
select trex.adopt('shop', 1, 'seen', 'me', null);
select trex.adopt('shop', 1, 'seen', 'me', '');
select trex.adopt('shop', 1, 'seen', 'me', ' ');
select trex.adopt('shop', 1, 'seen', 'me', e'w\nhy');
select trex.adopt('shop', 1, 'seen', 'me', e'w\u0085');
select trex.adopt('shop', 1, 'seen', 'me', repeat('w', 1001));
select trex.adopt('shop', 1, 'seen', 'me', 'why', '');
select trex.adopt('shop', 1, 'seen', 'me', 'why', 'T');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, '');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, ' k');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, 'k ');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, e'k\u00a0');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, e'\u3000k');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, e'\ufeffk');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, e'a\u0001b');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, e'a\nb');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, e'a\u007fb');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, e'a\u0085b');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, repeat('x', 256));
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, null, null);
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, null, '');
select trex.adopt('shop', 1, 'seen', 'me', 'why', null, null, 'never');

select q.adopted_at is null from trex.quarantine q;
