-- criterion: ac-0055
-- as: app
-- expect: TX403
select trex.receive('other', 'p', 'a', 'e', 't', null, '', '{}');
select trex.receive('nobody', 'p', 'a', 'e', 't', null, '', '{}');

-- as: worker
-- expect: 42501
select trex.receive('shop', 'p', 'a', 'e', 't', null, '', '{}');

-- as: app
-- expect: TX400
select trex.receive('shop', 'p', null, 'e', 't', null, '', '{}');
select trex.receive('shop', 'p', 'a', '', 't', null, '', '{}');
select trex.receive('shop', 'p', 'a', 'e', 't', null, null, '{}');
select trex.receive('shop', 'p', 'a', 'e', 't', null, '', null);
