-- What is wrong with one movement, as a hint of constant text; null when nothing is. The
-- payload's size is the instance's policy and is checked by the caller. p_exponent: the decimals of
-- p_currency, null when it isn't registered. Plain SQL, so that a batch has it inlined.
create or replace function trex._movement_hint(
    p_topic text,
    p_idempotency_key text,
    p_payload jsonb,
    p_account text,
    p_currency text,
    p_cash_delta numeric,
    p_correlation_id text,
    p_ordering_key text,
    p_effect_policy text,
    p_delay interval,
    p_exponent integer
)
returns text
language sql
immutable
parallel safe
security invoker
as $$
select case
    when trex._is_slug(p_topic) is not true then 'topic: 1 to 63 of a-z 0-9 . _ : -'
    when trex._is_key(p_idempotency_key) is not true
        then 'idempotency_key: 1 to 255 characters, no control characters, no blanks at the ends'
    when p_payload is null then 'payload: required'
    when trex._is_key(p_account) is false then 'account: a key'
    when num_nulls(p_account, p_currency, p_cash_delta) not in (0, 3)
        then case when p_account is null then 'account' when p_currency is null then 'currency' else 'cash_delta' end
            || ': all of account, currency and cash_delta, or none'
    when p_cash_delta is not null and p_exponent is null then 'currency: registered'
    when p_cash_delta is not null and trex._is_amount(p_cash_delta, p_exponent) is not true
        then 'cash_delta: finite, at most 38 digits, in the decimals of its currency'
    when trex._is_key(p_correlation_id) is false then 'correlation_id: a key'
    when trex._is_key(p_ordering_key) is false then 'ordering_key: a key'
    when p_effect_policy is null or p_effect_policy not in ('idempotent', 'lookup', 'at_most_once')
        then 'effect_policy: idempotent, lookup or at_most_once'
    when p_delay is not null and trex._is_duration(p_delay, '0', '720 hours') is not true
        then 'delay: from 0 to 30 days, without months'
end
$$;

create or replace function trex._check_movement(
    p_topic text,
    p_idempotency_key text,
    p_payload jsonb,
    p_account text,
    p_currency text,
    p_cash_delta numeric,
    p_correlation_id text,
    p_ordering_key text,
    p_effect_policy text,
    p_delay interval
)
returns text
language plpgsql
stable
parallel safe
security invoker
as $$
declare
    v_exponent integer;
begin
    if p_currency is not null then
        select c.exponent into v_exponent from trex.currency c where c.currency = p_currency;
    end if;
    return trex._movement_hint(
        p_topic, p_idempotency_key, p_payload, p_account, p_currency, p_cash_delta, p_correlation_id,
        p_ordering_key, p_effect_policy, p_delay, v_exponent
    );
end
$$;
