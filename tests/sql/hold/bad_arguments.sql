-- criterion: ac-0040
-- expect: TX400
select trex.hold('', 1, 1);
select trex.hold('shop', null, 1);
select trex.hold('shop', 0, 1);
select trex.hold('shop', 1, null);
select trex.hold('shop', 1, -1);
select trex.hold('shop', 1, 1, null);
select trex.hold('shop', 1, 1, '0');
select trex.hold('shop', 1, 1, '99 ms');
select trex.hold('shop', 1, 1, '11 minutes');
select trex.hold('shop', 1, 1, '1 month');
