-- depends: 0004.authority
set local role trex_owner;
set local lock_timeout = '500ms';
set local search_path = pg_catalog, pg_temp;

-- One walk through all checks, a page at a time: where it is, and what it has seen.
create table trex.reconcile_run (
    instance_key trex.instance_key not null,
    run_id bigint not null check (run_id > 0),
    state text collate "C" not null check (state in ('running', 'clean', 'findings', 'failed')),
    longest_stay interval not null,
    at_check integer not null check (at_check > 0),
    after text collate "C" not null,
    examined bigint not null default 0,
    found bigint not null default 0,
    fresh bigint not null default 0,
    repaired bigint not null default 0,
    failed_check text collate "C",
    failed_code text collate "C",
    actor trex.key not null,
    reason text not null,
    started_at timestamptz not null,
    finished_at timestamptz,
    primary key (instance_key, run_id),
    check ((state = 'running') = (finished_at is null)),
    check ((state = 'failed') = (failed_check is not null and failed_code is not null))
) with (fillfactor = 70);

-- A drift is one row, however many runs see it. ref_ids say what it is about.
create table trex.reconcile_finding (
    instance_key trex.instance_key not null,
    finding_id text collate "C" not null check (finding_id ~ '^[0-9a-f]{64}$'),
    type text collate "C" not null check (
        type in (
            'counter_drift', 'duplicate_issuance_per_payment', 'failed_or_stuck_outbox',
            'fence_gap', 'orphan_row', 'overdue_state', 'paid_no_entitlement',
            'refunded_but_valid_entitlement', 'skip_without_parked_row', 'snapshot_drift',
            'subscription_expired_but_renewed', 'unpaid_but_entitled', 'unprocessed_inbox_events'
        )
    ),
    ref_ids jsonb not null,
    expected text not null,
    actual text not null,
    causal_events jsonb not null,
    recoverable boolean not null,
    recommended_action text not null,
    state text collate "C" not null check (state in ('needs_review', 'repaired')),
    first_run bigint not null,
    last_run bigint not null,
    found_at timestamptz not null,
    seen_at timestamptz not null,
    primary key (instance_key, finding_id)
) with (fillfactor = 80);

create index reconcile_finding_run on trex.reconcile_finding (instance_key, last_run, finding_id);

create type trex.drift as (
    place text,
    type text,
    ref_ids jsonb,
    expected text,
    actual text,
    causal_events jsonb,
    recommended_action text,
    message_id bigint,
    fence bigint
);

create type trex.reconcile_report as (
    run_id bigint,
    state text,
    at_check text,
    examined bigint,
    found bigint,
    fresh bigint,
    repaired bigint,
    failed_check text,
    failed_code text,
    actor text,
    reason text,
    started_at timestamptz,
    finished_at timestamptz
);

create type trex.reconcile_line as (
    finding_id text,
    type text,
    ref_ids jsonb,
    expected text,
    actual text,
    causal_events jsonb,
    recoverable boolean,
    recommended_action text,
    state text,
    first_run bigint,
    last_run bigint,
    found_at timestamptz,
    seen_at timestamptz
);

create function trex._guard_reconcile() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

-- A finished run is a fact; a finding only learns of the last run that saw it.
create trigger guard_update after update on trex.reconcile_run
for each row when (old.state <> 'running')
execute function trex._guard_reconcile();
create trigger guard_delete after delete on trex.reconcile_run
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.reconcile_run
for each statement execute function trex._guard_fact();

create trigger guard_update after update on trex.reconcile_finding
for each row when (
    (new.type, new.ref_ids, new.expected, new.state, new.first_run, new.found_at)
    is distinct from (old.type, old.ref_ids, old.expected, old.state, old.first_run, old.found_at)
    or (new.instance_key, new.finding_id) is distinct from (old.instance_key, old.finding_id)
    or new.last_run < old.last_run
)
execute function trex._guard_reconcile();
create trigger guard_delete after delete on trex.reconcile_finding
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.reconcile_finding
for each statement execute function trex._guard_fact();

alter table trex.reconcile_run enable always trigger guard_update;
alter table trex.reconcile_run enable always trigger guard_delete;
alter table trex.reconcile_run enable always trigger guard_truncate;
alter table trex.reconcile_finding enable always trigger guard_update;
alter table trex.reconcile_finding enable always trigger guard_delete;
alter table trex.reconcile_finding enable always trigger guard_truncate;

insert into trex.schema_migration (name, checksum)
values ('0005.reconcile', nullif(current_setting('trex.migration_checksum', true), ''));
