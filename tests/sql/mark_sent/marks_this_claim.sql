-- criterion: ac-0034
select test.put(1, p_policy => 'at_most_once');
select test.claim() = 1;

select m.status = 'recorded', m.state = 'leased', not m.late from trex.mark_sent('shop', 1, test.fence(1)) m;
select d.sent_fence = test.fence(1), not d.uncertain from trex.delivery d;
select m.status = 'already_recorded' from trex.mark_sent('shop', 1, test.fence(1)) m;
