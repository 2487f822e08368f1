-- A parked outbox message is a movement that the ledger doesn't have, or may not have.
create or replace function trex._open_skips(
    p_instance_key text,
    p_message_ids bigint[],
    p_parked text[],
    p_reasons text[],
    p_now timestamptz
)
returns void
language sql
volatile
security invoker
as $$
insert into trex.ledger_skip as s (
    instance_key, message_id, account, currency, cash_delta, parked, reason, opened_at
)
select p_instance_key, m.message_id, m.account, m.currency, m.cash_delta, u.parked, u.reason, p_now
from unnest(p_message_ids, p_parked, p_reasons) u (message_id, parked, reason)
cross join lateral (
    select w.*
    from trex.message w
    where w.instance_key = p_instance_key and w.message_id = u.message_id
    limit 1
) m
where m.box = 'outbox' and u.parked is not null
order by m.message_id
on conflict (instance_key, message_id) do update
set parked = excluded.parked, reason = excluded.reason, opened_at = excluded.opened_at,
    resolved_at = null, resolved_fence = null
$$;
