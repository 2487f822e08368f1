-- depends: 0003.operations
set local role trex_owner;
set local lock_timeout = '500ms';
set local search_path = pg_catalog, pg_temp;

-- What was ordered: the other half of a grant. Written by the shop before the provider is asked.
create table trex.order_invoice (
    instance_key trex.instance_key not null,
    account trex.key not null,
    invoice_id trex.key not null,
    order_id trex.key not null,
    seller trex.key not null,
    buyer trex.key not null,
    item trex.key not null,
    amount numeric not null check (amount >= 0 and amount < 'Infinity'),
    currency text collate "C" not null,
    uses_max integer check (uses_max > 0),
    devices_max integer check (devices_max > 0),
    valid_for interval check (valid_for > '0'),
    registered_at timestamptz not null,
    primary key (instance_key, account, invoice_id)
);

-- What the provider said each time it was asked and said something new.
create table trex.payment (
    instance_key trex.instance_key not null,
    account trex.key not null,
    invoice_id trex.key not null,
    asked bigint not null check (asked > 0),
    status trex.topic not null,
    message_id bigint,
    asked_at timestamptz not null,
    primary key (instance_key, account, invoice_id, asked)
);

create table trex.refund (
    instance_key trex.instance_key not null,
    account trex.key not null,
    refund_id trex.key not null,
    invoice_id trex.key not null,
    amount numeric not null check (amount > 0 and amount < 'Infinity'),
    currency text collate "C" not null,
    message_id bigint not null,
    refunded_at timestamptz not null,
    primary key (instance_key, account, refund_id)
);

create index refund_invoice on trex.refund (instance_key, account, invoice_id)
where invoice_id is not null;

create table trex.entitlement (
    instance_key trex.instance_key not null,
    entitlement_id trex.key not null,
    account trex.key not null,
    invoice_id trex.key not null,
    order_id trex.key not null,
    seller trex.key not null,
    buyer trex.key not null,
    item trex.key not null,
    state text collate "C" not null
    check (state in ('active', 'cancelled', 'expired', 'refunded', 'revoked')),
    version bigint not null check (version > 0),
    granted_at timestamptz not null,
    valid_until timestamptz,
    changed_at timestamptz not null,
    primary key (instance_key, entitlement_id)
) with (fillfactor = 80);

create index entitlement_invoice on trex.entitlement (instance_key, account, invoice_id)
where invoice_id is not null;
create index entitlement_expiry on trex.entitlement (instance_key, valid_until, entitlement_id)
where state = 'active' and valid_until is not null;
create index entitlement_account on trex.entitlement (instance_key, account, entitlement_id)
where account is not null;
create index entitlement_seller
on trex.entitlement (instance_key, account, seller, entitlement_id)
where account is not null;

create table trex.licence (
    instance_key trex.instance_key not null,
    licence_id trex.key not null,
    entitlement_id trex.key not null,
    account trex.key not null,
    seller trex.key not null,
    uses_max integer,
    devices_max integer,
    issued_at timestamptz not null,
    primary key (instance_key, licence_id)
);

create table trex.subscription (
    instance_key trex.instance_key not null,
    account trex.key not null,
    subscription_id trex.key not null,
    invoice_id trex.key not null,
    status text collate "C" not null
    check (status in ('active', 'past_due', 'cancelled', 'expired')),
    period_end timestamptz not null,
    version bigint not null check (version > 0),
    asked_at timestamptz not null,
    primary key (instance_key, account, subscription_id)
) with (fillfactor = 80);

create table trex.capability (
    instance_key trex.instance_key not null,
    capability_id trex.key not null,
    licence_id trex.key not null,
    subject trex.key not null,
    issued_at timestamptz not null,
    expires_at timestamptz not null,
    consumed_by trex.key,
    consumed_at timestamptz,
    primary key (instance_key, capability_id),
    check ((consumed_by is null) = (consumed_at is null))
) with (fillfactor = 80);

