-- depends: 0002.inbox
set local role trex_owner;
set local lock_timeout = '500ms';
set local search_path = pg_catalog, pg_temp;

-- A machine is data: what was loaded, and the same as rows. A change is a new revision beside the
-- old ones, so what was decided under an older one can still be read.
create table trex.machine (
    instance_key trex.instance_key not null,
    machine trex.topic not null,
    revision integer not null check (revision > 0),
    definition jsonb not null,
    digest bytea not null check (length(digest) = 32),
    loaded_at timestamptz not null,
    primary key (instance_key, machine, revision)
);

create table trex.machine_state (
    instance_key trex.instance_key not null,
    machine trex.topic not null,
    revision integer not null,
    state trex.topic not null,
    owner trex.key,
    longest_stay interval check (longest_stay > '0'),
    next_action trex.key,
    alert trex.topic,
    final boolean not null,
    primary key (instance_key, machine, revision, state)
);

-- from_state '' is where an entity is before it exists.
create table trex.machine_transition (
    instance_key trex.instance_key not null,
    machine trex.topic not null,
    revision integer not null,
    from_state text collate "C" not null,
    event trex.topic not null,
    to_state trex.topic not null,
    roles jsonb not null check (jsonb_typeof(roles) = 'array'),
    amount_min numeric,
    amount_max numeric,
    topic trex.topic,
    effect_policy text collate "C" not null
    check (effect_policy in ('idempotent', 'lookup', 'at_most_once')),
    primary key (instance_key, machine, revision, from_state, event)
);

-- Where each entity is now. What led there is in operation.
create table trex.entity (
    instance_key trex.instance_key not null,
    machine trex.topic not null,
    entity trex.key not null,
    state trex.topic not null,
    version bigint not null check (version > 0),
    operation_id trex.key not null,
    since timestamptz not null,
    primary key (instance_key, machine, entity)
) with (fillfactor = 70);

create index entity_by_state on trex.entity (instance_key, machine, state, since, entity)
where state is not null;

-- One row for each logical operation that was done, under its business key.
create table trex.operation (
    instance_key trex.instance_key not null,
    operation_id trex.key not null,
    kind trex.topic not null,
    machine trex.topic,
    entity trex.key,
    event trex.topic,
    from_state text collate "C",
    to_state trex.topic,
    version bigint check (version > 0),
    actor trex.key not null,
    role trex.topic not null,
    amount numeric check (amount > '-Infinity' and amount < 'Infinity'),
    arguments jsonb not null,
    digest bytea not null check (length(digest) = 32),
    reason text not null,
    message_id bigint,
    done_at timestamptz not null,
    primary key (instance_key, operation_id),
    check (
        (kind = 'transition')
        = (num_nulls(machine, entity, event, from_state, to_state, version) = 0)
    )
);

create unique index operation_entity on trex.operation (instance_key, machine, entity, version)
where kind = 'transition';

-- Corrections of a done operation: it stays as it is, they are counted beside it.
create table trex.adjustment (
    instance_key trex.instance_key not null,
    adjustment_id trex.key not null,
    operation_id trex.key not null,
    version bigint not null check (version > 0),
    kind trex.topic not null,
    amount numeric not null check (amount > '-Infinity' and amount < 'Infinity'),
    balance numeric not null check (balance > '-Infinity' and balance < 'Infinity'),
    on_state text collate "C",
    on_version bigint,
    actor trex.key not null,
    role trex.topic not null,
    reason text not null,
    evidence text not null,
    digest bytea not null check (length(digest) = 32),
    adjusted_at timestamptz not null,
    primary key (instance_key, adjustment_id)
);

create unique index adjustment_operation on trex.adjustment (instance_key, operation_id, version)
where operation_id is not null;

create type trex.machine_cell as (
    state text,
    event text,
    to_state text,
    roles text [],
    amount_min numeric,
    amount_max numeric,
    topic text,
    owner text,
    longest_stay interval,
    next_action text,
    alert text,
    final boolean,
    revision integer
);

create type trex.transitioned as (
    entity text,
    status text,
    state text,
    version bigint,
    operation_id text,
    message_id bigint,
    done_at timestamptz
);

create type trex.entity_state as (
    machine text,
    entity text,
    state text,
    version bigint,
    operation_id text,
    since timestamptz,
    deadline timestamptz,
    owner text,
    next_action text,
    alert text,
    final boolean
);

