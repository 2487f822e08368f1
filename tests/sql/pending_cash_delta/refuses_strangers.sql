-- criterion: ac-0037
-- Unknown, not bound, or somebody else's: the same answer.
-- expect: TX403
select * from trex.pending_cash_delta('sealed');
select * from trex.pending_cash_delta('nobody');

-- as: app
-- expect: TX403
select * from trex.pending_cash_delta('other');

-- Every right of the schema, but bound to nothing.
-- as: other
-- expect: TX403
select * from trex.pending_cash_delta('shop');
