-- criterion: ac-0040
-- expect: TX400
select trex.report_stale('', 1, 1, 'completed');
select trex.report_stale('shop', null, 1, 'completed');
select trex.report_stale('shop', 0, 1, 'completed');
select trex.report_stale('shop', 1, null, 'completed');
select trex.report_stale('shop', 1, 0, 'completed');
select trex.report_stale('shop', 1, 1, null);
select trex.report_stale('shop', 1, 1, 'lease_expired');
select trex.report_stale('shop', 1, 1, 'x');
