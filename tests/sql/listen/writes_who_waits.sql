select trex.listen('shop', 'w', '1 minute') = 'trex_' || md5('shop');
select l.until = trex._now() + interval '1 minute', l.worker = 'w' from trex.listener l;

-- A new call sets a new end.
select trex.listen('shop', 'w', '1 second') is not null;
select count(*) = 1, max(l.until) = trex._now() + interval '1 second' from trex.listener l;

-- Those who are gone for long are removed by those who come.
-- clock: 2 hours
select trex.listen('shop', 'w2', '1 minute') is not null;

select l.worker = 'w2' from trex.listener l;
