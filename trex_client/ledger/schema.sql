-- A small double-entry ledger, for the demo and the tests, in a database of its own.
--
-- A posting is known by its key. Key, entries and balance are written in one transaction. A call
-- with a lower fence than one seen before for the same key is refused. Every call leaves a row in
-- ledger.call.

create schema if not exists ledger;

create table if not exists ledger.account (
    account text collate "C" not null,
    currency text collate "C" not null,
    balance numeric not null default 0,
    version bigint not null default 0,
    primary key (account, currency)
);

create table if not exists ledger.idempotency_key (
    key text collate "C" primary key,
    highest_fence bigint not null
);

create table if not exists ledger.posting (
    key text collate "C" primary key,
    reference text not null unique,
    digest bytea not null,
    fence bigint not null,
    posted_at timestamptz not null default clock_timestamp()
);

-- Two entries for each posting: the account, and the outside world. They sum to zero.
create table if not exists ledger.entry (
    key text collate "C" not null references ledger.posting,
    side text not null check (side in ('account', 'world')),
    account text collate "C" not null,
    currency text collate "C" not null,
    amount numeric not null,
    primary key (key, side)
);

create table if not exists ledger.call (
    call_id bigint generated always as identity primary key,
    key text collate "C" not null,
    fence bigint not null,
    attempt integer not null,
    result text not null,
    at timestamptz not null default clock_timestamp()
);

create index if not exists call_key on ledger.call (key);

-- What the function shall answer for a key instead of posting it: planted by tests and by the demo.
create table if not exists ledger.fault (
    key text collate "C" primary key,
    result text not null check (result in ('refused', 'conflict', 'retry')),
    times integer not null default 2147483647
);

-- Posts once per key. result: posted, duplicate (same key and content), conflict (same key, other
-- content), refused (never will be posted), retry, stale_fence (a higher fence was seen). balance
-- and version: the account after the posting, and for a duplicate as it is now. Without account,
-- currency and amount only the key is kept.
create or replace function ledger.post(
    key text,
    fence bigint,
    attempt integer,
    topic text,
    account text,
    currency text,
    amount numeric,
    payload jsonb,
    out result text,
    out reference text,
    out balance numeric,
    out version bigint
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_digest bytea := sha256(convert_to(
        jsonb_build_array($4, $5, $6, trim_scale($7)::text, $8)::text, 'UTF8'
    ));
    v_posting ledger.posting;
    v_highest bigint;
begin
    -- One call per key at a time; a look-up waits for it too.
    perform pg_advisory_xact_lock(hashtextextended($1, 7420));
    insert into ledger.idempotency_key as k (key, highest_fence) values ($1, $2)
    on conflict (key) do update set highest_fence = greatest(k.highest_fence, excluded.highest_fence)
    returning highest_fence into v_highest;

    select p.* into v_posting from ledger.posting as p where p.key = $1;
    update ledger.fault as f set times = f.times - 1
    where f.key = $1 and f.times > 0 and v_posting.key is null
    returning f.result into result;

    if $2 < v_highest then
        result := 'stale_fence';
    elsif result is not null then
        null;
    elsif v_posting.key is not null and v_posting.digest = v_digest then
        result := 'duplicate';
        reference := v_posting.reference;
    elsif v_posting.key is not null then
        result := 'conflict';
    else
        result := 'posted';
        insert into ledger.posting as p (key, reference, digest, fence)
        values ($1, 'posting-' || left($1, 16), v_digest, $2)
        returning p.reference into reference;
        if $5 is not null then
            insert into ledger.entry (key, side, account, currency, amount)
            values ($1, 'account', $5, $6, $7), ($1, 'world', 'world', $6, -$7);
            insert into ledger.account as a (account, currency, balance, version)
            values ($5, $6, $7, 1)
            on conflict (account, currency) do update
            set balance = a.balance + excluded.balance, version = a.version + 1
            returning a.balance, a.version into balance, version;
        end if;
    end if;
    if result = 'duplicate' and $5 is not null then
        select a.balance, a.version into balance, version
        from ledger.account as a where a.account = $5 and a.currency = $6;
    end if;
    insert into ledger.call (key, fence, attempt, result) values ($1, $2, $3, result);
end
$$;

-- What is booked under a key, nulls where it moves no cash: the caller compares it with its own.
drop function if exists ledger.lookup(text);
create function ledger.lookup(
    key text,
    out found boolean,
    out reference text,
    out balance numeric,
    out version bigint,
    out account text,
    out currency text,
    out amount numeric
)
language sql volatile
as $$
    select pg_advisory_xact_lock(hashtextextended($1, 7420));
    insert into ledger.call (key, fence, attempt, result) values ($1, 0, 0, 'lookup');
    select p.key is not null, p.reference, a.balance, a.version, e.account, e.currency, e.amount
    from (values ($1)) as asked (key)
    left join ledger.posting as p on p.key = asked.key
    left join ledger.entry as e on e.key = p.key and e.side = 'account'
    left join ledger.account as a on a.account = e.account and a.currency = e.currency;
$$;
