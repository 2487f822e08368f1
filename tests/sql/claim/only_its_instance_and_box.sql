-- criterion: ac-0029
select test.put(1, p_instance => 'other') = 1;
select test.put(1) = 2;
select test.put_inbox() = 3;

select array_agg(c.message_id) = array[2]::bigint [] from trex.claim('shop', 'w', 10) c;
select array_agg(c.message_id) = array[3]::bigint [], bool_and(c.box = 'inbox') from trex.claim('shop', 'w', 10, p_box => 'inbox') c;
select array_agg(c.message_id) = array[1]::bigint [] from trex.claim('other', 'w', 10) c;
