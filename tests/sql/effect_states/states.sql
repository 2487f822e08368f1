-- criterion: ac-0057
select test.put(3);
select test.claim(2) is not null;
select r.state = 'delivered' from trex.complete('shop', 1, test.fence(1)) r;

-- as: reader
select array_agg(e.effect order by e.message_id) = array['succeeded', 'in_progress', 'intent_recorded'] from trex.effect_states('shop') e;
select e.message_id = 3, e.owner = 'worker' from trex.effect_states('shop', 'intent_recorded') e;

-- expect: TX400
select trex.effect_states('shop', 'lost');

-- as: reader
-- expect: TX403
select trex.effect_states('other');
