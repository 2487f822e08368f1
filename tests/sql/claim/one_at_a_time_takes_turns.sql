-- criterion: ac-0031
select test.put(10);
select test.claim(10) > 0;
select r.status = 'recorded' from generate_series(1, 10) n, trex.release('shop', n, test.fence(n)) r;
select test.put(10);

create table test.got (message_id bigint);

do $$
begin
    insert into test.got select c.message_id from trex.claim('shop', 'w') c;
end
$$;

do $$
begin
    insert into test.got select c.message_id from trex.claim('shop', 'w') c;
end
$$;

do $$
begin
    insert into test.got select c.message_id from trex.claim('shop', 'w') c;
end
$$;

do $$
begin
    insert into test.got select c.message_id from trex.claim('shop', 'w') c;
end
$$;

select array_agg(g.message_id order by g.message_id) = array[1, 2, 11, 12]::bigint [] from test.got g;
