-- The balance that the ledger reported, newest version per account and currency, in key order
-- after the delivery locks. An older or repeated answer never replaces a newer one; another
-- balance under the same version is counted for reconciliation. p_numbered: a refusal says of which
-- report, from 1.
create or replace function trex._store_snapshots(
    p_instance_key text,
    p_delivered bigint[],
    p_message_ids bigint[],
    p_fences bigint[],
    p_balances numeric[],
    p_versions bigint[],
    p_now timestamptz,
    p_numbered boolean
)
returns void
language plpgsql
volatile
security invoker
as $$
declare
    v_row record;
    v_old trex.ledger_snapshot;
begin
    for v_row in
        select m.message_id, m.account, m.currency, u.fence, u.version, round(u.balance, c.exponent) as balance,
            min(u.ord) filter (where trex._is_amount(u.balance, c.exponent) is not true) over () as bad
        from unnest(p_message_ids, p_fences, p_balances, p_versions) with ordinality
            u (message_id, fence, balance, version, ord)
        cross join lateral (
            select w.*
            from trex.message w
            where w.instance_key = p_instance_key and w.message_id = u.message_id
            limit 1
        ) m
        left join trex.currency c on c.currency = m.currency
        where u.message_id = any(p_delivered) and u.version is not null
        order by m.account collate "C", m.currency collate "C", u.version, m.message_id
    loop
        if v_row.bad is not null then
            perform trex._raise(
                'TX400',
                case when p_numbered then 'report ' || v_row.bad || ': ' else '' end
                || 'balance: only for a message with cash, finite, in the decimals of its currency'
            );
        end if;
        insert into trex.ledger_snapshot (
            instance_key, account, currency, balance, version, message_id, fence, stored_at
        )
        values (
            p_instance_key, v_row.account, v_row.currency, v_row.balance, v_row.version, v_row.message_id,
            v_row.fence, p_now
        )
        on conflict (instance_key, account, currency) do nothing;
        if not found then
            select s.* into v_old from trex.ledger_snapshot s
            where s.instance_key = p_instance_key and s.account = v_row.account and s.currency = v_row.currency
            for no key update;
            if v_row.version > v_old.version then
                update trex.ledger_snapshot s
                set balance = v_row.balance, version = v_row.version, message_id = v_row.message_id,
                    fence = v_row.fence, stored_at = p_now
                where s.instance_key = p_instance_key and s.account = v_row.account and s.currency = v_row.currency;
            elsif v_row.version < v_old.version then
                update trex.ledger_snapshot s set ignored = s.ignored + 1
                where s.instance_key = p_instance_key and s.account = v_row.account and s.currency = v_row.currency;
            elsif v_row.balance <> v_old.balance then
                update trex.ledger_snapshot s set contradicted = s.contradicted + 1
                where s.instance_key = p_instance_key and s.account = v_row.account and s.currency = v_row.currency;
            end if;
        end if;
    end loop;
end
$$;
