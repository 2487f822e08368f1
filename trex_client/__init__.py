"""trex: a SQL-first outbox and inbox for PostgreSQL."""
