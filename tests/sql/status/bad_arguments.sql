-- criterion: ac-0040
select e.message_id = 1 from trex.enqueue('shop', 't', 'k', '{}') e;

-- expect: TX400
select trex.status('', 1);
select trex.status('shop');
select trex.status('shop', 1, 'k');
select trex.status('shop', 0);
select trex.status('shop', 1, null, null);
select trex.status('shop', 1, null, 'x');
select trex.status('shop', null, '');
select trex.status('shop', null, ' k');
select trex.status('shop', null, 'k ');
select trex.status('shop', null, e'k\u00a0');
select trex.status('shop', null, e'\u3000k');
select trex.status('shop', null, e'\ufeffk');
select trex.status('shop', null, e'a\u0001b');
select trex.status('shop', null, e'a\nb');
select trex.status('shop', null, e'a\u007fb');
select trex.status('shop', null, e'a\u0085b');
select trex.status('shop', null, repeat('x', 256));

-- expect: TX404
select trex.status('shop', 2);
select trex.status('shop', null, 'K');
select trex.status('shop', null, 'k', 'inbox');
select trex.status('other', 1);
