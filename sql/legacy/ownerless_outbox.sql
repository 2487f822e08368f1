-- The outbox of an older version, as many services have it: one table, mutable, and no owner.
-- Kept to prove that such rows are brought in and stay ownerless for ever.
create schema if not exists legacy;

create table legacy.outbox (
    id bigint generated always as identity primary key,
    event_type text not null,
    dedup_key text,
    correlation_id text,
    account text,
    currency text,
    amount numeric,
    payload jsonb not null default '{}',
    status text not null default 'pending' check (
        status in (
            'pending', 'processing', 'retry', 'sent', 'acknowledged', 'failed', 'dead', 'cancelled'
        )
    ),
    attempts integer not null default 0,
    locked_by text,
    locked_until timestamptz,
    next_attempt_at timestamptz,
    last_error text,
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz
);

create index outbox_due on legacy.outbox (next_attempt_at)
where status in ('pending', 'retry');