create table trex.license_usage (
    instance_key trex.instance_key not null,
    usage_id trex.key not null,
    capability_id trex.key not null,
    licence_id trex.key not null,
    account trex.key not null,
    seller trex.key not null,
    subject trex.key not null,
    used_at timestamptz not null,
    primary key (instance_key, usage_id)
);

create unique index license_usage_capability on trex.license_usage (instance_key, capability_id)
where capability_id is not null;
create index license_usage_licence on trex.license_usage (instance_key, licence_id, used_at)
where licence_id is not null;
create index license_usage_account on trex.license_usage (instance_key, account, usage_id)
where account is not null;
create index license_usage_seller on trex.license_usage (instance_key, account, seller, usage_id)
where account is not null;

-- period is `all`, or a month as YYYY-MM in UTC.
create table trex.usage_counter (
    instance_key trex.instance_key not null,
    licence_id trex.key not null,
    period text collate "C" not null check (period ~ '^(all|[0-9]{4}-[0-9]{2})$'),
    account trex.key not null,
    seller trex.key not null,
    uses bigint not null check (uses > 0),
    counted_at timestamptz not null,
    primary key (instance_key, licence_id, period)
) with (fillfactor = 60);

create index usage_counter_account
on trex.usage_counter (instance_key, account, (licence_id || ':' || period))
where account is not null;
create index usage_counter_seller
on trex.usage_counter (instance_key, account, seller, (licence_id || ':' || period))
where account is not null;

-- A device is known by the thumbprint of its key, never by the key.
create table trex.device_binding (
    instance_key trex.instance_key not null,
    licence_id trex.key not null,
    thumbprint trex.key not null,
    account trex.key not null,
    seller trex.key not null,
    bound_at timestamptz not null,
    primary key (instance_key, licence_id, thumbprint)
);

create index device_binding_account
on trex.device_binding (instance_key, account, (licence_id || ':' || thumbprint))
where account is not null;
create index device_binding_seller
on trex.device_binding (instance_key, account, seller, (licence_id || ':' || thumbprint))
where account is not null;

create table trex.security_event (
    instance_key trex.instance_key not null,
    capability_id trex.key not null,
    kind text collate "C" not null check (
        kind in (
            'consumed', 'device_unknown', 'exhausted', 'expired', 'not_active', 'other_subject'
        )
    ),
    usage_id trex.key not null,
    licence_id trex.key not null,
    account trex.key not null,
    seller trex.key not null,
    subject trex.key not null,
    seen_at timestamptz not null,
    primary key (instance_key, capability_id, kind, usage_id)
);

create index security_event_account
on trex.security_event (
    instance_key, account,
    (length(capability_id)::text || ':' || capability_id || ':' || kind || ':' || usage_id)
)
where account is not null;
create index security_event_seller
on trex.security_event (
    instance_key, account, seller,
    (length(capability_id)::text || ':' || capability_id || ':' || kind || ':' || usage_id)
)
where account is not null;

create type trex.finalized as (
    status text,
    operation_id text,
    entitlement_id text,
    licence_id text,
    entitlement_state text,
    message_state text
);

create type trex.capability_issued as (
    capability_id text,
    status text,
    licence_id text,
    expires_at timestamptz
);

create type trex.executed as (
    usage_id text,
    status text,
    licence_id text,
    used_at timestamptz,
    total bigint,
    month bigint
);

create type trex.entitlement_line as (
    id text,
    account text,
    invoice_id text,
    order_id text,
    seller text,
    buyer text,
    item text,
    state text,
    version bigint,
    granted_at timestamptz,
    valid_until timestamptz
);

create type trex.usage_line as (
    id text,
    licence_id text,
    account text,
    seller text,
    subject text,
    used_at timestamptz
);

create type trex.counter_line as (
    id text,
    licence_id text,
    period text,
    account text,
    seller text,
    uses bigint
);

create type trex.device_line as (
    id text,
    licence_id text,
    thumbprint text,
    account text,
    seller text,
    bound_at timestamptz
);

create type trex.security_line as (
    id text,
    kind text,
    licence_id text,
    account text,
    seller text,
    subject text,
    seen_at timestamptz
);

create function trex._guard_authority() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'TX902', message = 'functions need a replay';
end
$$;

