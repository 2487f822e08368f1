-- criterion: ac-0040
-- expect: TX400
select trex.listen('', 'w', '1 s');
select trex.listen('shop', null, '1 s');
select trex.listen('shop', '', '1 s');
select trex.listen('shop', ' k', '1 s');
select trex.listen('shop', 'k ', '1 s');
select trex.listen('shop', e'k\u00a0', '1 s');
select trex.listen('shop', e'\u3000k', '1 s');
select trex.listen('shop', e'\ufeffk', '1 s');
select trex.listen('shop', e'a\u0001b', '1 s');
select trex.listen('shop', e'a\nb', '1 s');
select trex.listen('shop', e'a\u007fb', '1 s');
select trex.listen('shop', e'a\u0085b', '1 s');
select trex.listen('shop', repeat('x', 256), '1 s');
select trex.listen('shop', 'w', null);
select trex.listen('shop', 'w', '0');
select trex.listen('shop', 'w', '99 ms');
select trex.listen('shop', 'w', '61 minutes');
select trex.listen('shop', 'w', '1 month');
