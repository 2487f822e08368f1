select test.put_inbox() = 1;
select test.claim(p_box => 'inbox') = 1;
select r.state = 'permanent' from trex.fail('shop', 1, test.fence(1), 'not_found') r;

select p.box = 'inbox', p.reason = 'not_found', p.parked_at = trex._now() from trex.list_parked('shop', p_box => 'inbox') p;

-- It is no movement, so nothing is skipped.
select count(*) = 0 from trex.ledger_skip;
