-- criterion: ac-0040
-- expect: TX400
select trex.claim(null, 'w');
select trex.claim('', 'w');
select trex.claim('Shop', 'w');
select trex.claim('shop', null);
select trex.claim('shop', '');
select trex.claim('shop', ' k');
select trex.claim('shop', 'k ');
select trex.claim('shop', e'k\u00a0');
select trex.claim('shop', e'\u3000k');
select trex.claim('shop', e'\ufeffk');
select trex.claim('shop', e'a\u0001b');
select trex.claim('shop', e'a\nb');
select trex.claim('shop', e'a\u007fb');
select trex.claim('shop', e'a\u0085b');
select trex.claim('shop', repeat('x', 256));
select trex.claim('shop', 'w', null);
select trex.claim('shop', 'w', 0);
select trex.claim('shop', 'w', -1);
select trex.claim('shop', 'w', 1001);
select trex.claim('shop', 'w', 1000000000);
select trex.claim('shop', 'w', 1, '0');
select trex.claim('shop', 'w', 1, '-1 second');
select trex.claim('shop', 'w', 1, '99 milliseconds');
select trex.claim('shop', 'w', 1, '15 minutes 1 microsecond');
select trex.claim('shop', 'w', 1, '25 hours');
select trex.claim('shop', 'w', 1, '1 month');
select trex.claim('shop', 'w', 1, '1 month -29 days -23 hours');
select trex.claim('shop', 'w', 1, '100000 hours');
select trex.claim('shop', 'w', p_box => null);
select trex.claim('shop', 'w', p_box => 'Outbox');
select trex.claim('shop', 'w', p_after => null);
select trex.claim('shop', 'w', p_after => -1);
select trex.claim('shop', 'w', p_correlation_id => '');
select trex.claim('shop', 'w', p_correlation_id => ' k');
select trex.claim('shop', 'w', p_correlation_id => 'k ');
select trex.claim('shop', 'w', p_correlation_id => e'k\u00a0');
select trex.claim('shop', 'w', p_correlation_id => e'\u3000k');
select trex.claim('shop', 'w', p_correlation_id => e'\ufeffk');
select trex.claim('shop', 'w', p_correlation_id => e'a\u0001b');
select trex.claim('shop', 'w', p_correlation_id => e'a\nb');
select trex.claim('shop', 'w', p_correlation_id => e'a\u007fb');
select trex.claim('shop', 'w', p_correlation_id => e'a\u0085b');
select trex.claim('shop', 'w', p_correlation_id => repeat('x', 256));

-- Arguments come before everything else.
-- expect: TX400
select trex.claim('nobody', '');
