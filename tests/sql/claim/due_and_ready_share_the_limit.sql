-- criterion: ac-0031
select test.put(6);
select test.claim(6) > 0;
select r.status = 'recorded' from generate_series(1, 6) n, trex.postpone('shop', n, test.fence(n), '1 second') r;
select test.put(6);

-- Half for the due ones, and they come first.
-- clock: 1 seconds
select array_agg(c.message_id) = array[1, 2, 7, 8]::bigint [] from trex.claim('shop', 'w', 4) c;
select array_agg(c.message_id) = array[3, 4, 9]::bigint [] from trex.claim('shop', 'w', 3) c;

-- What one source doesn't need goes to the other.
select array_agg(c.message_id) = array[5, 6, 10, 11, 12]::bigint [] from trex.claim('shop', 'w', 100) c;
