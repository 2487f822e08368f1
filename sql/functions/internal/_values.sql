-- The rules for values, each in one place; null in, null out, so callers test `is not true`.
-- Blanks and control characters are listed by code point: classes such as [[:space:]] depend on
-- the locale.
create or replace function trex._is_slug(p_value text)
returns boolean
language sql
immutable
parallel safe
security invoker
as $$
select length(p_value) <= 63 and p_value ~ '^[a-z0-9][a-z0-9._:-]*$'
$$;

create or replace function trex._is_key(p_value text)
returns boolean
language sql
immutable
parallel safe
security invoker
as $$
select
    length(p_value) between 1 and 255
    and p_value !~ '[\u0001-\u001F\u007F-\u009F]|^[\u0020\u00A0\u1680\u2000-\u200D\u2028\u2029\u202F\u205F\u2060\u3000\uFEFF]|[\u0020\u00A0\u1680\u2000-\u200D\u2028\u2029\u202F\u205F\u2060\u3000\uFEFF]$'
$$;

create or replace function trex._is_text(p_value text)
returns boolean
language sql
immutable
parallel safe
security invoker
as $$
select
    length(p_value) between 1 and 1000
    and p_value !~ '[\u0001-\u001F\u007F-\u009F]|^[\u0020\u00A0\u1680\u2000-\u200D\u2028\u2029\u202F\u205F\u2060\u3000\uFEFF]*$'
$$;

create or replace function trex._is_reason(p_value text)
returns boolean
language sql
immutable
parallel safe
security invoker
as $$
select p_value in (
    'adapter_error', 'attempts_exhausted', 'connect_failed', 'connection_lost', 'consumer:none',
    'expired', 'handler_error', 'host_not_allowed', 'in_progress', 'invalid_request',
    'key_conflict', 'lease_expired', 'lookup_absent', 'lookup_failed', 'lookup_unsupported',
    'no_order', 'not_found', 'not_paid', 'not_started', 'operator', 'provider_unreachable',
    'rate_limited', 'redirected', 'rejected', 'response_invalid', 'response_too_large',
    'server_error', 'shutdown', 'stale_version', 'timeout', 'tls_failed', 'unauthorized',
    'unavailable', 'unspecified', 'unsupported_policy', 'waiting', 'write_back_failed'
)
$$;

-- A duration has no months (a month has no length) and is finite: infinity (17 and later) is
-- above every maximum.
create or replace function trex._is_duration(p_value interval, p_least interval, p_most interval)
returns boolean
language sql
immutable
parallel safe
security invoker
as $$
select
    p_value between p_least and p_most
    and extract(year from p_value) = 0
    and extract(month from p_value) = 0
$$;

-- The same duration without days: a day added to a time is 23 or 25 hours long when the
-- session's time zone changes its clocks.
create or replace function trex._span(p_value interval)
returns interval
language sql
immutable
parallel safe
security invoker
as $$
select (extract(epoch from p_value) * 1000000)::bigint * interval '1 microsecond'
$$;

-- An amount fits its currency when rounding to the currency's decimals changes nothing and 38
-- digits are enough.
create or replace function trex._is_amount(p_value numeric, p_exponent integer)
returns boolean
language sql
immutable
parallel safe
security invoker
as $$
select case
    when p_value > '-Infinity' and p_value < 'Infinity'
        then abs(p_value) < power(10::numeric, 38 - p_exponent) and round(p_value, p_exponent) = p_value
    else p_value is null and null
end
$$;
