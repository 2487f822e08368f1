-- A fence that PostgreSQL may forget after acknowledging it must not be given out.
set synchronous_commit = off;

begin;

select count(*) = 0 from trex.claim('shop', 'w');
select current_setting('synchronous_commit') = 'on';

commit;

select current_setting('synchronous_commit') = 'off';
