-- criterion: ac-0029
select test.put(2, p_cash => 5);
select test.claim() > 0;

-- clock: 30 seconds
select test.claim() > 0;

create table test.before as
select d.*, (select count(*) from trex.outcome) as ends from trex.delivery d;

-- The first holder, a fence that was never given out, and a fence of another message.
select bool_and(r.status = 'claim_lost'), bool_and(r.state is null), bool_and(r.due_at is null), count(*) = 2
from trex.record(
    'shop', array[1, 2], array[test.fence(1, 1), 12345], array['completed', 'retry'], p_balances => array[1, null],
    p_versions => array[1, null]
) r;
select r.status = 'claim_lost' from trex.record('shop', array[1], array[test.fence(2, 1)], array['retry']) r;

select count(*) = 1, bool_and(s.message_id = 1), bool_and(s.fence = test.fence(1, 1)), bool_and(s.result = 'completed')
from trex.stale_report s;
select not exists (
    select b.* from test.before b
    except
    select d.*, (select count(*) from trex.outcome) from trex.delivery d
);
select count(*) = 0 from trex.receipt;
select count(*) = 0 from trex.ledger_snapshot;

-- Reported once more, kept once.
select r.status = 'claim_lost' from trex.record('shop', array[1], array[test.fence(1, 1)], array['completed']) r;
select count(*) = 1 from trex.stale_report;
