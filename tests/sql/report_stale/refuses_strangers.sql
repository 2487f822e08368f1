-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.report_stale('sealed', 1, 1, 'completed');
select * from trex.report_stale('nobody', 1, 1, 'completed');

-- as: worker
-- expect: TX403
select * from trex.report_stale('other', 1, 1, 'completed');

-- as: app
-- expect: 42501
select * from trex.report_stale('shop', 1, 1, 'completed');

-- as: operator
-- expect: 42501
select * from trex.report_stale('shop', 1, 1, 'completed');

-- as: reader
-- expect: 42501
select * from trex.report_stale('shop', 1, 1, 'completed');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.report_stale('shop', 1, 1, 'completed');
