-- criterion: ac-0040
-- expect: TX400
select trex.bind(null, 'r', 'me', 'why');
select trex.bind('', 'r', 'me', 'why');
select trex.bind('shop', null, 'me', 'why');
select trex.bind('shop', '', 'me', 'why');
select trex.bind('shop', repeat('r', 64), 'me', 'why');
select trex.bind('shop', repeat('ü', 32), 'me', 'why');
select trex.bind('shop', e'a\nb', 'me', 'why');
select trex.bind('shop', 'r', null, 'why');
select trex.bind('shop', 'r', '', 'why');
select trex.bind('shop', 'r', ' me', 'why');
select trex.bind('shop', 'r', e'm\ne', 'why');
select trex.bind('shop', 'r', repeat('m', 256), 'why');
select trex.bind('shop', 'r', 'me', null);
select trex.bind('shop', 'r', 'me', '');
select trex.bind('shop', 'r', 'me', ' ');
select trex.bind('shop', 'r', 'me', e'w\nhy');
select trex.bind('shop', 'r', 'me', e'w\u0085');
select trex.bind('shop', 'r', 'me', repeat('w', 1001));
