select test.put();
select test.claim() = 1;
select r.state = 'delivered' from trex.complete_duplicate('shop', 1, test.fence(1), 'ref', 'same_key') r;
select r.duplicate, r.confirmed_by = 'same_key', r.reference = 'ref' from trex.receipt r;
