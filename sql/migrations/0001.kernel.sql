-- depends:
set local role trex_owner;
set local lock_timeout = '500ms';
set local search_path = pg_catalog, pg_temp;

create schema if not exists trex;

create table trex.schema_migration (
    name text primary key check (name ~ '^[0-9]{4}[.][a-z0-9_]+$'),
    checksum text check (checksum ~ '^[0-9a-f]{64}$'),
    applied_at timestamptz not null default clock_timestamp(),
    applied_by text not null default session_user
);

create table trex.function_release (
    singleton boolean primary key default true check (singleton),
    release text not null check (release ~ '^[0-9a-f]{64}$'),
    replayed_at timestamptz not null,
    replayed_by text not null
);

create table trex.function_digest (
    signature text primary key,
    digest text not null check (digest ~ '^[0-9a-f]{64}$')
);

create type trex.schema_state_result as (
    migrations text [],
    release text,
    replayed_at timestamptz,
    migrated_at timestamptz,
    drifted text []
);

-- Without IN SCHEMA on purpose: a per-schema revoke can't take away what the global default grants.
alter default privileges for role trex_owner revoke execute on functions from public;

grant usage on schema trex to trex_app, trex_worker, trex_operator, trex_reader, trex_adopter;

-- Domains: the same rules as trex._is_key() and friends, as a second lock behind the functions.

create domain trex.instance_key as text collate "C"
check (value ~ '^[a-z0-9][a-z0-9._:-]{0,62}$');

create domain trex.topic as text collate "C"
check (value ~ '^[a-z0-9][a-z0-9._:-]{0,62}$');

create domain trex.key as text collate "C"
check (
    length(value) between 1 and 255
    and value !~ '[\u0001-\u001F\u007F-\u009F]'
    and value !~ '^[\u0020\u00A0\u1680\u2000-\u200D\u2028\u2029\u202F\u205F\u2060\u3000\uFEFF]'
    and value !~ '[\u0020\u00A0\u1680\u2000-\u200D\u2028\u2029\u202F\u205F\u2060\u3000\uFEFF]$'
);

create domain trex.reason as text collate "C"
check (
    value in (
        'adapter_error', 'attempts_exhausted', 'connect_failed', 'connection_lost', 'consumer:none',
        'expired', 'handler_error', 'host_not_allowed', 'in_progress', 'invalid_request',
        'key_conflict', 'lease_expired', 'lookup_absent', 'lookup_failed', 'lookup_unsupported',
        'no_order', 'not_found', 'not_paid', 'not_started', 'operator', 'provider_unreachable',
        'rate_limited', 'redirected', 'rejected', 'response_invalid', 'response_too_large',
        'server_error', 'shutdown', 'stale_version', 'timeout', 'tls_failed', 'unauthorized',
        'unavailable', 'unspecified', 'unsupported_policy', 'waiting', 'write_back_failed'
    )
);

create sequence trex.message_id_seq as bigint no cycle cache 1;

-- The low 42 bits of a fence; the epoch fills the high ones. CACHE 1: a cached block would be
-- handed out late and out of order.
create sequence trex.fence_seq as bigint maxvalue 4398046511103 no cycle cache 1;

create table trex.epoch (
    singleton boolean primary key default true check (singleton),
    epoch bigint not null check (epoch between 0 and 2097151),
    postmaster_start timestamptz
) with (fillfactor = 50);

insert into trex.epoch (epoch) values (0);

create table trex.currency (
    currency text collate "C" primary key check (currency ~ '^[A-Z][A-Z0-9]{2,11}$'),
    exponent smallint not null check (exponent between 0 and 18)
);

-- ISO 4217 (list one, active codes) by number of decimals, and the common crypto assets by their
-- smallest unit.
insert into trex.currency (currency, exponent)
select
    unnest(string_to_array(v.codes, ' ')),
    v.exponent
