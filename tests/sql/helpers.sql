-- What every file under tests/sql may use. Message ids start at 1 in each fresh database.
create schema test;

grant usage on schema test to public;

create table test.held (nth bigint generated always as identity, message_id bigint, fence bigint);

create function test.put(
    p_count integer default 1,
    p_ordering_key text default null,
    p_policy text default 'idempotent',
    p_correlation_id text default null,
    p_instance text default 'shop',
    p_cash numeric default null,
    p_account text default 'acct'
)
returns setof bigint
language sql
as $$
select (trex.enqueue(
    p_instance, 'topic', 'key-' || gen_random_uuid(), '{"n": 1}', case when p_cash is not null then p_account end,
    case when p_cash is not null then 'USD' end, p_cash, p_correlation_id, p_ordering_key, p_policy
)).message_id
from generate_series(1, p_count)
$$;

-- Claims, and remembers the fences.
create function test.claim(
    p_limit integer default 100,
    p_lease interval default '30 seconds',
    p_instance text default 'shop',
    p_worker text default 'w',
    p_box text default 'outbox'
)
returns setof bigint
language plpgsql
as $$
declare
    v_claims trex.claimed [];
begin
    v_claims := array(select c from trex.claim(p_instance, p_worker, p_limit, p_lease, p_box) c);
    insert into test.held (message_id, fence) select c.message_id, c.fence from unnest(v_claims) c;
    return query select c.message_id from unnest(v_claims) c;
end
$$;

-- The fence of the nth claim of a message in this file; by default of its last one.
create function test.fence(p_message_id bigint, p_nth integer default null)
returns bigint
language sql
as $$
select h.fence
from test.held h
where h.message_id = p_message_id
order by case when p_nth is null then h.nth end desc, h.nth
limit 1
offset coalesce(p_nth, 1) - 1
$$;

-- An inbox message, as receive will store it.
create function test.put_inbox(p_instance text default 'shop')
returns bigint
language plpgsql
as $$
declare
    v_id bigint := nextval('trex.message_id_seq');
begin
    insert into trex.message (
        instance_key, message_id, box, topic, idempotency_key, payload, digest, effect_policy, enqueued_at
    )
    values (p_instance, v_id, 'inbox', 'event', 'in-' || v_id, '{}', sha256('{}'), 'idempotent', trex._now());
    insert into trex.delivery (instance_key, message_id, box) values (p_instance, v_id, 'inbox');
    return v_id;
end
$$;

-- Parks message ids as they are claimed now: dead_letter, permanent, conflict or unknown.
create function test.park(p_message_id bigint, p_as text)
returns text
language sql
as $$
select r.state
from trex.record(
    'shop', array[p_message_id], array[test.fence(p_message_id)], array[p_as], p_park => array[p_as = 'unknown']
) r
$$;

-- A fingerprint of everything that trex has stored.
create function test.everything()
returns text
language sql
as $$
select md5(concat(
    (select string_agg(t::text, ',' order by t::text) from trex.message t),
    (select string_agg(t::text, ',' order by t::text) from trex.delivery t),
    (select string_agg(t::text, ',' order by t::text) from trex.receipt t),
    (select string_agg(t::text, ',' order by t::text) from trex.outcome t),
    (select string_agg(t::text, ',' order by t::text) from trex.stale_report t),
    (select string_agg(t::text, ',' order by t::text) from trex.ledger_snapshot t),
    (select string_agg(t::text, ',' order by t::text) from trex.ledger_skip t),
    (select string_agg(t::text, ',' order by t::text) from trex.audit t),
    (select string_agg(t::text, ',' order by t::text) from trex.instance t),
    (select string_agg(t::text, ',' order by t::text) from trex.binding t)
))
$$;

create table test.saved (fingerprint text);

create function test.save()
returns void
language sql
as $$
delete from test.saved;
insert into test.saved select test.everything();
$$;

create function test.unchanged()
returns boolean
language sql
as $$
select s.fingerprint = test.everything() from test.saved s
$$;

-- `shop` is everybody's, `other` belongs to nobody but the superuser of the tests, `sealed` to nobody at all.
select trex.register_instance(i.name, 'tests', 'set-up')
from unnest(array['shop', 'other', 'sealed']) i (name);

select trex.bind('shop', r.name, 'tests', 'set-up')
from unnest(array[
    session_user::text, 'trex_test_app', 'trex_test_worker', 'trex_test_operator', 'trex_test_reader'
]) r (name);

select trex.bind('other', session_user::text, 'tests', 'set-up');
