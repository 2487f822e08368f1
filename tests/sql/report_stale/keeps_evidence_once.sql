-- criterion: ac-0029
select test.put(2);
select count(*) = 2 from test.claim();

-- The claim isn't lost yet.
select not trex.report_stale('shop', 1, test.fence(1), 'completed');

-- clock: 30 seconds
select not trex.report_stale('shop', 1, test.fence(1), 'completed');
select count(*) = 2 from test.claim();

select trex.report_stale('shop', 1, test.fence(1, 1), 'completed');
select not trex.report_stale('shop', 1, test.fence(1, 1), 'completed');
select trex.report_stale('shop', 1, test.fence(1, 1), 'retry');

-- Never given out, or for another message.
select not trex.report_stale('shop', 1, 5, 'completed');
select not trex.report_stale('shop', 1, test.fence(2, 1), 'completed');

-- An end that was recorded is no loss.
select r.status = 'recorded' from trex.complete('shop', 1, test.fence(1)) r;
select not trex.report_stale('shop', 1, test.fence(1), 'retry');

-- expect: TX404
select trex.report_stale('shop', 3, 1, 'completed');
select trex.report_stale('other', 1, 1, 'completed');

select count(*) = 2 from trex.stale_report;