create type trex.entity_step as (
    version bigint,
    operation_id text,
    event text,
    from_state text,
    to_state text,
    actor text,
    role text,
    amount numeric,
    reason text,
    message_id bigint,
    done_at timestamptz
);

create type trex.corrected as (
    adjustment_id text,
    status text,
    version bigint,
    balance numeric,
    on_state text,
    on_version bigint,
    adjusted_at timestamptz
);

create type trex.operation_line as (
    version bigint,
    kind text,
    id text,
    amount numeric,
    balance numeric,
    state text,
    entity_version bigint,
    actor text,
    role text,
    reason text,
    evidence text,
    at timestamptz
);

create type trex.effect_state as (
    message_id bigint,
    box text,
    topic text,
    effect text,
    reason text,
    attempts integer,
    uncertain boolean,
    since timestamptz,
    deadline timestamptz,
    owner text,
    next_action text,
    alert text
);

create type trex.overdue as (
    source text,
    machine text,
    entity text,
    message_id bigint,
    state text,
    since timestamptz,
    deadline timestamptz,
    owner text,
    next_action text,
    alert text
);

-- What is known of each message's effect, from the rows that say it. Derived here and nowhere else,
-- never stored. since: when it came into this state, or into the box where it goes back and forth
-- between trying and waiting.
create view trex.effect with (security_barrier) as
select
    m.instance_key,
    m.message_id,
    m.box,
    m.topic,
    case
        when r.message_id is not null then 'succeeded'
        when d.parked in ('conflict', 'permanent') then 'rejected'
        when d.parked = 'dead_letter' then 'failed'
        when d.parked = 'unknown' then 'unknown'
        when d.lease_until is not null then 'in_progress'
        when d.uncertain then 'unknown'
        when o.kind = 'postponed' then 'waiting'
        when o.kind in ('retry', 'dead_letter', 'permanent', 'conflict') then 'failed'
        else 'intent_recorded'
    end as effect,
    case when r.message_id is null then o.reason end as reason,
    coalesce(r.attempt, d.attempts) as attempts,
    coalesce(d.uncertain, false) as uncertain,
    case
        when r.message_id is not null then r.delivered_at
        when d.lease_until is null and (d.parked is not null or d.uncertain)
            then coalesce(o.recorded_at, m.enqueued_at)
        else m.enqueued_at
    end as since,
    d.lease_until
from trex.message as m
left join trex.delivery as d on m.instance_key = d.instance_key and m.message_id = d.message_id
left join trex.receipt as r on m.instance_key = r.instance_key and m.message_id = r.message_id
left join lateral (
    select
        e.kind,
        e.reason,
        e.recorded_at
    from trex.outcome as e
    where e.instance_key = m.instance_key and e.message_id = m.message_id
    order by e.fence desc
    limit 1
) as o on true;

create function trex._guard_entity() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create trigger guard_change after update or delete on trex.machine
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.machine
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.machine_state
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.machine_state
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.machine_transition
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.machine_transition
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.operation
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.operation
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.adjustment
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.adjustment
for each statement execute function trex._guard_fact();

-- An entity moves one version at a time and never goes.
create trigger guard_update after update on trex.entity
for each row when (
    new.instance_key <> old.instance_key
    or new.machine <> old.machine
    or new.entity <> old.entity
    or new.version <> old.version + 1
    or new.operation_id = old.operation_id
)
execute function trex._guard_entity();
create trigger guard_delete after delete on trex.entity
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.entity
for each statement execute function trex._guard_fact();

alter table trex.machine enable always trigger guard_change;
alter table trex.machine enable always trigger guard_truncate;
alter table trex.machine_state enable always trigger guard_change;
alter table trex.machine_state enable always trigger guard_truncate;
alter table trex.machine_transition enable always trigger guard_change;
alter table trex.machine_transition enable always trigger guard_truncate;
alter table trex.operation enable always trigger guard_change;
alter table trex.operation enable always trigger guard_truncate;
alter table trex.adjustment enable always trigger guard_change;
alter table trex.adjustment enable always trigger guard_truncate;
alter table trex.entity enable always trigger guard_update;
alter table trex.entity enable always trigger guard_delete;
alter table trex.entity enable always trigger guard_truncate;

insert into trex.schema_migration (name, checksum)
values ('0003.operations', nullif(current_setting('trex.migration_checksum', true), ''));
