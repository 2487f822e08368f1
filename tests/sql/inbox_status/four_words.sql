-- criterion: ac-0055
select r.status = 'received' from trex.receive('shop', 'p', 'a', 'e', 't', null, '', '{}') r;

-- as: reader
select s.status = 'received', s.state = 'ready' from trex.inbox_status('shop', 1) s;

select test.claim(p_box => 'inbox') = 1;
select s.status = 'processing' from trex.inbox_status('shop', p_provider => 'p', p_account => 'a', p_event_id => 'e') s;

select r.state = 'delivered' from trex.complete('shop', 1, test.fence(1)) r;
select s.status = 'processed', s.processed_at is not null from trex.inbox_status('shop', 1) s;

-- expect: TX404
select trex.inbox_status('shop', 2);
select trex.inbox_status('other', 1);

-- expect: TX400
select trex.inbox_status('shop');
select trex.inbox_status('shop', 1, 'p', 'a', 'e');