from (
    values
    (0, 'BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF'),
    (
        2,
        'AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN '
        'BWP BYN BZD CAD CDF CHE CHF CHW CNY COP COU CRC CUC CUP CVE CZK DKK DOP DZD EGP ERN '
        'ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES '
        'KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK '
        'MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR '
        'SBD SCR SDG SEK SGD SHP SLE SLL SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD '
        'TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG ZWL'
    ),
    (3, 'BHD IQD JOD KWD LYD OMR TND'),
    (4, 'CLF UYW'),
    (6, 'USDC USDT SOLUSD XRP ADA'),
    (8, 'BTC BCH LTC DOGE'),
    (9, 'SOL'),
    (18, 'ETH DAI')
) as v (exponent, codes);

create table trex.instance (
    instance_key trex.instance_key primary key,
    paused boolean not null default false,
    max_attempts integer not null default 12 check (max_attempts between 1 and 1000),
    lease_default interval not null default '30 seconds',
    lease_max interval not null default '15 minutes',
    backoff_base interval not null default '1 second',
    backoff_cap interval not null default '1 hour',
    on_parked text not null default 'block' check (on_parked in ('block', 'continue')),
    wake boolean not null default true,
    payload_max integer not null default 1048576 check (payload_max between 2 and 16777216),
    registered_at timestamptz not null,
    check (lease_default between '100 milliseconds' and lease_max and lease_max <= '24 hours'),
    check (backoff_base between '1 millisecond' and backoff_cap and backoff_cap <= '720 hours')
);

create table trex.binding (
    instance_key trex.instance_key not null references trex.instance,
    role_name name not null,
    bound_at timestamptz not null,
    primary key (instance_key, role_name)
);

-- The CHECKs of message, delivery and receipt. The bodies are replayed with the functions; until
-- then they refuse, so a half-installed schema fails closed.

create function trex._message_holds(
    p_box text,
    p_account text,
    p_currency text,
    p_cash_delta numeric,
    p_has_payload boolean,
    p_digest_length integer,
    p_effect_policy text
)
returns boolean
language plpgsql immutable parallel safe
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create table trex.message (
    instance_key trex.instance_key not null,
    message_id bigint not null,
    box text collate "C" not null,
    topic trex.topic not null,
    idempotency_key trex.key not null,
    correlation_id trex.key,
    ordering_key trex.key,
    account trex.key,
    currency text collate "C",
    cash_delta numeric,
    payload jsonb,
    digest bytea not null,
    effect_policy text collate "C" not null,
    enqueued_at timestamptz not null,
    primary key (instance_key, message_id),
    check (
        trex._message_holds(
            box, account, currency, cash_delta, payload is not null, length(digest), effect_policy
        )
    )
);

-- Always true, but a look-up by message_id doesn't say it, so it can't use this index and read
-- the whole instance; a look-up by key says it by comparing the key.
create unique index message_idempotency
on trex.message (instance_key, box, idempotency_key) where idempotency_key is not null;

create index message_correlation on trex.message (instance_key, correlation_id, message_id)
where correlation_id is not null;

create function trex._delivery_holds(
    p_parked text,
    p_deferred_until timestamptz,
    p_lease_until timestamptz,
    p_worker text,
    p_fence bigint,
    p_attempts integer,
    p_tries integer,
    p_abandoned boolean
)
returns boolean
language plpgsql immutable parallel safe
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create function trex._receipt_holds(p_fence bigint, p_attempt integer, p_confirmed_by text)
returns boolean
language plpgsql immutable parallel safe
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

