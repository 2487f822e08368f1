select trex.listen('shop', 'w1', '1 minute'), trex.listen('shop', 'w2', '1 minute');
select trex.unlisten('shop', 'w1');
select l.worker = 'w2' from trex.listener l;
select trex.unlisten('shop', 'nobody');
select count(*) = 1 from trex.listener;

-- expect: TX400
select trex.unlisten('', 'w');
select trex.unlisten('shop', null);
select trex.unlisten('shop', '');
