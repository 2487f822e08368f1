-- criterion: ac-0040
-- expect: TX400
select trex.unbind(null, 'r', 'me', 'why');
select trex.unbind('', 'r', 'me', 'why');
select trex.unbind('shop', null, 'me', 'why');
select trex.unbind('shop', '', 'me', 'why');
select trex.unbind('shop', repeat('r', 64), 'me', 'why');
select trex.unbind('shop', repeat('ü', 32), 'me', 'why');
select trex.unbind('shop', e'a\nb', 'me', 'why');
select trex.unbind('shop', 'r', null, 'why');
select trex.unbind('shop', 'r', '', 'why');
select trex.unbind('shop', 'r', ' me', 'why');
select trex.unbind('shop', 'r', e'm\ne', 'why');
select trex.unbind('shop', 'r', repeat('m', 256), 'why');
select trex.unbind('shop', 'r', 'me', null);
select trex.unbind('shop', 'r', 'me', '');
select trex.unbind('shop', 'r', 'me', ' ');
select trex.unbind('shop', 'r', 'me', e'w\nhy');
select trex.unbind('shop', 'r', 'me', e'w\u0085');
select trex.unbind('shop', 'r', 'me', repeat('w', 1001));