-- deferred_until: null = ready, a time = due then, infinity = parked, or waiting behind an
-- earlier row of its ordering key. abandoned: an operator gave it up, so its ordering key goes on
-- whatever the policy. lease_until is not null exactly while the claim with this
-- fence has no recorded end. instance_key was checked in message. The CHECK is a call because
-- PostgreSQL reads its stored expression anew for every statement: written out, it was a third of
-- a single-row update. fillfactor: a batch claims every row
-- of a page before any old version can go, and lease and worker make each a third longer; with 60
-- a third of them left their page and touched all indexes (twice the CPU of a claim of 100).
create table trex.delivery (
    instance_key text collate "C" not null,
    message_id bigint not null,
    box text collate "C" not null,
    ordering_key text collate "C",
    deferred_until timestamptz,
    lease_until timestamptz,
    worker text collate "C",
    fence bigint not null default 0,
    attempts integer not null default 0,
    tries integer not null default 0,
    sent_fence bigint,
    uncertain boolean not null default false,
    parked text collate "C",
    abandoned boolean not null default false,
    check (
        trex._delivery_holds(
            parked, deferred_until, lease_until, worker, fence, attempts, tries, abandoned
        )
    )
) with (
    fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- Always true, but only a query that says so may use the index: a plan made while the table
-- looked empty would otherwise take it for look-ups by message_id, read the whole instance, and
-- stay.
create index delivery_claim on trex.delivery (instance_key, box, deferred_until, message_id)
where message_id > 0;

-- The expression is the instance_key that no other index has: a look-up by ordering key that was
-- planned on a small table can't fall back to the primary key, which reads the whole instance.
create index delivery_lane on trex.delivery ((instance_key || ''), box, ordering_key, message_id)
where ordering_key is not null;

-- Made last: of indexes that cost the same on a small table the planner takes the newest, and a
-- look-up by ids must keep this one when the pinned plan outlives the small table.
alter table trex.delivery add primary key (instance_key, message_id);

create table trex.lane (
    instance_key trex.instance_key not null,
    box text collate "C" not null,
    ordering_key trex.key not null,
    primary key (instance_key, box, ordering_key)
);

create table trex.receipt (
    instance_key text collate "C" not null,
    message_id bigint not null,
    fence bigint not null,
    attempt integer not null,
    duplicate boolean not null,
    late boolean not null,
    confirmed_by text collate "C" not null,
    reference text collate "C",
    delivered_at timestamptz not null,
    primary key (instance_key, message_id),
    check (trex._receipt_holds(fence, attempt, confirmed_by))
);

create table trex.outcome (
    instance_key text collate "C" not null,
    message_id bigint not null,
    fence bigint not null check (fence > 0),
    attempt integer not null check (attempt > 0),
    kind text collate "C" not null check (
        kind in (
            'retry', 'unknown', 'conflict', 'permanent', 'dead_letter', 'released', 'postponed',
            'lease_expired'
        )
    ),
    state text collate "C" not null
    check (state in ('ready', 'deferred', 'dead_letter', 'permanent', 'conflict', 'unknown')),
    reason trex.reason not null,
    late boolean not null,
    recorded_at timestamptz not null,
    primary key (instance_key, message_id, fence)
);

create table trex.stale_report (
    instance_key text collate "C" not null,
    message_id bigint not null,
    fence bigint not null,
    result text collate "C" not null check (
        result in (
            'completed', 'duplicate', 'retry', 'unknown', 'conflict', 'permanent', 'dead_letter',
            'released', 'postponed'
        )
    ),
    reported_at timestamptz not null,
    primary key (instance_key, message_id, fence, result)
);

create unlogged table trex.listener (
    instance_key text collate "C" not null,
    worker text collate "C" not null,
    until timestamptz not null,
    primary key (instance_key, worker)
) with (fillfactor = 50);

create table trex.ledger_snapshot (
    instance_key trex.instance_key not null,
    account trex.key not null,
    currency text collate "C" not null,
    balance numeric not null check (balance > '-Infinity' and balance < 'Infinity'),
    version bigint not null check (version >= 0),
    message_id bigint not null,
    fence bigint not null,
    ignored bigint not null default 0,
    contradicted bigint not null default 0,
    stored_at timestamptz not null,
    primary key (instance_key, account, currency)
) with (fillfactor = 70);

create table trex.ledger_skip (
    instance_key trex.instance_key not null,
    message_id bigint not null,
    account text collate "C",
    currency text collate "C",
    cash_delta numeric,
    parked text collate "C" not null,
    reason trex.reason not null,
    opened_at timestamptz not null,
    resolved_at timestamptz,
    resolved_fence bigint,
    primary key (instance_key, message_id),
    check ((resolved_at is null) = (resolved_fence is null))
);

create table trex.quarantine (
    quarantine_id bigint generated always as identity primary key,
    source text collate "C" not null,
    source_key text collate "C" not null,
    instance_key text check (instance_key is null),
    topic text,
    idempotency_key text,
    correlation_id text,
    account text,
    currency text,
    cash_delta numeric,
    payload jsonb,
    source_state text,
    source_attempts integer,
    occurred_at timestamptz,
    imported_at timestamptz not null default clock_timestamp(),
    adopted_message_id bigint,
    adopted_at timestamptz,
    unique (source, source_key),
    check ((adopted_message_id is null) = (adopted_at is null))
);

create table trex.audit (
    audit_id bigint generated always as identity primary key,
    instance_key text collate "C",
    action text collate "C" not null,
    message_id bigint,
    actor text not null,
    reason text not null,
    detail jsonb not null,
    role_name name not null,
    at timestamptz not null
);

create index audit_message on trex.audit (instance_key, message_id, audit_id);

-- Results of the public functions.

-- What a worker's call needs to know of its instance, in one look-up; epoch is null when it has
-- to be raised.
create type trex.entered as (instance trex.instance, epoch bigint);

create type trex.enqueued as (message_id bigint, status text);

create type trex.claimed as (
    message_id bigint,
    fence bigint,
    attempt integer,
    tries integer,
    lease_until timestamptz,
    uncertain boolean,
    box text,
    topic text,
    idempotency_key text,
    correlation_id text,
    ordering_key text,
    account text,
    currency text,
    cash_delta numeric,
    payload jsonb,
    effect_policy text,
    enqueued_at timestamptz
);

create type trex.recorded as (
    message_id bigint,
    fence bigint,
    status text,
    state text,
    late boolean,
    due_at timestamptz
);

create type trex.exchanged as (
    status text,
    state text,
    late boolean,
    due_at timestamptz,
    message_id bigint,
    fence bigint,
    attempt integer,
    tries integer,
    lease_until timestamptz,
    uncertain boolean,
    box text,
    topic text,
    idempotency_key text,
    correlation_id text,
    ordering_key text,
    account text,
    currency text,
    cash_delta numeric,
    payload jsonb,
    effect_policy text,
    enqueued_at timestamptz
);

create type trex.extended as (
    message_id bigint,
    fence bigint,
    status text,
    lease_until timestamptz
);

create type trex.operated as (message_id bigint, status text);

create type trex.pending as (
    message_id bigint,
    box text,
    state text,
    topic text,
    idempotency_key text,
    correlation_id text,
    ordering_key text,
    account text,
    currency text,
    cash_delta numeric,
    due_at timestamptz,
    attempts integer,
    tries integer,
    uncertain boolean,
    enqueued_at timestamptz
);

create type trex.cash as (
    account text,
    currency text,
    pending numeric,
    uncertain numeric,
    skipped numeric,
    entries bigint
);

create type trex.parked as (
    message_id bigint,
    box text,
    parked text,
    reason text,
    topic text,
    idempotency_key text,
    correlation_id text,
    ordering_key text,
    account text,
    currency text,
    cash_delta numeric,
    attempts integer,
    uncertain boolean,
    abandoned boolean,
    parked_at timestamptz,
    enqueued_at timestamptz
);

create type trex.message_status as (
    message_id bigint,
    box text,
    state text,
    reason text,
    topic text,
    idempotency_key text,
    attempts integer,
    tries integer,
    fence bigint,
    uncertain boolean,
    worker text,
    lease_until timestamptz,
    due_at timestamptz,
    enqueued_at timestamptz,
    delivered_at timestamptz,
    duplicate boolean,
    confirmed_by text,
    reference text
);

create type trex.instance_stats as (
    box text,
    ready bigint,
    due bigint,
    deferred bigint,
    waiting bigint,
    leased bigint,
    lease_ended bigint,
    dead_letter bigint,
    permanent bigint,
    conflict bigint,
    unknown bigint,
    abandoned bigint,
    blocked_keys bigint,
    oldest_due_at timestamptz,
    oldest_parked_at timestamptz,
    capped boolean
);

create type trex.instance_policy as (
    instance_key text,
    paused boolean,
    max_attempts integer,
    lease_default interval,
    lease_max interval,
    backoff_base interval,
    backoff_cap interval,
    on_parked text,
    wake boolean,
    payload_max integer,
    bound_roles text [],
    registered_at timestamptz
);

create type trex.purged as (examined bigint, purged bigint, last_message_id bigint);

-- Guards. The bodies are replayed with the functions; until then they refuse, so a
-- half-installed schema fails closed.

create function trex._guard_fact() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create function trex._guard_message() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create function trex._guard_delivery() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create function trex._guard_delivered() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create function trex._guard_snapshot() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create function trex._guard_epoch() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create function trex._guard_quarantine() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

-- Append-only facts: message (but for purge), receipt, outcome, stale_report, audit.

create trigger guard_update after update on trex.message
for each row execute function trex._guard_message();
create trigger guard_delete after delete on trex.message
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.message
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.receipt
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.receipt
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.outcome
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.outcome
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.stale_report
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.stale_report
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.audit
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.audit
for each statement execute function trex._guard_fact();

-- A delivery keeps its identity, its counters only rise, and it goes only when its receipt is
-- there.

create trigger guard_update after update on trex.delivery
for each row when (
    (new.instance_key, new.message_id, new.box, new.ordering_key)
    is distinct from (old.instance_key, old.message_id, old.box, old.ordering_key)
    or new.fence < old.fence
    or new.attempts - old.attempts <> (new.fence > old.fence)::integer
)
execute function trex._guard_delivery();
create trigger guard_delete after delete on trex.delivery
referencing old table as gone
for each statement execute function trex._guard_delivered();
create trigger guard_truncate before truncate on trex.delivery
for each statement execute function trex._guard_fact();

create trigger guard_update after update on trex.ledger_snapshot
for each row when (
    new.instance_key <> old.instance_key
    or new.account <> old.account
    or new.currency <> old.currency
    or new.version < old.version
    or (new.version = old.version and new.balance <> old.balance)
)
execute function trex._guard_snapshot();
create trigger guard_delete after delete on trex.ledger_snapshot
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.ledger_snapshot
for each statement execute function trex._guard_fact();

-- An epoch that fell would give out fences below those of claims that are still open.
create trigger guard_update after update on trex.epoch
for each row when (new.epoch < old.epoch)
execute function trex._guard_epoch();
create trigger guard_delete after delete on trex.epoch
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.epoch
for each statement execute function trex._guard_fact();

-- A quarantined row changes once, when it is adopted.
create trigger guard_update after update on trex.quarantine
for each row execute function trex._guard_quarantine();
create trigger guard_delete after delete on trex.quarantine
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.quarantine
for each statement execute function trex._guard_fact();

-- A binding names a registered instance for ever; an exponent that changed would change every
-- amount.
create trigger guard_change after update or delete on trex.currency
for each row execute function trex._guard_fact();
create trigger guard_delete after delete on trex.instance
for each row execute function trex._guard_fact();

alter table trex.message enable always trigger guard_update;
alter table trex.message enable always trigger guard_delete;
alter table trex.message enable always trigger guard_truncate;
alter table trex.receipt enable always trigger guard_change;
alter table trex.receipt enable always trigger guard_truncate;
alter table trex.outcome enable always trigger guard_change;
alter table trex.outcome enable always trigger guard_truncate;
alter table trex.stale_report enable always trigger guard_change;
alter table trex.stale_report enable always trigger guard_truncate;
alter table trex.audit enable always trigger guard_change;
alter table trex.audit enable always trigger guard_truncate;
alter table trex.delivery enable always trigger guard_update;
alter table trex.delivery enable always trigger guard_delete;
alter table trex.delivery enable always trigger guard_truncate;
alter table trex.ledger_snapshot enable always trigger guard_update;
alter table trex.ledger_snapshot enable always trigger guard_delete;
alter table trex.ledger_snapshot enable always trigger guard_truncate;
alter table trex.epoch enable always trigger guard_update;
alter table trex.epoch enable always trigger guard_delete;
alter table trex.epoch enable always trigger guard_truncate;
alter table trex.quarantine enable always trigger guard_update;
alter table trex.quarantine enable always trigger guard_delete;
alter table trex.quarantine enable always trigger guard_truncate;
alter table trex.currency enable always trigger guard_change;
alter table trex.instance enable always trigger guard_delete;

insert into trex.schema_migration (name, checksum)
values ('0001.kernel', nullif(current_setting('trex.migration_checksum', true), ''));
