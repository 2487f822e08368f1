select s.migrations[1] = '0001.kernel', s.release ~ '^[0-9a-f]{64}$', s.replayed_at is not null from trex.schema_state() s;

-- The test clock has another body than the release.
select s.drifted = array['trex._now()'] from trex.schema_state() s;

-- as: reader
select s.release is not null from trex.schema_state() s;
