-- depends: 0001.kernel
set local role trex_owner;
set local lock_timeout = '500ms';
set local search_path = pg_catalog, pg_temp;

-- What a provider sent, for ever: the raw bytes that were verified, and by which key. The work
-- on it is the inbox message.
create table trex.inbox_event (
    instance_key trex.instance_key not null,
    message_id bigint not null,
    provider trex.topic not null,
    account trex.key not null,
    event_id trex.key not null,
    event_type trex.key not null,
    object_id trex.key,
    raw bytea not null,
    body_hash bytea not null check (length(body_hash) = 32),
    key_id trex.key,
    received_at timestamptz not null,
    primary key (instance_key, message_id)
);

-- Predicates that always hold, here and on other secondary indexes: a pinned plan that was made
-- while the table was empty can't take such an index for a look-up by the primary key.
create unique index inbox_event_identity
on trex.inbox_event (instance_key, provider, account, event_id)
where event_id is not null;

-- The same event with other bytes: evidence, never a reason to treat it as new.
create table trex.inbox_variant (
    instance_key trex.instance_key not null,
    message_id bigint not null,
    body_hash bytea not null check (length(body_hash) = 32),
    key_id trex.key,
    received_at timestamptz not null,
    primary key (instance_key, message_id, body_hash)
);

create type trex.received as (message_id bigint, status text, state text, differs boolean);

create type trex.inbox_raw as (
    message_id bigint,
    provider text,
    account text,
    event_id text,
    event_type text,
    object_id text,
    raw bytea,
    key_id text,
    received_at timestamptz
);

create type trex.inbox_state as (
    message_id bigint,
    provider text,
    account text,
    event_id text,
    event_type text,
    object_id text,
    status text,
    state text,
    reason text,
    attempts integer,
    due_at timestamptz,
    variants bigint,
    received_at timestamptz,
    processed_at timestamptz
);

create trigger guard_change after update or delete on trex.inbox_event
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.inbox_event
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.inbox_variant
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.inbox_variant
for each statement execute function trex._guard_fact();

alter table trex.inbox_event enable always trigger guard_change;
alter table trex.inbox_event enable always trigger guard_truncate;
alter table trex.inbox_variant enable always trigger guard_change;
alter table trex.inbox_variant enable always trigger guard_truncate;

insert into trex.schema_migration (name, checksum)
values ('0002.inbox', nullif(current_setting('trex.migration_checksum', true), ''));
