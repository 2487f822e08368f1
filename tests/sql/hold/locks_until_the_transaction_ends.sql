-- criterion: ac-0029
select test.put(2);
select count(*) = 2 from test.claim();
select test.fence(1) > 0;

begin;

select h.status = 'recorded', h.state = 'leased', not h.late from trex.hold('shop', 1, test.fence(1), '1500 ms') h;
select current_setting('idle_in_transaction_session_timeout') = '1500ms';
select r.status = 'recorded' from trex.complete('shop', 1, test.fence(1)) r;

commit;

-- The timeout was for that transaction.
select current_setting('idle_in_transaction_session_timeout') = '0';

-- A late holder that nobody superseded may go on. Nobody can take its claim over meanwhile.
-- clock: 30 seconds
begin;
select h.status = 'recorded', h.state = 'lease_ended', h.late from trex.hold('shop', 2, test.fence(2)) h;

-- as: worker
-- expect: no rows
select * from trex.claim('shop', 'w2');

commit;

-- as: worker
select c.message_id = 2 from trex.claim('shop', 'w2') c;

-- expect: TX409
select * from trex.hold('shop', 2, test.fence(2));

-- expect: TX410
select * from trex.hold('shop', 1, test.fence(1));

-- expect: TX404
select * from trex.hold('shop', 3, 1);
select * from trex.hold('other', 2, 1);