create trigger guard_change after update or delete on trex.order_invoice
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.order_invoice
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.payment
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.payment
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.refund
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.refund
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.licence
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.licence
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.license_usage
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.license_usage
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.device_binding
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.device_binding
for each statement execute function trex._guard_fact();

create trigger guard_change after update or delete on trex.security_event
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.security_event
for each statement execute function trex._guard_fact();

-- A right ends once and never comes back; a capability is consumed once; counters rise by one.
create trigger guard_update after update on trex.entitlement
for each row when (
    old.state <> 'active'
    or new.state = 'active'
    or new.version <> old.version + 1
    or (
        new.instance_key, new.entitlement_id, new.account, new.invoice_id, new.order_id, new.seller,
        new.buyer, new.item, new.granted_at
    )
    is distinct from (
        old.instance_key, old.entitlement_id, old.account, old.invoice_id, old.order_id, old.seller,
        old.buyer, old.item, old.granted_at
    )
)
execute function trex._guard_authority();
create trigger guard_delete after delete on trex.entitlement
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.entitlement
for each statement execute function trex._guard_fact();

create trigger guard_update after update on trex.subscription
for each row when (
    new.version <> old.version + 1
    or new.asked_at <= old.asked_at
    or (new.instance_key, new.account, new.subscription_id)
    is distinct from (old.instance_key, old.account, old.subscription_id)
)
execute function trex._guard_authority();
create trigger guard_delete after delete on trex.subscription
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.subscription
for each statement execute function trex._guard_fact();

create trigger guard_update after update on trex.capability
for each row when (
    old.consumed_by is not null
    or new.consumed_by is null
    or (
        new.instance_key, new.capability_id, new.licence_id, new.subject, new.issued_at,
        new.expires_at
    )
    is distinct from (
        old.instance_key, old.capability_id, old.licence_id, old.subject, old.issued_at,
        old.expires_at
    )
)
execute function trex._guard_authority();
create trigger guard_delete after delete on trex.capability
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.capability
for each statement execute function trex._guard_fact();

create trigger guard_update after update on trex.usage_counter
for each row when (
    new.uses <> old.uses + 1
    or (new.instance_key, new.licence_id, new.period)
    is distinct from (old.instance_key, old.licence_id, old.period)
)
execute function trex._guard_authority();
create trigger guard_delete after delete on trex.usage_counter
for each row execute function trex._guard_fact();
create trigger guard_truncate before truncate on trex.usage_counter
for each statement execute function trex._guard_fact();

alter table trex.order_invoice enable always trigger guard_change;
alter table trex.order_invoice enable always trigger guard_truncate;
alter table trex.payment enable always trigger guard_change;
alter table trex.payment enable always trigger guard_truncate;
alter table trex.refund enable always trigger guard_change;
alter table trex.refund enable always trigger guard_truncate;
alter table trex.licence enable always trigger guard_change;
alter table trex.licence enable always trigger guard_truncate;
alter table trex.license_usage enable always trigger guard_change;
alter table trex.license_usage enable always trigger guard_truncate;
alter table trex.device_binding enable always trigger guard_change;
alter table trex.device_binding enable always trigger guard_truncate;
alter table trex.security_event enable always trigger guard_change;
alter table trex.security_event enable always trigger guard_truncate;
alter table trex.entitlement enable always trigger guard_update;
alter table trex.entitlement enable always trigger guard_delete;
alter table trex.entitlement enable always trigger guard_truncate;
alter table trex.subscription enable always trigger guard_update;
alter table trex.subscription enable always trigger guard_delete;
alter table trex.subscription enable always trigger guard_truncate;
alter table trex.capability enable always trigger guard_update;
alter table trex.capability enable always trigger guard_delete;
alter table trex.capability enable always trigger guard_truncate;
alter table trex.usage_counter enable always trigger guard_update;
alter table trex.usage_counter enable always trigger guard_delete;
alter table trex.usage_counter enable always trigger guard_truncate;

insert into trex.schema_migration (name, checksum)
values ('0004.authority', nullif(current_setting('trex.migration_checksum', true), ''));
